"""The paper's receiver (§6.1, Appendices A.2, C and D) in torch operations, to compare ours with:
for every tensor that changed a scratch of its whole size, zeroed, the masks scattered into it, the
loader called over it, and a dispatch hook that folds masks into the loader's final copies.

Entries are XOR masks; a loader that does more than copy is refused, as there."""

import ctypes
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GAPS = (torch.uint8, torch.uint16, torch.int32, torch.int64)

_zstd = ctypes.CDLL("libzstd.so.1")  # the core's; Python has none of its own
_zstd.ZSTD_compressBound.restype = _zstd.ZSTD_compress.restype = ctypes.c_size_t
_zstd.ZSTD_decompress.restype = ctypes.c_size_t


def compress(body: Any) -> Any:
    """One frame of level 1."""
    bound = ctypes.c_size_t(body.numel())
    frame = torch.empty(_zstd.ZSTD_compressBound(bound), dtype=torch.uint8)
    size = _zstd.ZSTD_compress(
        ctypes.c_void_p(frame.data_ptr()),
        ctypes.c_size_t(frame.numel()),
        ctypes.c_void_p(body.data_ptr()),
        bound,
        1,
    )
    return frame[:size].clone()


def expand(frame: Any, size: int) -> Any:
    """The inverse, for `size` bytes."""
    body = torch.empty(size, dtype=torch.uint8)
    found = _zstd.ZSTD_decompress(
        ctypes.c_void_p(body.data_ptr()),
        ctypes.c_size_t(size),
        ctypes.c_void_p(frame.data_ptr()),
        ctypes.c_size_t(frame.numel()),
    )
    assert found == size
    return body


def words_of(tensor: Any) -> Any:
    """The same bits as integers."""
    return tensor.view(WORDS[tensor.element_size()])


