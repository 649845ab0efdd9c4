"""Where a receiver's canonical tensors go."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dcr import _core
from dcr.errors import InternalError, InvalidArgument
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
    tied: bool = False
    """A skip: a tensor that is loaded later has the same bytes."""
    elements: int = 0
    """Of the canonical tensor; bytes, where elements are smaller."""


def placement_from(fields: Mapping[str, Any]) -> Placement:
    """What `dataclasses.asdict` made this of, with lists for tuples or without."""

    def part(fields: Mapping[str, Any]) -> PlacedPart:
        lists = ("sizes", "tensor_strides", "parameter_strides")
        return PlacedPart(**{**fields, **{key: tuple(fields[key]) for key in lists}})

    return Placement(**{**fields, "parts": tuple(part(one) for one in fields["parts"])})


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
            one.path,
            one.reason,
            one.bytes,
            tuple(part(box) for box in core.placement(index)),
            one.tied,
            elements,
        )
        for index, (name, one, elements) in enumerate(
            zip(core.names, core.classes, core.elements, strict=True)
        )
    }


@dataclass(frozen=True)
class Uneven:
    """How a tensor does not lie evenly on the ranks of one engine."""

    reason: str
    missing: bool
    """Ranks take some of its elements, and none takes another."""


def uneven_tensors(ranks: Sequence[Mapping[str, Placement]]) -> dict[str, str]:
    """Tensors that do not lie evenly on the ranks of one engine, and how.

    That is, of which some element lies on no rank, or on more ranks than another. Where ranks take
    a part of a tensor and none takes the rest, the gate of vLLM's engines stays closed. Anything
    else may be meant: a dense load would leave out too what no rank takes anything of (what a
    runtime computes itself, or a name that the loaders miss), and what lies on more ranks than the
    rest may be a part that is kept whole where others are cut (keys and values beside queries in
    one tensor), or a shard that two ranks take. Where a loader takes a tensor by another path than
    traced, or it is tied, its elements are not known, and nothing is said of it.

    Args:
        ranks: the `placements` of every rank's receiver.

    Raises:
        dcr.errors.InvalidArgument: a rank has no placements, for it has not traced; or ranks have
            placements of different tensors.
    """
    return {name: one.reason for name, one in uneven_by_name(ranks).items()}


def uneven_by_name(ranks: Sequence[Mapping[str, Placement]]) -> dict[str, Uneven]:
    """As `uneven_tensors`."""
    for rank, found in enumerate(ranks):
        if not found:
            raise InvalidArgument(f"rank {rank} has no placements: it has not traced")
    if not ranks:
        return {}
    tensors = [(name, ranks[0][name].elements) for name in sorted(ranks[0], key=str.encode)]
    shares = []
    for rank, found in enumerate(ranks):
        others = {(name, one.elements) for name, one in found.items()} ^ set(tensors)
        if others:
            raise InvalidArgument(
                f"ranks 0 and {rank} have placements of different tensors, as of {min(others)[0]!r}"
            )
        shares.append([_share(found[name]) for name, _ in tensors])
    return {
        name: Uneven(reason, missing)
        for name, reason, missing in _core.uneven_tensors(tensors, shares)
    }


def _share(placement: Placement) -> tuple[str, bool, list[tuple[int, list[int], list[int]]]]:
    boxes = [
        (part.tensor_offset, list(part.sizes), list(part.tensor_strides))
        for part in placement.parts
    ]
    return placement.path, placement.tied, boxes


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
