"""A module and its loader, as the core's port `Loader`."""

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dcr._core import LoaderBatchHook, LoaderHook, TensorView
from dcr.errors import Unsupported
from dcr.torch import devices
from dcr.torch.hook import LoadMode, WriteRecorder
from dcr.torch.storages import Storages, view_of

logger = logging.getLogger("dcr")

LoadWeights = Callable[[Iterable[tuple[str, torch.Tensor]]], object]


def state_dict_loader(module: torch.nn.Module) -> LoadWeights:
    """The loader of modules without one: `load_state_dict`, for names of the module's own."""

    # With the versions of its parts, as a whole checkpoint has: some parts fill up older ones.
    metadata = getattr(module.state_dict(), "_metadata", None)

    def load_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        state: OrderedDict[str, torch.Tensor] = OrderedDict(weights)
        state._metadata = metadata  # type: ignore[attr-defined]
        result = module.load_state_dict(state, strict=False)
        if result.unexpected_keys:
            raise KeyError(f"the module has no {result.unexpected_keys[0]!r}")

    return load_weights


def named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and buffer under each of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


@dataclass
class _Place:
    """Where a module has a parameter or buffer, and what it is."""

    tensors: dict[str, Any]  # the module's own parameters or buffers
    key: str
    tensor: torch.Tensor
    data: torch.Tensor  # the same storage, whatever the loader makes of `tensor`
    storage: int  # its `_cdata`

    def replaced(self) -> bool:
        return (
            self.tensors.get(self.key) is not self.tensor
            or self.tensor.untyped_storage()._cdata != self.storage
        )

    def restore(self) -> None:
        self.tensor.data = self.data
        self.tensors[self.key] = self.tensor


