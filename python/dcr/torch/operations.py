"""Words of torch storages, read and changed by torch's own operations on integer views: what
refits a module on any device."""

from collections.abc import Iterator, Sequence

import torch

from dcr.errors import InvalidArgument

Dimension = tuple[int, int, int, int]  # size, stride, begin, end

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 18  # words at a time: what an operation allocates is in proportion to this


class TorchOperations:
    """What `OperationTargets` of the core ask for. Nothing allocates in proportion to a tensor or
    to what comes at once."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.Tensor] = {}

    def add(self, number: int, storage: torch.UntypedStorage) -> None:
        """Makes a storage known under the id that it has there."""
        raw = torch.empty(0, dtype=torch.uint8, device=storage.device)
        self._storages[number] = raw.set_(storage)

    def remove(self, number: int) -> None:
        """Forgets it."""
        del self._storages[number]

    @torch.no_grad()
    def apply(
        self,
        storage: int,
        width: int,
        encoding: str,
        first: int,
        offset: int,
        dims: Sequence[Dimension],
        positions: memoryview,
        values: memoryview,
        verify: bool,
    ) -> tuple[int, int]:
        """Applies changes; returns the words that they reached and, for `verify`, that differ."""
        words = self._words(storage, width)
        _check_reach(words, offset, [(end - begin, stride) for _, stride, begin, end in dims])
        reached = different = 0
        every_position = torch.frombuffer(positions, dtype=torch.int32)
        every_value = torch.frombuffer(values, dtype=_WORDS[width])
        for begin in range(0, every_position.numel(), _CHUNK):
            index = every_position[begin : begin + _CHUNK].to(words.device, torch.int64) + first
            value = every_value[begin : begin + _CHUNK].to(words.device)
            at, hit = _locate(index, offset, dims)
            at, value = at[hit], value[hit]
            reached += at.numel()
            if verify:
                different += int(words[at].ne(value).sum())
            elif encoding == "overwrite":
                words.index_copy_(0, at, value)
            else:
                words.index_copy_(0, at, _changed(encoding, words[at], value))
        return reached, different

    @torch.no_grad()
    def read(
        self,
        storage: int,
        width: int,
        offset: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        out: memoryview,
    ) -> None:
        """Copies a view's words out, in the order of its indices."""
        words, copy = self._words(storage, width), torch.frombuffer(out, dtype=_WORDS[width])
        for here, at in _chunks(words, offset, sizes, strides):
            copy[here].copy_(words[at])

    @torch.no_grad()
    def write(
        self,
        storage: int,
        width: int,
        offset: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        content: memoryview,
    ) -> None:
        """Copies words in."""
        words, copy = self._words(storage, width), torch.frombuffer(content, dtype=_WORDS[width])
        for here, at in _chunks(words, offset, sizes, strides):
            if isinstance(at, slice):
                words[at].copy_(copy[here])
            else:
                words.index_copy_(0, at, copy[here].to(words.device))

    def synchronize(self) -> None:
        """Returns when everything has reached the storages."""
        for device in {raw.device for raw in self._storages.values()}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)

    def _words(self, storage: int, width: int) -> torch.Tensor:
        raw = self._storages[storage]
        return raw[: raw.numel() // width * width].view(_WORDS[width])


def _check_reach(words: torch.Tensor, offset: int, spans: Sequence[tuple[int, int]]) -> None:
    """That all words of a grid of these sizes and strides are there, before any is touched."""
    if any(size == 0 for size, _ in spans):
        return
    last = offset + sum((size - 1) * stride for size, stride in spans)
    if last >= words.numel():
        raise InvalidArgument(f"word {last} of a storage of {words.numel()} words")


def _locate(
    index: torch.Tensor, offset: int, dims: Sequence[Dimension]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The word of each index of the grid, and which of them lie in all windows."""
    at = torch.full_like(index, offset)
    hit = torch.ones_like(index, dtype=torch.bool)
    for size, stride, begin, end in reversed(dims[1:]):
        digit = index % size
        index = index.div(size, rounding_mode="floor")
        hit &= (digit >= begin) & (digit < end)
        at += (digit - begin) * stride
    if not dims:
        return at, hit & (index == 0)
    _, stride, begin, end = dims[0]
    return at + (index - begin) * stride, hit & (index >= begin) & (index < end)


def _changed(encoding: str, resident: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """New words, as docs/FORMAT.md "Encodings" has it: integers wrap around."""
    value = value + 1
    if encoding == "xor":
        return resident ^ value
    bits = 8 * resident.element_size()
    half = (value >> 1) & ((1 << (bits - 1)) - 1)  # of the unsigned word
    return resident + (half ^ (0 - (value & 1)))


def _chunks(
    words: torch.Tensor, offset: int, sizes: Sequence[int], strides: Sequence[int]
) -> Iterator[tuple[slice, slice | torch.Tensor]]:
    """A view's words piece by piece: where in the order of its indices, and where in `words`."""
    _check_reach(words, offset, list(zip(sizes, strides, strict=True)))
    dims = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    count = 1
    contiguous = True
    for size, stride in reversed(dims):
        contiguous = contiguous and stride == count
        count *= size
    for begin in range(0, count, _CHUNK):
        end = min(begin + _CHUNK, count)
        if contiguous:
            yield slice(begin, end), slice(offset + begin, offset + end)
            continue
        index = torch.arange(begin, end, device=words.device)
        grid = [(size, stride, 0, size) for size, stride in dims]
        yield slice(begin, end), _locate(index, offset, grid)[0]
