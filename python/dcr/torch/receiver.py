"""A receiver of a module."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch

from dcr import _core
from dcr.errors import InvalidArgument, Unsupported
from dcr.torch.checkpoint import CheckpointTensors
from dcr.torch.loader import LoadWeights, TorchLoader, named_tensors
from dcr.torch.placed import Placement, log_placements, placements
from dcr.torch.storages import dtype_name

logger = logging.getLogger("dcr")

TensorLike = torch.Tensor | tuple[torch.dtype, Sequence[int]]
Box = tuple[int, int, Sequence[int], Sequence[int]]  # tensor, offset, sizes, strides


def tensor_tuples(tensors: Mapping[str, TensorLike]) -> list[tuple[str, str, list[int]]]:
    """Name, dtype name and shape of each."""
    tuples = []
    for name, tensor in tensors.items():
        dtype, shape = (
            (tensor.dtype, tensor.shape) if isinstance(tensor, torch.Tensor) else tensor
        )
        tuples.append((name, dtype_name(dtype), list(shape)))
    return tuples


def never_loaded_names(module: torch.nn.Module, patterns: Iterable[str]) -> list[str]:
    """Buffers that no checkpoint has, and what the patterns name."""
    names = [name for name, _ in named_tensors(module)]
    never = set()
    for prefix, part in module.named_modules(remove_duplicate=False):
        for key in part._non_persistent_buffers_set:
            never.add(f"{prefix}.{key}" if prefix else key)
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise InvalidArgument(f"never loaded: the module has no {pattern!r}")
        never.update(found)
    return sorted(never & set(names))


def refusals(classes: Mapping[str, _core.TensorClass]) -> dict[str, str]:
    """Of what prewarm found, the names that one of an engine's workers cannot refit, and why.

    Loaders that talk to other ranks are among them: each worker would have to call them in the same
    order as the others, and nothing tells it that order.
    """
    return {
        name: one.reason if one.path == "refused" else "its loader talks to other ranks"
        for name, one in classes.items()
        if one.path == "refused" or one.collective
    }


def traced_receiver(
    module: torch.nn.Module,
    tensors: Sequence[tuple[str, str, Sequence[int]]],
    load_weights: LoadWeights | None,
    owners: Sequence[Sequence[Box]],
    never_loaded: Iterable[str],
    base: CheckpointTensors | None = None,
) -> tuple[_core.EmbeddedReceiver, bool, Callable[[], dict[str, Placement]]]:
    """The core's receiver of a module for what owners have published, prewarmed.

    `base`: the checkpoint that the module holds as it was loaded, which it is audited against if it
    has these tensors; whether it was comes beside the receiver, and what makes its placements.
    Raises `dcr.errors.Mismatch` if it has one of them in another shape, and
    `dcr.errors.Unsupported` for what `refusals` names.
    """
    differs = "" if base is None else base.differs(tensors)
    loader = TorchLoader(module, load_weights)
    core = _core.EmbeddedReceiver(
        [(name, dtype, list(shape)) for name, dtype, shape in tensors],
        loader,
        loader.storages.memory,
        owners=[list(boxes) for boxes in owners],
        never_loaded=never_loaded_names(module, never_loaded),
        threads=1 if loader.torch_operations else 0,
    )
    core.prewarm()
    refused = refusals(dict(zip(core.names, core.classes, strict=True)))
    if refused:
        name, why = next(iter(refused.items()))
        raise Unsupported(f'tensor "{name}" cannot be refitted exactly: {why}', name)
    log_placements(core)

    def placed() -> dict[str, Placement]:
        return placements(core, module, loader.storages)

    if base is None:
        return core, False, placed
    if differs:
        logger.warning("no audit against what the module was loaded from: %s", differs)
    else:
        core.audit(base)
    return core, not differs, placed


class ModelReceiver:
    """Keeps a module's parameters equal, bit for bit, to what its loader makes of a checkpoint.

    Args:
        module: the serving model, loaded and processed as it serves.
        tensors: the canonical (checkpoint) tensors: names with tensors, of which only dtype and
            shape count, or pairs of these.
        load_weights: as for `TorchLoader`.
        owners: of each owner the boxes (tensor by name order, offset, sizes, strides) that it may
            send.
        never_loaded: names of parameters and buffers that no canonical tensor reaches, with `*` for
            any part; buffers that are not persistent are known to be.
        scratch_bytes_max, batch_entries_max, torch_operations: as for `TorchLoader`.
        key: of payloads' digests, as their owners have it.
        post_apply_checks: compare what was written with what came.
        prefer_scratch: go through the loader even where the placement is known, to compare the two.
        threads: that apply; 0 is one for each processor. Torch's operations have one in any case,
            and torch its own.
        stage: is called with the name of each stage of `prewarm` that begins.

    One call at a time. Errors are those of `dcr.errors`, with the tensor named.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        tensors: Mapping[str, TensorLike],
        load_weights: LoadWeights | None = None,
        *,
        owners: Sequence[Sequence[Box]] = (),
        never_loaded: Iterable[str] = (),
        scratch_bytes_max: int = 16 << 30,
        batch_entries_max: int = 256,
        torch_operations: bool | None = None,
        key: bytes = b"",
        post_apply_checks: bool = False,
        prefer_scratch: bool = False,
        threads: int = 0,
        stage: Callable[[str], None] | None = None,
    ) -> None:
        self._module = module
        self._loader = TorchLoader(
            module,
            load_weights,
            scratch_bytes_max=scratch_bytes_max,
            batch_entries_max=batch_entries_max,
            torch_operations=torch_operations,
        )
        self._core = _core.EmbeddedReceiver(
            tensor_tuples(tensors),
            self._loader,
            self._loader.storages.memory,
            owners=[list(boxes) for boxes in owners],
            never_loaded=never_loaded_names(module, never_loaded),
            key=key,
            post_apply_checks=post_apply_checks,
            prefer_scratch=prefer_scratch,
            threads=1 if self._loader.torch_operations else threads,
            stage=stage,
        )
        self._indices = {name: index for index, name in enumerate(self._core.names)}

    def prewarm(self) -> dict[str, _core.TensorClass]:
        """Traces the loader over all names, leaving every parameter as it was.

        Returns what came of each. Those whose path is "refused" cannot be refitted, and say why.

        Raises:
            dcr.errors.Mismatch: a byte of a parameter that no load explains, or parameters that
                moved, by name.
        """
        self._core.prewarm()
        return self.classes

    @property
    def classes(self) -> dict[str, _core.TensorClass]:
        """By canonical name, what the last `prewarm` found."""
        return dict(zip(self._core.names, self._core.classes, strict=True))

    @property
    def placements(self) -> dict[str, Placement]:
        """By canonical name, where the last `prewarm` found its elements to go."""
        return placements(self._core, self._module, self._loader.storages)

    @property
    def needs(self) -> list[str]:
        """What to ask of owners for each tensor, in the order of names."""
        return [one.need for one in self._core.classes]

    def require_scratch(self, name: str) -> None:
        """Puts a tensor on the scratch path: its loader talks to other ranks on some rank."""
        self._core.require_scratch(self._index(name))

    def fingerprint(self) -> bytes:
        """Sixteen bytes that bind the tensors, the layout in memory and the classes."""
        return self._core.fingerprint()

    def audit(
        self,
        base: Mapping[str, torch.Tensor] | Callable[[str], torch.Tensor],
        names: Iterable[str] | None = None,
    ) -> None:
        """Compares the parameters with what the loader makes of the base checkpoint.

        It finds what no trace can: weights that were packed, permuted or left behind after loading.
        With `names` it compares these tensors alone, as a sample of what a refit brought is
        compared with the trainer's values after its commit.

        Raises:
            dcr.errors.Mismatch: naming the first tensor that differs.
        """
        read = base.__getitem__ if isinstance(base, Mapping) else base
        if names is None:
            self._core.audit(read)
        else:
            self._core.audit(read, [self._index(name) for name in names])

    def _index(self, name: str) -> int:
        if name not in self._indices:
            raise InvalidArgument(f"there is no tensor {name!r}")
        return self._indices[name]

    def begin(
        self,
        *,
        run: bytes,
        attempt: int,
        base_version: int,
        target_version: int,
        verify: bool = False,
        overwrite_only: bool = False,
    ) -> None:
        """Starts an attempt to go from one version to the next, which ends any other.

        `verify` compares a dense refit with what is there and writes nothing. `overwrite_only` is
        for parameters that may hold part of another attempt.
        """
        self._core.begin_attempt(
            run=run,
            attempt=attempt,
            base_version=base_version,
            target_version=target_version,
            verify=verify,
            overwrite_only=overwrite_only,
        )

    def ingest(self, payload: bytes | bytearray | memoryview) -> str:
        """Validates and queues a payload: "queued", "duplicate", "other_attempt" or "full"."""
        return self._core.ingest(payload)

    def end_of_owner(self, owner: int, payloads: int) -> None:
        """Says how many payloads an owner sends in this attempt."""
        self._core.end_of_owner(owner, payloads)

    def apply(self) -> int:
        """Applies every payload whose turn it is; returns how many."""
        return self._core.apply()

    def finish(self) -> _core.ReceiverCounts:
        """Ends the attempt: everything that was announced came and is applied."""
        return self._core.finish()