class TorchLoader:
    """Loads canonical tensors into a module by the module's own loader, under the core's eyes.

    Args:
        module: whose parameters and buffers are the targets.
        load_weights: loads pairs of a canonical name and a tensor, vLLM's `model.load_weights` for
            instance; whether it takes one pair or many must make no difference. By default the
            module's own `load_weights`, or `load_state_dict` if it has none.
        scratch_bytes_max: of probes and scratch tensors together.
        batch_entries_max: how many names are traced in one call.
        torch_operations: reach parameters through torch's operations on integer views, on whatever
            device they lie; by default where some lie neither in host memory nor on one CUDA
            device, or where DCR's library of such devices is missing.

    Parameters may all lie on the meta device, where geometry can be traced.
    Not thread-safe: a loader that writes from other threads is found out and refused.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        load_weights: LoadWeights | None = None,
        *,
        scratch_bytes_max: int = 16 << 30,
        batch_entries_max: int = 256,
        torch_operations: bool | None = None,
    ) -> None:
        own = getattr(module, "load_weights", None)
        self._module = module
        self._load_weights: LoadWeights = load_weights or own or state_dict_loader(module)
        self.batch_entries_max = batch_entries_max
        storages = [tensor.untyped_storage() for _, tensor in named_tensors(module)]
        kinds = {storage.device.type for storage in storages}
        device = None if torch_operations else devices.common_device(storages)
        staged = None
        if device is not None:
            opens = devices.staged if torch_operations is False else devices.staged_for_receiver
            staged = opens(device)
        if torch_operations is None:
            others = kinds - {"cpu", "meta"}
            torch_operations = staged is None and (device is not None or bool(others))
            if torch_operations and device is None:
                logger.warning(
                    "parameters on %s are changed by torch's operations, not by DCR's own, which "
                    "reach one CUDA device",
                    ", ".join(sorted({str(one.device) for one in storages} - {"cpu", "meta"})),
                )
        self.torch_operations = torch_operations
        self.storages = Storages(
            "meta" in kinds, scratch_bytes_max, torch_operations, device, staged
        )
        self._places: list[_Place] = []

    def targets(self) -> list[tuple[str, TensorView]]:
        """Every parameter and buffer, and where it lies now."""
        self._places = [
            _Place(tensors, key, tensor, tensor.data, tensor.untyped_storage()._cdata)
            for module in self._module.modules()
            for tensors in (module._parameters, module._buffers)
            for key, tensor in tensors.items()
            if tensor is not None
        ]
        return [
            (name, view_of(self.storages.register(name, tensor), tensor))
            for name, tensor in named_tensors(self._module)
        ]

    def load(self, name: str, value: TensorView, hook: LoaderHook) -> None:
        """Loads one tensor and reports every write."""
        given = self.storages.given(value)
        recorder = _OneRecorder(self.storages, given, value.storage, hook)
        self._run([(name, given)], recorder)
        del given
        recorder.check_kept()

    def load_batch(self, entries: list[tuple[str, TensorView]], hook: LoaderBatchHook) -> bool:
        """Loads many; says whether all that was written is known to be of which of them."""
        pairs = [(name, self.storages.given(value)) for name, value in entries]
        recorder = _BatchRecorder(self.storages, entries, pairs, hook)
        self._run(pairs, recorder)
        del pairs
        return recorder.explained and not recorder.kept()

    def _run(self, pairs: list[tuple[str, torch.Tensor]], recorder: "_Recorder") -> None:
        try:
            with self.storages.in_use(), torch.no_grad(), LoadMode(recorder):
                self._load_weights(iter(pairs))
        finally:
            # Assigning `.data`, or another parameter, is no operation that a dispatcher sees.
            for place in self._places:
                if place.replaced() and not recorder.replace("set_data", place.data):
                    place.restore()


class _Recorder(WriteRecorder):
    """What both recorders have: the storages of targets and of given tensors."""

    def __init__(self, storages: Storages, given: Iterable[torch.Tensor]) -> None:
        self._storages = storages
        # Kept until the load has ended: another storage may get the address of one that is gone.
        self._given = [tensor.untyped_storage() for tensor in given]
        self._entries = {storage._cdata: i for i, storage in enumerate(self._given)}

    def watches(self, tensor: torch.Tensor) -> bool:
        key = tensor.untyped_storage()._cdata
        return key in self._entries or self._storages.find(key) is not None

    def kept(self) -> bool:
        """Whether the loader still holds what it was given, whose memory goes to others next."""

        def held() -> bool:
            return any(
                torch._C._storage_Use_Count(storage._cdata) > 1 for storage in self._given
            )

        if not held():
            return False
        gc.collect()
        return held()


class _OneRecorder(_Recorder):
    def __init__(
        self, storages: Storages, given: torch.Tensor, number: int, hook: LoaderHook
    ) -> None:
        super().__init__(storages, [given])
        self._number = number  # the given tensor's storage, for the core
        self._hook = hook
        self._some: TensorView | None = None

    def check_kept(self) -> None:
        if self.kept():
            raise Unsupported("the loader keeps the tensor that it was given")

    def _view(self, tensor: torch.Tensor) -> TensorView | None:
        key = tensor.untyped_storage()._cdata
        number = self._number if key in self._entries else self._storages.find(key)
        return None if number is None else view_of(number, tensor)

    def _target(self, tensor: torch.Tensor) -> TensorView:
        view = self._view(tensor)
        assert view is not None
        return view

    def _tell(self, kind: str, operation: str, destination: TensorView, *what: Any) -> bool:
        self._storages.settle()
        return self._hook.on_event(kind, operation, destination, *what)

    def copy(self, operation: str, destination: torch.Tensor, source: torch.Tensor) -> bool:
        view = self._target(destination)
        plain = not (source.is_conj() or source.is_neg())
        known = self._view(source) if plain else None
        if known is not None:
            return self._tell("copy", operation, view, known)
        with self._storages.lend(source) as lent:
            return self._tell("copy", operation, view, lent)

    def fill(self, operation: str, destination: torch.Tensor, word: int) -> bool:
        return self._tell("fill", operation, self._target(destination), None, word)

    def other(self, operation: str, destination: torch.Tensor) -> bool:
        return self._tell("other", operation, self._target(destination))

    def replace(self, operation: str, destination: torch.Tensor) -> bool:
        return self._tell("replace", operation, self._target(destination))

    def collective(self, operation: str) -> None:
        nowhere = TensorView(0, "U8", 0, [0], [1])
        self._tell("collective", operation, nowhere)


class _BatchRecorder(_Recorder):
    def __init__(
        self,
        storages: Storages,
        entries: list[tuple[str, TensorView]],
        pairs: list[tuple[str, torch.Tensor]],
        hook: LoaderBatchHook,
    ) -> None:
        super().__init__(storages, (tensor for _, tensor in pairs))
        self._numbers = [value.storage for _, value in entries]
        self._hook = hook
        self.explained = True

    def _nobodys(self) -> bool:
        self.explained = False
        return False

    def copy(self, operation: str, destination: torch.Tensor, source: torch.Tensor) -> bool:
        target = self._storages.find(destination.untyped_storage()._cdata)
        entry = self._entries.get(source.untyped_storage()._cdata)
        if target is None or entry is None or source.is_conj() or source.is_neg():
            return self._nobodys()
        given = view_of(self._numbers[entry], source)
        self._hook.on_copy(entry, operation, view_of(target, destination), given)
        return False

    def fill(self, operation: str, destination: torch.Tensor, word: int) -> bool:
        return self._nobodys()

    def other(self, operation: str, destination: torch.Tensor) -> bool:
        return self._nobodys()

    def replace(self, operation: str, destination: torch.Tensor) -> bool:
        return self._nobodys()

    def collective(self, operation: str) -> None:
        self.explained = False
