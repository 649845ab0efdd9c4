"""Which elements of a tensor a rank holds: the arithmetic of sharded tensors.

`torch.distributed.tensor` has a helper for this that is wrong for some uneven `_StridedShard`
placements, so that it's done here; whoever uses it compares the shape with the local tensor's.

A box is `(source offset, destination offset, [(size, source stride, destination stride), ...])`,
as the core takes it: element (i0, i1, ...) lies at offset + the sum of i_d * stride_d on each side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Box",
    "Placement",
    "Run",
    "Shards",
    "chunk",
    "row_major_strides",
    "shard_boxes",
    "shards_of",
]

Box = tuple[int, int, list[tuple[int, int, int]]]
"""From elements of one tensor to those of another."""

Run = tuple[int, int]
"""Indices [begin, end) of a dimension."""


@dataclass(frozen=True)
class Placement:
    """How one dimension of a device mesh shares a tensor out.

    `kind` is "replicate", "shard" or "strided"; `dim` is the tensor's dimension that is cut.
    "strided" is `_StridedShard`: cut after all of the tensor's plain shards were, whatever the
    order of the mesh's dimensions says.
    """

    kind: Literal["replicate", "shard", "strided"]
    dim: int = 0


@dataclass(frozen=True)
class Shards:
    """What one rank holds of a tensor: for each dimension the indices, as ascending runs.

    `held` is False for a rank outside the tensor's mesh, whatever the runs say.
    """

    shape: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]
    held: bool = True

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Sizes of the local tensor."""
        return tuple(sum(end - begin for begin, end in runs) for runs in self.runs)

    @property
    def whole(self) -> bool:
        """Whether the rank holds all of the tensor."""
        return self.held and self.local_shape == self.shape

    @property
    def empty(self) -> bool:
        """Whether it holds none of a tensor that has elements, or the tensor has none."""
        return not self.held or 0 in self.local_shape

    def describe(self) -> str:
        """The shard as a subscript, e.g. "[64:128, :]": the same on ranks that hold the same."""
        dims = []
        for size, runs in zip(self.shape, self.runs, strict=True):
            whole = runs == ((0, size),) or (size == 0 and not runs)
            dims.append(":" if whole else "+".join(f"{begin}:{end}" for begin, end in runs))
        return "[" + ", ".join(dims) + "]"


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Elements between neighbours along each dimension of a contiguous tensor."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return strides


def chunk(runs: Sequence[Run], parts: int, index: int) -> tuple[Run, ...]:
    """Part `index` of `parts` of a list of indices, cut as `torch.chunk` does.

    Parts have ceil(length / parts) indices; the last that has any may have fewer, and those after
    it have none.
    """
    length = sum(end - begin for begin, end in runs)
    size = -(-length // parts)
    low, high = min(length, index * size), min(length, (index + 1) * size)
    taken: list[Run] = []
    position = 0
    for begin, end in runs:
        first = max(begin, begin + low - position)
        last = min(end, begin + high - position)
        if first < last:
            taken.append((first, last))
        position += end - begin
    return tuple(taken)


def shards_of(
    shape: Sequence[int],
    placements: Sequence[Placement],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
) -> Shards:
    """What the rank at `coordinate` of a mesh holds of a tensor of `shape`.

    Plain shards cut first, in the order of the mesh's dimensions; strided ones cut what these left,
    in the opposite order: tensor parallelism first, then FSDP.
    """
    runs: list[tuple[Run, ...]] = [((0, size),) if size else () for size in shape]
    order = [i for i, one in enumerate(placements) if one.kind == "shard"]
    order += [i for i, one in reversed(list(enumerate(placements))) if one.kind == "strided"]
    for i in order:
        dim = placements[i].dim
        runs[dim] = chunk(runs[dim], mesh_shape[i], coordinate[i])
    return Shards(tuple(shape), tuple(runs))


def shard_boxes(shards: Shards) -> list[Box]:
    """From elements of the (contiguous) local tensor to elements of the whole one."""
    if shards.empty:
        return []
    source = row_major_strides(shards.local_shape)
    destination = row_major_strides(shards.shape)
    boxes: list[Box] = [(0, 0, [])]
    for dim, runs in enumerate(shards.runs):
        grown: list[Box] = []
        for source_offset, destination_offset, dims in boxes:
            position = 0
            for begin, end in runs:
                one = (end - begin, source[dim], destination[dim])
                grown.append(
                    (
                        source_offset + position * source[dim],
                        destination_offset + begin * destination[dim],
                        [*dims, one],
                    )
                )
                position += end - begin
        boxes = grown
    return boxes
