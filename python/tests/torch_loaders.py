"""Small serving modules whose loaders do what real ones do: shards, fused and padded parameters,
stacks, casts, computed and constant values, and what no receiver can follow."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, INNER, VOCABULARY = 16, 4, 2, 4, 4, 8, 30


def parameter(*shape: int, dtype: Any = None) -> Any:
    """Memory that nobody has written: what a load leaves out shows."""
    dtype = dtype or torch.bfloat16
    raw = torch.full((torch.Size(shape).numel() * dtype.itemsize,), 0xA5, dtype=torch.uint8)
    return torch.nn.Parameter(raw.view(dtype).view(shape), requires_grad=False)


class Served(torch.nn.Module):
    """A layer as a serving runtime shards it over `size` ranks."""

    def __init__(self, rank: int, size: int, extra: str = "") -> None:
        super().__init__()
        self.rank, self.size, self.extra = rank, size, extra
        kv = max(1, KV_HEADS // size)
        self.q_rows, self.kv_rows = HEADS // size * HEAD, kv * HEAD
        self.copies = max(1, size // KV_HEADS)
        self.qkv = parameter(self.q_rows + 2 * self.kv_rows, HIDDEN)
        self.gate_up = parameter(2 * INNER // size, HIDDEN)
        self.down = parameter(HIDDEN, INNER // size)
        padded = -(-VOCABULARY // 8) * 8
        self.vocabulary = padded // size
        self.embedding = parameter(self.vocabulary, HIDDEN)
        self.stack = parameter(EXPERTS, INNER // size, HIDDEN)
        self.turned = parameter(EXPERTS, HIDDEN, INNER // size)
        self.router = parameter(EXPERTS, HIDDEN, dtype=torch.float32)
        self.decay = parameter(HEADS // size, dtype=torch.float32)
        self.scale = parameter(1)
        self.norm = parameter(HIDDEN)
        self.head = self.norm  # tied
        self.register_buffer("frequencies", torch.ones(3), persistent=False)
        if extra:
            self.extra_parameter = parameter(4, 6)
        self.kept: list[Any] = []

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Loads pairs of name and tensor, as vLLM's models do."""
        loaded = set()
        for name, value in weights:
            getattr(self, "load_" + name.split(".")[0])(value, name.split(".")[-1])
            loaded.add(name)
        return loaded

    def shard(self, value: Any, dim: int = 0) -> Any:
        size = value.shape[dim] // self.size
        return value.narrow(dim, self.rank * size, size)

    def load_q(self, value: Any, _: str) -> None:
        self.qkv.data.narrow(0, 0, self.q_rows).copy_(self.shard(value))

    def load_kv(self, value: Any, which: str) -> None:
        source = value.narrow(0, self.rank // self.copies * self.kv_rows, self.kv_rows)
        begin = self.q_rows + (self.kv_rows if which == "v" else 0)
        self.qkv.data[begin : begin + self.kv_rows] = source

    def load_mlp(self, value: Any, which: str) -> None:
        if which == "down":
            self.down.data.copy_(self.shard(value, 1))
        else:
            rows = INNER // self.size
            self.gate_up.data.narrow(0, rows * (which == "up"), rows).copy_(self.shard(value))

    def load_embedding(self, value: Any, _: str) -> None:
        begin = min(self.rank * self.vocabulary, VOCABULARY)
        end = min(begin + self.vocabulary, VOCABULARY)
        self.embedding[: end - begin].data.copy_(value[begin:end])
        self.embedding[end - begin :].data.fill_(0)

    def load_expert(self, value: Any, which: str) -> None:
        self.stack.data[int(which)].copy_(self.shard(value))

    def load_turned(self, value: Any, _: str) -> None:
        self.turned.data.copy_(self.shard(value, 1).permute(0, 2, 1).contiguous())

    def load_router(self, value: Any, _: str) -> None:
        self.router.data.copy_(value)

    def load_decay(self, value: Any, _: str) -> None:
        self.decay.data.copy_(self.shard(value))
        self.decay.data.copy_(-torch.exp(self.decay.float()))

    def load_scale(self, value: Any, _: str) -> None:
        self.scale.data.fill_(value.item())

    def load_norm(self, value: Any, _: str) -> None:
        self.norm.data.copy_(value)

    def load_head(self, value: Any, _: str) -> None:
        self.head.data.copy_(value)

    def load_skipped(self, value: Any, _: str) -> None:
        """A name of another rank's, or of nobody's."""

    def load_extra(self, value: Any, _: str) -> None:
        getattr(self, "extra_" + self.extra)(value)

    def extra_zeroed(self, value: Any) -> None:
        if self.rank != 0:
            value.zero_()
        self.extra_parameter.copy_(value)

    def extra_replaced(self, value: Any) -> None:
        self.extra_parameter.data = value.clone()

    def extra_exchanged(self, value: Any) -> None:
        self.extra_parameter = torch.nn.Parameter(value.clone(), requires_grad=False)

    def extra_set(self, value: Any) -> None:
        self.extra_parameter.set_(value.clone())

    def extra_kept(self, value: Any) -> None:
        self.kept = [value]

    def extra_thread(self, value: Any) -> None:
        thread = threading.Thread(target=self.extra_parameter.data.copy_, args=(value,))
        thread.start()
        thread.join()

    def extra_normalized(self, value: Any) -> None:
        self.extra_parameter.copy_(torch.nn.functional.normalize(value.float()))

    def extra_added(self, value: Any) -> None:
        self.extra_parameter.add_(value)

    def extra_indexed(self, value: Any) -> None:
        self.extra_parameter.index_copy_(0, torch.arange(4), value)

    def extra_cat(self, value: Any) -> None:
        torch.cat([value[2:], value[:2]], out=self.extra_parameter)

    def extra_foreach(self, value: Any) -> None:
        torch._foreach_copy_([self.extra_parameter], [value])

    def extra_doubled(self, value: Any) -> None:
        self.extra_parameter.copy_(value * 2)

    def extra_twice(self, value: Any) -> None:
        self.extra_parameter.copy_(value)
        self.extra_parameter.copy_(value.flip(0))

    def extra_unknown(self, value: Any) -> None:
        raise ValueError("no such module")

    def extra_clipped(self, value: Any) -> None:
        self.extra_parameter.copy_(value.nan_to_num(0.0).clamp(-1, 1))

    def extra_collective(self, value: Any) -> None:
        torch.distributed.all_reduce(torch.zeros(1))
        self.extra_parameter.copy_(value)

    def extra_row(self, value: Any) -> None:
        self.extra_parameter.copy_(value[1])

    def extra_swallowed(self, value: Any) -> None:
        try:
            self.extra_parameter.copy_(value[:, :3])
        except Exception:
            self.extra_parameter.copy_(value)


@contextmanager
def group_of_one(directory: Path) -> Iterator[None]:
    """torch.distributed's default group, of this process alone."""
    store = torch.distributed.FileStore(str(directory / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def random_words(shape: tuple[int, ...], generator: Any, dtype: Any = None) -> Any:
    """Any bits at all: NaN, signed zeros, infinities, subnormals."""
    dtype = dtype or torch.bfloat16
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


def checkpoint(seed: int, extra: str = "") -> dict[str, Any]:
    """Canonical tensors of a `Served`."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "q": (HEADS * HEAD, HIDDEN),
        "kv.k": (KV_HEADS * HEAD, HIDDEN),
        "kv.v": (KV_HEADS * HEAD, HIDDEN),
        "mlp.gate": (INNER, HIDDEN),
        "mlp.up": (INNER, HIDDEN),
        "mlp.down": (HIDDEN, INNER),
        "embedding": (VOCABULARY, HIDDEN),
        "turned": (EXPERTS, INNER, HIDDEN),
        "router": (EXPERTS, HIDDEN),
        "norm": (HIDDEN,),
        "head": (HIDDEN,),
        "scale": (1,),
        "skipped": (5,),
        "decay": (HEADS,),
    }
    for expert in range(EXPERTS):
        shapes[f"expert.{expert}"] = (INNER, HIDDEN)
    if extra:
        shapes["extra"] = (4, 6)
    tensors = {name: random_words(shape, generator) for name, shape in shapes.items()}
    tensors["decay"] = torch.randn(HEADS, generator=generator).bfloat16()
    tensors["head"] = tensors["norm"].clone()
    return tensors


def all_bytes(module: Any) -> dict[str, bytes]:
    """Every byte of every storage that the module has, under the first name that it has."""
    found: dict[int, tuple[str, bytes]] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        storage = tensor.untyped_storage()
        if storage._cdata not in found:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)
            found[storage._cdata] = (name, raw.numpy().tobytes())
    return dict(found.values())