@dataclass(frozen=True)
class Row:
    """What a payload says of one tensor's changes, beside its body."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    gaps: Any  # their integer type
    gaps_at: int  # byte of the body
    masks_at: int
    count: int


@dataclass(frozen=True)
class Payload:
    """Gaps and masks of some tensors in one compressed body."""

    rows: tuple[Row, ...]
    frame: Any
    body_bytes: int
    digest: bytes  # of the frame


@dataclass(frozen=True)
class Item:
    """A row, decoded."""

    row: Row
    positions: Any
    masks: Any


def digest_of(frame: Any) -> bytes:
    return hashlib.blake2b(frame.numpy(), digest_size=16).digest()


def _seal(parts: list[tuple[str, Any, Any, Any]]) -> Payload:
    """A payload of (name, tensor, gaps, masks)."""
    rows, buffers, at = [], [], 0

    def append(buffer: Any) -> int:
        nonlocal at
        begin = at
        raw = buffer.view(torch.uint8)
        buffers.append(raw)
        if raw.numel() % 8:  # the next one may have wider words
            buffers.append(torch.zeros(8 - raw.numel() % 8, dtype=torch.uint8))
        at = begin + -(-raw.numel() // 8) * 8
        return begin

    places = [append(gaps) for _, _, gaps, _ in parts]
    for (name, tensor, gaps, masks), place in zip(parts, places, strict=True):
        shape = tuple(tensor.shape)
        rows.append(
            Row(name, tensor.dtype, shape, gaps.dtype, place, append(masks), masks.numel())
        )
    body = torch.cat(buffers)
    frame = compress(body)
    return Payload(tuple(rows), frame, body.numel(), digest_of(frame))


def payloads(
    old: Mapping[str, Any], new: Mapping[str, Any], bucket_bytes: int = 512 << 20
) -> list[Payload]:
    """What changed, whole tensors in a payload until their bytes make a bucket (paper C)."""
    made, parts, filled = [], [], 0
    for name, tensor in new.items():
        difference = words_of(old[name]).view(-1) ^ words_of(tensor).view(-1)
        positions = difference.nonzero().view(-1)
        filled += tensor.nbytes
        if positions.numel():
            gaps = positions.diff(prepend=positions.new_tensor([-1])) - 1
            largest = int(gaps.max())
            dtype = next(one for one in GAPS if largest <= torch.iinfo(one).max)
            parts.append((name, tensor, gaps.to(dtype), difference[positions]))
        if filled >= bucket_bytes and parts:
            made.append(_seal(parts))
            parts, filled = [], 0
    return [*made, _seal(parts)] if parts else made


def fold_masked(resident: Any, masks: Any) -> None:
    """Only where the mask is not zero, as NeMo RL does it."""
    active = masks.ne(0)
    new = resident.masked_select(active) ^ masks.masked_select(active)
    resident.masked_scatter_(active, new)


def fold_indexed(resident: Any, masks: Any) -> None:
    """The same by indices: the quickest masked way that we know on a CPU."""
    active = masks.nonzero(as_tuple=True)
    resident.index_put_(active, resident[active] ^ masks[active])


def fold_unmasked(resident: Any, masks: Any) -> None:
    """Everywhere: the same bits, but every word of the copy is written."""
    resident.bitwise_xor_(masks)


FOLDS = {"masked": fold_masked, "indexed": fold_indexed, "unmasked": fold_unmasked}


class _Hook(TorchDispatchMode):
    """Folds masks into the loader's final copies."""

    def __init__(self, targets: set[int], scratch: int, fold: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self._targets, self._scratch, self._fold = targets, scratch, fold
        self._written: list[tuple[int, int, int]] = []  # storage, first and last word
        self.copies = 0

    def next_item(self) -> None:
        self._written.clear()
        self.copies = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        destination, source = args[:2]
        storage = destination.untyped_storage()._cdata
        if storage not in self._targets:
            return func(*args, **(kwargs or {}))
        if source.untyped_storage()._cdata != self._scratch or source.dtype != destination.dtype:
            raise RuntimeError("the loader changes what it copies")
        self._check_disjoint(storage, destination)
        self.copies += 1
        self._fold(words_of(destination), words_of(source.expand_as(destination)))
        return destination

    def _check_disjoint(self, storage: int, destination: Any) -> None:
        first = destination.storage_offset()
        last = first + sum(
            (size - 1) * stride
            for size, stride in zip(destination.shape, destination.stride(), strict=True)
        )
        for other, begin, end in self._written:
            if other == storage and first <= end and begin <= last:
                raise RuntimeError("copies of one tensor overlap")
        self._written.append((storage, first, last))


class ScratchReceiver:
    """One rank's receiver. `fold`: one of `FOLDS`."""

    def __init__(
        self,
        module: Any,
        tensors: Mapping[str, Any],
        load_weights: Callable[[Iterable[tuple[str, Any]]], object],
        *,
        fold: str = "masked",
    ) -> None:
        self._load_weights = load_weights
        self._targets = {
            one.untyped_storage()._cdata for one in (*module.parameters(), *module.buffers())
        }
        largest = max(tensor.nbytes for tensor in tensors.values())
        self._scratch = torch.empty(largest, dtype=torch.uint8)
        self._fold = FOLDS[fold]

    def decode(self, payload: Payload) -> list[Item]:
        """Checks and expands a payload."""
        assert digest_of(payload.frame) == payload.digest
        body = expand(payload.frame, payload.body_bytes)
        items = []
        for row in payload.rows:
            gaps_end = row.gaps_at + row.count * row.gaps.itemsize
            gaps = body[row.gaps_at : gaps_end].view(row.gaps)
            word = WORDS[row.dtype.itemsize]
            masks = body[row.masks_at : row.masks_at + row.count * word.itemsize].view(word)
            positions = gaps.to(torch.int64).add_(1).cumsum_(0).sub_(1)
            items.append(Item(row, positions, masks))
        return items

    def apply(self, items: Iterable[Item]) -> None:
        """Applies decoded items, all in one call of the loader."""
        scratch_storage = self._scratch.untyped_storage()._cdata
        hook = _Hook(self._targets, scratch_storage, self._fold)

        def scratches() -> Iterator[tuple[str, Any]]:
            for item in items:
                hook.next_item()
                row = item.row
                size = torch.Size(row.shape).numel() * row.dtype.itemsize
                scratch = self._scratch[:size].view(row.dtype).view(row.shape)
                scratch.zero_()
                words_of(scratch).view(-1).index_put_((item.positions,), item.masks)
                yield row.name, scratch
                if hook.copies == 0:
                    raise RuntimeError(f"the loader copies nothing of {row.name!r}")

        with torch.no_grad(), hook:
            self._load_weights(scratches())
