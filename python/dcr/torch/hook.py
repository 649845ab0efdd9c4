"""What a loader writes, seen at torch's dispatcher.

Every operation that can write says so in its schema (`alias_info.is_write`), so nothing depends on
which class of loader it was, or on which method it called. Whether a write happens is the core's
decision; nothing here looks at values, but for the constant of a fill.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Libraries of operations that talk to other ranks.
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
# vLLM's own ones, which wrap them.
_COLLECTIVE_WORDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


class WriteRecorder(ABC):
    """What is told of each write; the answers say whether it is to happen."""

    @abstractmethod
    def watches(self, tensor: torch.Tensor) -> bool:
        """Whether writes to the tensor's storage are of interest."""

    @abstractmethod
    def copy(self, operation: str, destination: torch.Tensor, source: torch.Tensor) -> bool:
        """A copy, cast if the dtypes differ; `source` has the destination's shape."""

    @abstractmethod
    def fill(self, operation: str, destination: torch.Tensor, word: int) -> bool:
        """The same bits for every element."""

    @abstractmethod
    def other(self, operation: str, destination: torch.Tensor) -> bool:
        """Any other operation."""

    @abstractmethod
    def replace(self, operation: str, destination: torch.Tensor) -> bool:
        """The tensor gets another storage."""

    @abstractmethod
    def collective(self, operation: str) -> None:
        """The loader talks to other ranks."""


def fill_word(value: Any, dtype: torch.dtype) -> int:
    """The bits that a fill leaves in each element."""
    filled = torch.zeros(1, dtype=dtype).fill_(value)
    return int.from_bytes(filled.view(torch.uint8).numpy().tobytes(), "little")


@dataclass(frozen=True)
class _Written:
    """An argument that an operation writes to."""

    position: int
    name: str

    def value(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


@dataclass(frozen=True)
class _Operation:
    """What a schema says."""

    name: str
    written: tuple[_Written, ...]
    collective: bool

    def tensors(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        """All tensors that it writes to."""
        for one in self.written:
            value = one.value(args, kwargs)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    yield tensor


def _operation(func: Any) -> _Operation:
    schema = func._schema
    space, _, short = schema.name.partition("::")
    written = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            place = 1 << 30 if argument.kwarg_only else position
            written.append(_Written(place, argument.name))
    collective = space in _COLLECTIVES or (
        space == "vllm" and any(word in short for word in _COLLECTIVE_WORDS)
    )
    return _Operation(short if space == "aten" else schema.name, tuple(written), collective)


_OPERATIONS: dict[Any, _Operation] = {}


class LoadMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells a recorder of every write while it is on, on this thread."""

    def __init__(self, recorder: WriteRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        operation = _OPERATIONS.get(func)
        if operation is None:
            operation = _OPERATIONS[func] = _operation(func)
        kwargs = kwargs or {}
        if operation.collective:
            self._recorder.collective(operation.name)
        elif not operation.written:
            return func(*args, **kwargs)
        watched = [
            tensor for tensor in operation.tensors(args, kwargs) if self._recorder.watches(tensor)
        ]
        if not watched:
            return func(*args, **kwargs)
        known = _KNOWN.get(func)
        if known is not None:
            performs = known(self._recorder, operation.name, *args, **kwargs)
            return func(*args, **kwargs) if performs else args[0]
        suppressed = [
            tensor for tensor in watched if not self._recorder.other(operation.name, tensor)
        ]
        if not suppressed:
            return func(*args, **kwargs)
        return _perform_beside(func, args, kwargs, suppressed)


def _perform_beside(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], suppressed: list[torch.Tensor]
) -> Any:
    """Performs an operation on copies of what it must not write to, for the rest of its results."""
    originals: dict[int, torch.Tensor] = {}
    copies: dict[int, torch.Tensor] = {}
    for tensor in suppressed:
        copy = tensor.clone()
        copies[id(tensor)] = copy
        originals[id(copy)] = tensor

    def swap(value: Any, by: dict[int, torch.Tensor]) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(swap(one, by) for one in value)
        return by.get(id(value), value)

    result = func(
        *(swap(value, copies) for value in args),
        **{name: swap(value, copies) for name, value in kwargs.items()},
    )
    return swap(result, originals)


def _copy(
    recorder: WriteRecorder,
    operation: str,
    destination: torch.Tensor,
    source: torch.Tensor,
    non_blocking: bool = False,
) -> bool:
    return recorder.copy(operation, destination, source.expand(destination.shape))


def _fill(recorder: WriteRecorder, operation: str, destination: torch.Tensor, value: Any) -> bool:
    return recorder.fill(operation, destination, fill_word(value, destination.dtype))


def _zero(recorder: WriteRecorder, operation: str, destination: torch.Tensor) -> bool:
    return recorder.fill(operation, destination, 0)


def _set(recorder: WriteRecorder, operation: str, destination: torch.Tensor, *_: Any) -> bool:
    return recorder.replace(operation, destination)


_KNOWN: dict[Any, Callable[..., bool]] = {
    torch.ops.aten.copy_.default: _copy,
    torch.ops.aten.fill_.Tensor: _copy,
    torch.ops.aten.fill_.Scalar: _fill,
    torch.ops.aten.zero_.default: _zero,
    torch.ops.aten.set_.source_Storage: _set,
    torch.ops.aten.set_.source_Storage_storage_offset: _set,
    torch.ops.aten.set_.source_Tensor: _set,
    torch.ops.aten.set_.default: _set,
}
