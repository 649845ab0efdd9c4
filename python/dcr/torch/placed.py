"""Where a receiver's canonical tensors go."""

import logging
from dataclasses import dataclass

import torch

from dcr import _core
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


def placements(
    core: _core.EmbeddedReceiver, module: torch.nn.Module, storages: Storages
) -> dict[str, Placement]:
    """Of each canonical tensor, after prewarm."""
    within: dict[int, list[tuple[int, int, str]]] = {}  # storage → begin and end of parameters
    for name, tensor in named_tensors(module):
        storage = storages.find(tensor.untyped_storage()._cdata)
        if storage is not None and tensor.numel():
            begin = int(tensor.storage_offset()) * tensor.itemsize
            within.setdefault(storage, []).append((begin, begin + int(tensor.nbytes), name))

    def part(box: _core.PlacedBox) -> PlacedPart:
        at = box.storage_offset * box.word_bytes
        begin, _, name = next(
            found for found in within[box.storage] if found[0] <= at < found[1]
        )
        return PlacedPart(
            name,
            box.tensor_offset,
            box.storage_offset - begin // box.word_bytes,
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
