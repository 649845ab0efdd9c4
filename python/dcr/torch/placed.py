"""Where a receiver's canonical tensors go."""

import logging
from dataclasses import dataclass

import torch

from dcr import _core
from dcr.errors import InternalError
from dcr.torch.loader import named_tensors
from dcr.torch.storages import Storages

logger = logging.getLogger("dcr")


@dataclass(frozen=True)
class PlacedPart:
    """Some elements of a canonical tensor and where a parameter has them.

    A strided rectangle, of which element (i, j, …) is at offset + i·stride + j·stride + … on either
    side, counted in elements.
    """

    parameter: str
    tensor_offset: int
    parameter_offset: int
    sizes: tuple[int, ...]
    tensor_strides: tuple[int, ...]
    parameter_strides: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """What prewarm found of a canonical tensor."""

    path: str
    """traced, scratch, dense, skip or refused."""
    reason: str
    """Of any other path than traced."""
    bytes: int
    """Of parameters, that its elements reach on this rank."""
    parts: tuple[PlacedPart, ...] = ()
    """Of a traced tensor."""


def _has_element(tensor: torch.Tensor, byte: int) -> bool:
    """Whether a byte of the storage is of one of its elements; others may have their share."""
    left = byte // tensor.itemsize - int(tensor.storage_offset())
    if left < 0:
        return False
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True), reverse=True):
        left -= min(left // stride, size - 1) * stride if stride else 0
    return left == 0


def placements(
    core: _core.EmbeddedReceiver, module: torch.nn.Module, storages: Storages
) -> dict[str, Placement]:
    """Of each canonical tensor, after prewarm."""
    within: dict[int, list[tuple[str, torch.Tensor]]] = {}  # storage → parameters
    for name, tensor in named_tensors(module):
        storage = storages.find(tensor.untyped_storage()._cdata)
        if storage is not None and tensor.numel():
            within.setdefault(storage, []).append((name, tensor))

    def part(box: _core.PlacedBox) -> PlacedPart:
        at = box.storage_offset * box.word_bytes
        found = [one for one in within[box.storage] if _has_element(one[1], at)]
        if not found:
            raise InternalError(f"byte {at} of a storage is no parameter's element")
        name, tensor = found[0]
        return PlacedPart(
            name,
            box.tensor_offset,
            box.storage_offset - int(tensor.storage_offset()) * tensor.itemsize // box.word_bytes,
            tuple(box.sizes),
            tuple(box.tensor_strides),
            tuple(box.storage_strides),
        )

    return {
        name: Placement(
            one.path, one.reason, one.bytes, tuple(part(box) for box in core.placement(index))
        )
        for index, (name, one) in enumerate(zip(core.names, core.classes, strict=True))
    }


def log_placements(core: _core.EmbeddedReceiver) -> None:
    """A line of what was traced."""
    classes = core.classes
    boxes = sum(len(core.placement(index)) for index in range(len(classes)))
    paths = [
        f"{path} {sum(one.bytes for one in classes if one.path == path)}"
        for path in ("traced", "scratch", "dense")
    ]
    logger.info(
        "traced %d tensors in %d boxes; bytes of parameters by path: %s",
        len(classes),
        boxes,
        ", ".join(paths),
    )
