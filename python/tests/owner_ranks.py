"""What each rank of the distributed tests does: all cases in one start of the processes."""

import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import dcr
from dcr.torch import GroupExchange, ModelOwner
from dcr.torch.conversion import Export
from dcr.torch.source import local_tensor, source_shards, state_tensors
from owner_checks import State, check_transitions
from owner_models import make_model, perturb, saved, words

Wrap = Callable[[torch.nn.Module], torch.nn.Module]


class Odd(torch.nn.Module):
    """Sizes that nothing divides, sizes below the number of ranks, a buffer, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(5, 7)
        self.narrow = torch.nn.Linear(7, 2)
        self.one = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
        self.scale = torch.nn.Parameter(torch.randn(3, 5, 2))
        self.register_buffer("steps", torch.arange(6))


def make_odd() -> Odd:
    torch.manual_seed(3)
    return Odd()


def gather(payloads: list[bytes], group: Any = None) -> list[list[bytes]]:
    gathered: list[list[bytes]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(gathered, payloads, group=group)
    return gathered


def shard_layers(model: torch.nn.Module, mesh: DeviceMesh) -> torch.nn.Module:
    for layer in getattr(getattr(model, "model", None), "layers", ()):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: torch.nn.Module, mesh: DeviceMesh) -> torch.nn.Module:
    if isinstance(model, Odd):
        plan = {"wide": ColwiseParallel(), "narrow": RowwiseParallel()}
        return parallelize_module(model, mesh, plan)
    for layer in model.model.layers:
        plan = {
            f"self_attn.{name}_proj": RowwiseParallel() if name == "o" else ColwiseParallel()
            for name in "qkvo"
        }
        plan |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
        plan["mlp.down_proj"] = RowwiseParallel()
        parallelize_module(layer, mesh, plan)
    return model


def both(model: torch.nn.Module, mesh: DeviceMesh) -> torch.nn.Module:
    return shard_layers(tensor_parallel(model, mesh["tp"]), mesh["dp"])


def check_model(
    make: Callable[[], torch.nn.Module], wrap: Wrap, where: str, group: Any = None
) -> None:
    """A sharded model against the same model whole."""
    reference = make()
    model = wrap(make())
    whole = state_tensors(reference)

    def step(number: int) -> None:
        with torch.no_grad():
            for tensor in whole.values():
                perturb(tensor.detach(), number)
            for tensor in state_tensors(owner.source.model).values():
                perturb(local_tensor(tensor), number)

    def save() -> State:
        if isinstance(reference, Odd):
            return {name: tensor.detach().clone() for name, tensor in whole.items()}
        with tempfile.TemporaryDirectory() as directory:
            return saved(reference, Path(directory))

    exchange = None if group is None else GroupExchange(group)
    owner = ModelOwner(model, threads=1, exchange=exchange)
    sizes = [owner.sizes.source_elements]
    total: list[list[int]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(total, sizes, group=group)
    assert sum(one for of in total for one in of) == sum(one.numel() for one in whole.values())
    check_transitions(
        owner,
        partial(gather, group=group),
        step=step,
        saved=save,
        judge=dist.get_rank(group) == 0,
        where=where,
    )
    owner.close()


def check_group(ranks: list[int]) -> None:
    """A trainer that is a group of torch.distributed's ranks; the others know nothing of it."""
    mesh = DeviceMesh("cpu", ranks)  # of which all ranks make the groups
    if dist.get_rank() in ranks:
        where = f"ranks {ranks}"
        check_model(make_odd, lambda model: shard_layers(model, mesh), where, mesh.get_group())


def check_fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(make_odd().float(), device_id=torch.device("cpu"))
    try:
        ModelOwner(model)
    except dcr.errors.Unsupported as error:
        assert "FullyShardedDataParallel (FSDP1)" in str(error), error
    else:
        raise AssertionError("FSDP1 was not refused")


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def moving(state: State) -> State:
    """What another program makes of the model, and only moves."""
    wide = state["wide.weight"]
    return {"top": wide[:3], "rest": wide[3:].t().contiguous(), "steps": state["steps"]}


def computing(rank: int | None) -> Callable[[State], State]:
    """What computes: shard by shard, of whole tensors on every rank, of what one rank has."""

    def export(state: State) -> State:
        made = {
            "wide": state["wide.weight"] * 1.5,
            "narrow": whole_of(state["narrow.weight"]).t().bfloat16(),
            "steps": state["steps"],
        }
        for owner, name in enumerate(("wide.bias", "narrow.bias")):
            bias = whole_of(state[name]) + 1
            if rank in (None, owner):
                made[name] = bias
        return made

    return export


