"""The arithmetic of shards, over every small case, against cutting the tensor itself."""

import itertools
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from dcr.errors import Unsupported  # noqa: E402
from dcr.torch.conversion import boxes_of_codes  # noqa: E402
from dcr.torch.placement import Box, Placement, shard_boxes, shards_of  # noqa: E402
from dcr.torch.source import check_order  # noqa: E402

REPLICATE = Placement("replicate")


def elements_of(boxes: list[Box]) -> dict[int, int]:
    """Source index to destination index, one element after another."""
    pairs: dict[int, int] = {}
    for source, destination, dims in boxes:
        for index in itertools.product(*(range(size) for size, _, _ in dims)):
            at = source + sum(i * step for i, (_, step, _) in zip(index, dims, strict=True))
            to = destination + sum(i * step for i, (_, _, step) in zip(index, dims, strict=True))
            assert at not in pairs
            pairs[at] = to
    return pairs


def cut(whole: torch.Tensor, dim: int, parts: int, index: int) -> torch.Tensor:
    """Part `index` of a tensor, by torch.chunk itself."""
    pieces = torch.chunk(whole, parts, dim=dim) if whole.shape[dim] else ()
    return pieces[index] if index < len(pieces) else whole.narrow(dim, 0, 0)


def brute_force(
    shape: tuple[int, ...],
    placements: tuple[Placement, ...],
    mesh: tuple[int, ...],
    coordinate: tuple[int, ...],
) -> torch.Tensor:
    local = torch.arange(torch.Size(shape).numel()).view(shape)
    # Tensor parallelism is applied first, the data parallel dimensions then cut what it left.
    for kind, order in (("shard", 1), ("strided", -1)):
        for i in range(len(mesh))[::order]:
            if placements[i].kind == kind:
                local = cut(local, placements[i].dim, mesh[i], coordinate[i])
    return local


def cases() -> Iterator[tuple[tuple[int, ...], tuple[Placement, ...], tuple[int, ...]]]:
    meshes: dict[int, list[tuple[int, ...]]] = {
        1: [(1,), (2,), (3,), (4,), (5,), (2, 2), (3, 2), (2, 3), (2, 2, 3)],
        2: [(3,), (2, 2), (3, 2)],
        3: [(3,), (2, 2)],
    }
    for rank, sizes in ((1, range(13)), (2, (0, 1, 3, 4, 5)), (3, (1, 3, 4))):
        kinds = [REPLICATE]
        kinds += [Placement("shard", dim) for dim in range(rank)]
        kinds += [Placement("strided", dim) for dim in range(rank)]
        for shape, mesh in itertools.product(itertools.product(sizes, repeat=rank), meshes[rank]):
            for placements in itertools.product(kinds, repeat=len(mesh)):
                yield shape, placements, mesh


def test_every_small_case() -> None:
    count = 0
    for shape, placements, mesh in cases():
        copies = 1
        for size, placement in zip(mesh, placements, strict=True):
            copies *= size if placement.kind == "replicate" else 1
        owned: list[int] = []
        for coordinate in itertools.product(*(range(size) for size in mesh)):
            want = brute_force(shape, placements, mesh, coordinate)
            shards = shards_of(shape, placements, mesh, coordinate)
            assert shards.local_shape == tuple(want.shape), (shape, placements, mesh, coordinate)
            pairs = elements_of(shard_boxes(shards))
            assert [pairs[i] for i in range(len(pairs))] == want.flatten().tolist()
            owned += pairs.values()
            count += 1
        elements = torch.Size(shape).numel()
        assert sorted(owned) == sorted(list(range(elements)) * copies)
    assert count > 10_000


def test_labels_tell_shards_apart() -> None:
    for shape, placements, mesh in cases():
        labels: dict[str, list[int]] = {}
        for coordinate in itertools.product(*(range(size) for size in mesh)):
            shards = shards_of(shape, placements, mesh, coordinate)
            elements = brute_force(shape, placements, mesh, coordinate).flatten().tolist()
            if not shards.empty:
                assert labels.setdefault(shards.describe(), elements) == elements
        assert len({tuple(one) for one in labels.values()}) == len(labels)


def mapped(codes: torch.Tensor, boxes: dict[int, list[Box]], bases: list[int]) -> torch.Tensor:
    made = torch.full((codes.numel(),), -1)
    for source, found in boxes.items():
        for box in found:
            for at, to in elements_of([box]).items():
                made[to] = bases[source] + at
    return made.view(codes.shape)


@pytest.mark.parametrize("seed", range(40))
def test_boxes_of_codes(seed: int) -> None:
    """Whatever moves elements is found: views, transposes, splits, interleaving, joining."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    first = torch.arange(24 * draw(1, 4), dtype=torch.int32)
    second = torch.arange(len(first), len(first) + 24, dtype=torch.int32)
    bases = [0, len(first)]
    codes = first
    for _ in range(draw(1, 5)):
        flat = codes.reshape(-1)
        match draw(0, 6):
            case 0:
                codes = flat.view(-1, draw(1, 3) * 2).t().contiguous()
            case 1:
                codes = torch.cat(torch.chunk(flat, draw(2, 4))[::-1])
            case 2:
                codes = flat.view(2, -1, 3).transpose(0, 1).reshape(-1, 2)
            case 3:
                codes = torch.cat([flat, second]) if len(flat) == len(first) else flat
            case 4:
                codes = flat.view(4, -1)[1:3].reshape(2, -1) if len(flat) % 8 == 0 else flat
            case _:
                codes = flat.view(-1, 2)
        if codes.numel() % 12:
            break
    boxes = boxes_of_codes(codes, bases)
    assert boxes is not None
    assert torch.equal(mapped(codes, boxes, bases), codes.to(torch.int64))


def test_another_order_of_cuts_is_refused() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    def strided(factor: int, dim: int = 0) -> object:
        return _StridedShard(dim, split_factor=factor)

    for placements, mesh in (
        ((strided(2), Shard(0)), (3, 2)),
        ((strided(2), Shard(0), Shard(1)), (3, 2, 2)),
        ((Replicate(), strided(2), Shard(0)), (4, 3, 2)),
        ((strided(6), strided(2), Shard(0)), (4, 3, 2)),
        ((strided(2, 1), Shard(1)), (3, 2)),
        ((strided(1), Shard(1)), (3, 2)),
    ):
        check_order("w", placements, mesh)
    # Shapes are the same in these, and elements are not.
    for placements, mesh in (
        ((strided(2), strided(2), Shard(0)), (4, 3, 2)),
        ((strided(2),), (3,)),
        ((strided(2), Shard(1)), (3, 2)),
        ((Shard(0), strided(3)), (3, 2)),
    ):
        with pytest.raises(Unsupported, match="^w has the placements .* split factor") as raised:
            check_order("w", placements, mesh)
        assert raised.value.tensor == "w"
