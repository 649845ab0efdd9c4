"""Parameters reached by torch's operations on integer views: the same bits as by the core's own
path, and as the definition says word by word."""

import random
from typing import Any

import dcr.errors
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from refits import StateOwner, changed, refit  # noqa: E402
from test_tracer import served  # noqa: E402
from test_tracer_refits import transition  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_loaders import all_bytes, checkpoint, random_words  # noqa: E402

from dcr.torch import ModelReceiver, operations  # noqa: E402
from dcr.torch.operations import TorchOperations  # noqa: E402

Dims = list[tuple[int, int, int, int]]


def random_grid(choose: random.Random) -> tuple[Dims, int]:
    """Dimensions whose windows do not overlap, and the words that they span."""
    dims: Dims = []
    stride, last = choose.randint(1, 2), 0
    for _ in range(choose.randint(0, 3)):
        size = choose.randint(1, choose.choice([4, 12, 40]))
        begin = choose.randint(0, size)
        end = choose.randint(begin, size)
        dims.insert(0, (size, stride, begin, end))
        last += max(end - begin - 1, 0) * stride
        stride *= end - begin + choose.randint(0, 2) + (begin == end)
    return dims, last + 1


def word_of(dims: Dims, index: int) -> int | None:
    """By its digits."""
    word = 0
    for number, (size, stride, begin, end) in reversed(list(enumerate(dims))):
        digit = index % size if number else index
        index //= size
        if not begin <= digit < end:
            return None
        word += (digit - begin) * stride
    return word if dims or index == 0 else None


def new_word(encoding: str, resident: int, value: int, bits: int) -> int:
    """docs/FORMAT.md "Encodings"."""
    if encoding == "overwrite":
        return value
    value = (value + 1) % (1 << bits)
    if encoding == "xor":
        return resident ^ value
    return (resident + ((value >> 1) ^ (-(value & 1)))) % (1 << bits)