def check_export(wrap: Wrap, mine: Export, of_whole: Export, where: str) -> None:
    """A sharded model whose checkpoint a user's function makes, against the same function's of the
    model whole."""
    whole = state_tensors(make_odd())
    owner = ModelOwner(wrap(make_odd()), export=mine, threads=1)
    assert owner.source.computed == (mine is not moving)

    def step(number: int) -> None:
        with torch.no_grad():
            for tensor in whole.values():
                perturb(tensor.detach(), number, nans=mine is moving)
            for tensor in state_tensors(owner.source.model).values():
                perturb(local_tensor(tensor), number, nans=mine is moving)

    def save() -> State:
        return {name: one.detach().clone() for name, one in of_whole(whole).items()}

    check_transitions(
        owner, gather, step=step, saved=save, judge=dist.get_rank() == 0, where=where
    )
    owner.close()


def check_arithmetic(mesh: DeviceMesh) -> None:
    """Every placement of small tensors against torch's own local tensors."""
    kinds = [Replicate(), Shard(0), Shard(1)]
    for shape in product(range(6), (1, 3, 4)):
        whole = torch.arange(shape[0] * shape[1]).view(shape)
        for placements in product(kinds, repeat=mesh.ndim):
            tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
            shards = source_shards("tensor", tensor)
            local = tensor.to_local()
            assert shards.empty or shards.local_shape == tuple(local.shape)
            rows = [torch.arange(begin, end) for begin, end in shards.runs[0]]
            columns = [torch.arange(begin, end) for begin, end in shards.runs[1]]
            if shards.empty:
                assert local.numel() == 0
                continue
            assert torch.equal(whole[torch.cat(rows)][:, torch.cat(columns)], local)


def check_refusals(mesh: DeviceMesh) -> None:
    """Errors come on every rank, by name."""
    module = torch.nn.Module()
    module.partial_sums = torch.nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Partial()]))
    try:
        ModelOwner(module)
        raise AssertionError("Partial was taken")
    except dcr.errors.Unsupported as error:
        assert "partial_sums" in str(error) and "Partial" in str(error), error
    adapter = torch.nn.Linear(3, 3)
    if dist.get_rank() == 1:
        adapter = type("Lora", (torch.nn.Linear,), {"__module__": "peft.tuners"})(3, 3)
    try:
        ModelOwner(adapter)
        raise AssertionError("an adapter was taken")
    except dcr.errors.Unsupported as error:  # on both
        assert "PEFT" in str(error), error
        assert dist.get_rank() == 1 or "rank 1 has no owner" in str(error), error
    different = torch.nn.Linear(3, 3)
    with torch.no_grad():
        different.weight.fill_(1)
        different.bias.fill_(dist.get_rank())
    try:
        ModelOwner(different)
        raise AssertionError("different replicas were taken")
    except dcr.errors.Mismatch as error:
        assert '"bias"' in str(error) and "rank 0 and rank 1" in str(error), error


def cases(world: int) -> Iterator[tuple[str, Callable[[], None]]]:
    flat = init_device_mesh("cpu", (world,))
    yield "refusals", partial(check_refusals, flat)
    yield "arithmetic, one dimension", partial(check_arithmetic, flat)
    makers: dict[str, Callable[[], torch.nn.Module]] = {"odd": make_odd}
    for name in ("Qwen3", "Qwen3-MoE", "Qwen2, tied"):
        makers[name] = partial(make_model, name)
    wraps: dict[str, Wrap] = {"FSDP2": lambda model: shard_layers(model, flat)}
    if world == 2:
        wraps["TP"] = lambda model: tensor_parallel(model, flat)
        wraps["DDP"] = torch.nn.parallel.DistributedDataParallel
        yield "FSDP1", check_fsdp1
    else:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        yield "arithmetic, two dimensions", partial(check_arithmetic, square)
        yield "a group of ranks", partial(check_group, [1, 3])
        wraps["HSDP"] = lambda model: shard_layers(model, square)
        wraps["FSDP2 and TP"] = lambda model: both(model, square)
    for wrapped, wrap in wraps.items():
        where = f"exports under {wrapped}"
        rank = dist.get_rank()
        yield f"{where}, moving", partial(check_export, wrap, moving, moving, where)
        yield (
            f"{where}, computing",
            partial(check_export, wrap, computing(rank), computing(None), where),
        )
    for (wrapped, wrap), (name, make) in product(wraps.items(), makers.items()):
        if "TP" in wrapped and "MoE" in name:
            continue
        where = f"{name} under {wrapped}"
        yield where, partial(check_model, make, wrap, where)


def run(rank: int, world: int, store: str, results: str) -> None:
    """Runs all cases and writes what failed."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world
    )
    said = []
    for name, case in cases(world):
        try:
            case()
            said.append(f"{name}: ok")
        except BaseException:
            said.append(f"{name}: failed\n{traceback.format_exc()}")
            break  # the other ranks wait elsewhere now
    Path(f"{results}.{rank}").write_text("\n".join(said))
    if "failed" not in said[-1]:
        dist.destroy_process_group()