def integers(raw: bytes, width: int) -> list[int]:
    words = range(0, len(raw), width)
    return [int.from_bytes(raw[at : at + width], "little") for at in words]


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("encoding", ["overwrite", "xor", "add"])
def test_applies_as_the_digits_say(
    width: int, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(150):
        choose = random.Random(seed)
        monkeypatch.setattr(operations, "_CHUNK", choose.choice([1, 7, 1 << 18]))
        dims, span = random_grid(choose)
        first, offset = choose.randint(0, 9), choose.randint(0, 9)
        positions = sorted(choose.sample(range(60), choose.randint(1, 60)))
        # Bytes of all kinds, and those at which words wrap around.
        some = lambda count: bytes(choose.choice([0, 1, 127, 128, 254, 255]) for _ in range(count))
        before, values = some((offset + span) * width + width - 1), some(len(positions) * width)
        raw = torch.frombuffer(bytearray(before), dtype=torch.uint8)
        expected, reached, different = integers(before[: len(before) // width * width], width), 0, 0
        verify = encoding == "overwrite" and choose.random() < 0.3
        for position, value in zip(positions, integers(values, width), strict=True):
            word = word_of(dims, position + first)
            if word is not None:
                resident = expected[offset + word]
                reached += 1
                different += verify and resident != value
                if not verify:
                    expected[offset + word] = new_word(encoding, resident, value, 8 * width)
        reach = TorchOperations()
        reach.add(5, raw.untyped_storage())
        buffer = memoryview(torch.tensor(positions, dtype=torch.int32).numpy()).cast("B")
        found = reach.apply(
            5, width, encoding, first, offset, dims, buffer, memoryview(bytearray(values)), verify
        )
        assert found == (reached, different), seed
        after = raw.numpy().tobytes()
        assert integers(after[: len(expected) * width], width) == expected, seed
        assert after[len(expected) * width :] == before[len(expected) * width :]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_views_are_copied_in_their_order(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    views = [
        lambda one: one[3:],
        lambda one: one[3],
        lambda one: one[:200].view(10, 20).t(),
        lambda one: one[6:].view(-1, 6)[:, 2:5],
        lambda one: one[:240].view(4, 5, 12).permute(2, 0, 1)[::3, 1:],
        lambda one: one[:0],
    ]
    for chunk in (1, 7, 1 << 18):
        monkeypatch.setattr(operations, "_CHUNK", chunk)
        for number, view in enumerate(views):
            held = random_words((300,), generator, dtype)
            part = view(held)
            reach = TorchOperations()
            reach.add(0, held.untyped_storage())
            lies = (0, dtype.itemsize, part.storage_offset(), list(part.shape), list(part.stride()))
            if part.numel() == 0:
                continue
            out = bytearray(part.nbytes)
            reach.read(*lies, memoryview(out))
            assert bytes(out) == part.contiguous().numpy().tobytes(), (chunk, number)
            new = random_words(tuple(part.shape), generator, dtype)
            expected = held.clone()
            view(expected).copy_(new)
            reach.write(*lies, memoryview(bytearray(new.contiguous().numpy().tobytes())))
            assert torch.equal(held, expected), (chunk, number)


def test_words_past_the_end_are_refused_before_any_is_written() -> None:
    held = torch.zeros(10, dtype=torch.int16)
    reach = TorchOperations()
    reach.add(0, held.untyped_storage())
    positions = memoryview(torch.tensor([0, 1], dtype=torch.int32).numpy()).cast("B")
    with pytest.raises(dcr.errors.InvalidArgument, match="word 10 of a storage of 10 words"):
        dims = [(2, 10, 0, 2)]
        reach.apply(0, 2, "xor", 0, 0, dims, positions, memoryview(bytearray(4)), False)
    with pytest.raises(dcr.errors.InvalidArgument, match="word 10 of"):
        reach.write(0, 2, 1, [2, 5], [5, 1], memoryview(bytearray(b"x" * 20)))
    with pytest.raises(dcr.errors.InvalidArgument, match="word 11 of"):
        reach.read(0, 2, 3, [2, 2], [7, 1], memoryview(bytearray(8)))
    assert not held.any()


class Sizes(TorchDispatchMode):
    """The largest tensor that an operation has made, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.words = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not any(
            argument.alias_info is not None for argument in func._schema.arguments
        ):
            self.words = max(self.words, result.numel())
        return result


def test_memory_is_not_in_proportion_to_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_CHUNK", 100)
    count = 5000
    held = torch.zeros(count, dtype=torch.int32)
    reach = TorchOperations()
    reach.add(0, held.untyped_storage())
    positions = memoryview(torch.arange(count, dtype=torch.int32).numpy()).cast("B")
    content = memoryview(bytearray(b"\x03" * 4 * count))
    with Sizes() as sizes:
        reach.apply(0, 4, "add", 0, 0, [(count, 1, 0, count)], positions, content, False)
        reach.read(0, 4, 0, [count // 10, 10], [1, count // 10], content)
        reach.write(0, 4, 0, [count // 10, 10], [1, count // 10], content)
    assert 0 < sizes.words <= 100


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("encoding", ["xor", "add", "overwrite"])
@pytest.mark.parametrize("prefer_scratch", [False, True])
def test_refits_equal_the_core_s_own(size: int, encoding: Any, prefer_scratch: bool) -> None:
    tensors = checkpoint(size)
    state = StateOwner(tensors)
    modules, receivers = {}, []
    for rank in range(size):
        for by_torch in (False, True):
            module = modules[rank, by_torch] = served(rank, size, tensors)
            receiver = ModelReceiver(
                module,
                tensors,
                owners=state.owner.boxes,
                prefer_scratch=prefer_scratch,
                post_apply_checks=rank == 1,
                torch_operations=by_torch,
            )
            receiver.prewarm()
            receiver.audit(tensors)
            receivers.append(receiver)
        core, by_torch = receivers[-2:]
        assert {name: str(one) for name, one in core.classes.items()} == {
            name: str(one) for name, one in by_torch.classes.items()
        }
        assert all_bytes(module) == all_bytes(served(rank, size, tensors))
    for step, rate in enumerate((0.3, 0.02, 1.0)):
        tensors = transition(tensors, step, rate)
        counts = refit(state, tensors, receivers, encoding=encoding)
        for core, by_torch in zip(counts[::2], counts[1::2], strict=True):
            assert core.destinations == by_torch.destinations
            assert core.checked == by_torch.checked
        for (rank, _), module in modules.items():
            assert all_bytes(module) == all_bytes(served(rank, size, tensors)), (step, rank)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
]


class Strided(torch.nn.Module):
    """A parameter of each dtype: whole, turned, every other column, a slice of a shared storage."""

    def __init__(self) -> None:
        super().__init__()
        for number, dtype in enumerate(DTYPES):
            raw = torch.zeros(24 * 4 * dtype.itemsize, dtype=torch.uint8).view(dtype)
            parts = raw[:24].view(4, 6), raw[24:48].view(6, 4).t(), raw[48:].view(4, 12)[:, ::2]
            for shape, part in enumerate(parts):
                self.register_buffer(f"b{number}_{shape}", part)
            self.register_buffer(f"gap{number}", raw[49:].view(-1)[::2][:24])

    def load_weights(self, weights: Any) -> None:
        for name, value in weights:
            getattr(self, name).copy_(value)


def test_every_dtype_and_stride() -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"b{number}_{shape}": random_words((4, 6), generator, dtype)
        for number, dtype in enumerate(DTYPES)
        if dtype != torch.bool
        for shape in range(3)
    }
    tensors |= {f"b0_{shape}": torch.rand(4, 6, generator=generator) < 0.5 for shape in range(3)}
    modules = [Strided(), Strided()]
    state = StateOwner(tensors)
    receivers = []
    for module, by_torch in zip(modules, (False, True), strict=True):
        module.load_weights(tensors.items())
        receivers.append(
            ModelReceiver(
                module,
                tensors,
                owners=state.owner.boxes,
                never_loaded=["gap*"],
                torch_operations=by_torch,
                threads=1,
            )
        )
        assert {one.path for one in receivers[-1].prewarm().values()} == {"traced"}
        receivers[-1].audit(tensors)
    for step in range(6):
        whole = changed({n: t for n, t in tensors.items() if t.dtype != torch.bool}, step, 0.3)
        flags = {n: t.roll(step + 1, 0) for n, t in tensors.items() if t.dtype == torch.bool}
        tensors = {**whole, **flags}
        refit(state, tensors, receivers, encoding=("xor", "add", "overwrite")[step % 3])
        fresh = Strided()
        fresh.load_weights(tensors.items())
        for module in modules:
            assert all_bytes(module) == all_bytes(fresh), step


def test_what_operations_raise_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = checkpoint(0)
    state = StateOwner(tensors)
    module = served(0, 1, tensors)
    receiver = ModelReceiver(
        module, tensors, owners=state.owner.boxes, torch_operations=True, threads=4
    )
    receiver.prewarm()

    def fail(*_: Any) -> Any:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(TorchOperations, "apply", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        refit(state, transition(tensors, 1, 0.2), [receiver])
    monkeypatch.undo()
    with pytest.raises(dcr.errors.Unavailable, match="RuntimeError: the device is gone"):
        receiver.apply()  # the attempt has failed
    assert all_bytes(module) == all_bytes(served(0, 1, tensors))
    receiver.audit(tensors)
