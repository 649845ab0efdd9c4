"""Tracing loaders of torch modules: paths, reasons, audits, and that nothing changes meanwhile."""

import copy
import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcr.errors
from forks import refused_in_child
from interrupts import interrupted_after

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_loaders import Served, all_bytes, checkpoint, group_of_one  # noqa: E402

from dcr.torch import ModelReceiver, trace_geometry, uneven_tensors  # noqa: E402
from dcr.torch.loader import named_tensors  # noqa: E402
from dcr.torch.placed import placement_from  # noqa: E402

RANKS = [(0, 1), (0, 2), (1, 2), (0, 4), (1, 4), (3, 4)]


def served(rank: int, size: int, tensors: dict[str, Any], extra: str = "") -> Served:
    module = Served(rank, size, extra)
    module.load_weights((name, value.clone()) for name, value in sorted(tensors.items()))
    return module


@pytest.mark.parametrize(("rank", "size"), RANKS)
@pytest.mark.parametrize("batch", [1, 256])
def test_paths(rank: int, size: int, batch: int) -> None:
    base = checkpoint(0)
    module = served(rank, size, base)
    before = all_bytes(module)
    receiver = ModelReceiver(module, base, batch_entries_max=batch)
    classes = receiver.prewarm()
    assert all_bytes(module) == before
    paths = {name: one.path for name, one in classes.items()}
    expected = dict.fromkeys(base, "traced")
    expected["decay"] = expected["router"] = "scratch"
    expected["scale"] = "dense"
    expected["skipped"] = "skip"
    expected["head"] = "skip"  # "norm" comes later and has the same bytes
    assert paths == expected
    assert classes["head"].tied
    assert classes["decay"].reason == "the loader computes or casts its values"
    assert classes["scale"].reason == "the loader writes it by no plain copy"
    assert classes["mlp.down"].bytes == 16 * 8 // size * 2
    receiver.audit(base)
    assert all_bytes(module) == before

@pytest.mark.parametrize(("rank", "size"), RANKS)
def test_placements_say_where_elements_are(rank: int, size: int) -> None:
    base = checkpoint(0)
    module = served(rank, size, base)
    receiver = ModelReceiver(module, base)
    receiver.prewarm()
    found = receiver.placements
    assert list(found) == sorted(base)
    assert found["decay"].path == "scratch" and found["decay"].parts == ()
    assert found["decay"].reason == "the loader computes or casts its values"
    parameters = dict(named_tensors(module))
    for name, placement in found.items():
        seen = 0
        for part in placement.parts:
            held = parameters[part.parameter]
            there = torch.as_strided(
                held,
                part.sizes,
                part.parameter_strides,
                held.storage_offset() + part.parameter_offset,
            )
            given = torch.as_strided(
                base[name].contiguous(), part.sizes, part.tensor_strides, part.tensor_offset
            )
            bits = [one.reshape(-1).contiguous().view(torch.uint8) for one in (there, given)]
            assert torch.equal(*bits)
            seen += given.nbytes
        assert seen == (placement.bytes if placement.path == "traced" else 0)
    assert pickle.loads(pickle.dumps(found)) == found


def placements_of(module: Any, base: dict[str, torch.Tensor]) -> dict[str, Any]:
    module.load_weights(base.items())
    receiver = ModelReceiver(module, base)
    receiver.prewarm()
    return receiver.placements


class Interleaved(torch.nn.Module):
    """Two parameters of every other column of one storage, loaded by halves of their rows."""

    def __init__(self) -> None:
        super().__init__()
        columns = torch.zeros(4, 12)
        self.even = torch.nn.Parameter(columns[:, ::2], requires_grad=False)
        self.odd = torch.nn.Parameter(columns[:, 1::2], requires_grad=False)

    def load_weights(self, weights: Any) -> None:
        for name, value in weights:
            parameter, row = name.split(".")
            getattr(self, parameter)[int(row) :][:2].copy_(value)


def test_placements_of_parameters_that_are_not_contiguous() -> None:
    base = {f"{name}.{row}": torch.randn(2, 6) for name in ("even", "odd") for row in (0, 2)}
    found = placements_of(Interleaved(), base)
    assert {name: one.parts[0].parameter for name, one in found.items()} == {
        name: name.split(".")[0] for name in base
    }
    assert {name: one.parts[0].parameter_offset for name, one in found.items()} == {
        "even.0": 0, "even.2": 24, "odd.0": 0, "odd.2": 24,
    }  # fmt: skip
    assert {len(one.parts) for one in found.values()} == {1}


def test_placements_may_begin_within_an_element() -> None:
    """A loader that fills bytes of words."""

    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Parameter(torch.zeros(6, dtype=torch.int32), requires_grad=False)

        def load_weights(self, weights: Any) -> None:
            for name, value in weights:
                self.words.view(torch.uint8).view(-1, 4)[:, int(name)].copy_(value)

    base = {str(byte): torch.randint(256, (6,)).to(torch.uint8) for byte in range(4)}
    found = placements_of(Packed(), base)
    assert {name: one.parts[0].parameter_offset for name, one in found.items()} == {
        name: int(name) for name in base
    }
    assert {one.parts[0].parameter for one in found.values()} == {"words"}


def test_paths_do_not_depend_on_batches() -> None:
    base = checkpoint(1)
    module = served(1, 2, base)
    alone = ModelReceiver(module, base, batch_entries_max=1)
    together = ModelReceiver(module, base, batch_entries_max=7)
    alone.prewarm()
    together.prewarm()
    assert alone.fingerprint() == together.fingerprint()


@pytest.mark.parametrize(("rank", "size"), RANKS)
def test_audit_finds_another_base(rank: int, size: int) -> None:
    base = checkpoint(0)
    module = served(rank, size, base)
    receiver = ModelReceiver(module, base)
    receiver.prewarm()
    for name, value in base.items():
        other = dict(base)
        other[name] = value.clone()
        other[name].view(torch.uint8)[...] ^= 0x41
        if name in ("skipped", "head"):
            receiver.audit(other)
            continue
        with pytest.raises(dcr.errors.Mismatch, match="resident words are not what its loader"):
            receiver.audit(other)


def test_audit_of_some_names() -> None:
    base = checkpoint(0)
    receiver = ModelReceiver(served(0, 1, base), base)
    receiver.prewarm()
    other = {name: value.clone() for name, value in base.items()}
    for name in ("mlp.gate", "decay"):
        other[name].view(torch.uint8)[...] ^= 0x41
    receiver.audit(other, [])
    receiver.audit(other, [name for name in other if name not in ("mlp.gate", "decay")])
    for name in ("mlp.gate", "decay"):
        with pytest.raises(dcr.errors.Mismatch) as error:
            receiver.audit(other, ["norm", name])
        assert error.value.tensor == name
    asked: list[str] = []

    def read(name: str) -> Any:
        asked.append(name)
        return base[name]

    receiver.audit(read, ["norm", "decay"])
    assert sorted(set(asked)) == ["decay", "norm"]
    with pytest.raises(dcr.errors.InvalidArgument, match="there is no tensor 'nothing'"):
        receiver.audit(base, ["nothing"])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_no_rank_has_is_found(size: int) -> None:
    base = checkpoint(0)
    ranks = [placements_of(Served(rank, size), base) for rank in range(size)]
    skipped = {"skipped": "every rank's loader skips it"}
    assert uneven_tensors(ranks) == skipped
    assert uneven_tensors([]) == {}
    if size == 1:
        return
    found = uneven_tensors(ranks[:-1])
    assert found.pop("skipped") == skipped["skipped"]
    rows, columns = base["mlp.gate"].numel(), base["mlp.down"].shape[1]
    assert found["mlp.gate"] == f"element {(size - 1) * rows // size} lies on no rank"
    assert found["mlp.down"] == f"element {(size - 1) * columns // size} lies on no rank"
    # Whole on every rank, or by a path whose elements are not known.
    assert not found.keys() & {"norm", "head", "scale", "decay", "router"}
    twice = uneven_tensors([*ranks, ranks[0]])
    first = base["mlp.gate"].numel() // size
    assert twice["mlp.gate"] == f"element {first} lies on 1 rank, element 0 on 2 ranks"
    assert "norm" not in twice


def test_placements_of_different_tensors_are_refused() -> None:
    base = checkpoint(0)
    one = placements_of(Served(0, 1), base)
    other = {name: placement for name, placement in one.items() if name != "norm"}
    for ranks in ([one, other], [other, one]):
        with pytest.raises(dcr.errors.InvalidArgument, match="different tensors, as of 'norm'"):
            uneven_tensors(ranks)
    for rank, ranks in enumerate([[{}, one], [one, {}]]):
        with pytest.raises(dcr.errors.InvalidArgument, match=f"rank {rank} has no placements"):
            uneven_tensors(ranks)
    damaged = replace(one["norm"], parts=(replace(one["norm"].parts[0], tensor_offset=1),))
    with pytest.raises(dcr.errors.Corrupt, match=r"rank 1: tensor \"norm\""):
        uneven_tensors([one, {**one, "norm": damaged}])


def test_placements_come_back_from_plain_data() -> None:
    base = checkpoint(0)
    for name, placement in placements_of(Served(1, 2), base).items():
        assert placement_from(json.loads(json.dumps(asdict(placement)))) == placement, name


def test_audit_finds_weights_that_were_permuted() -> None:
    base = checkpoint(0)
    module = served(0, 1, base)
    receiver = ModelReceiver(module, base)
    receiver.prewarm()
    half = module.gate_up.shape[0] // 2
    module.gate_up.data.copy_(module.gate_up.data.roll(half, 0))
    with pytest.raises(dcr.errors.Mismatch) as error:
        receiver.audit(base)
    assert error.value.tensor == "mlp.gate"


REFUSED = {
    "replaced": "the loader gives a parameter another storage",
    "exchanged": "the loader gives a parameter another storage",
    "set": "the loader gives a parameter another storage",
    "normalized": "an element of a parameter depends on several of the tensor's",
    "added": "what the loader writes depends on what the parameter held before",
    "kept": "the loader refuses it: Unsupported: the loader keeps the tensor that it was given",
    "unknown": "the loader refuses it: ValueError: no such module",
    "clipped": "the loader erases placeholders",
}
PATHS = {
    "indexed": ("dense", "the loader writes it by no plain copy"),
    "cat": ("dense", "the loader writes it by no plain copy"),
    "foreach": ("dense", "the loader writes it by no plain copy"),
    "doubled": ("scratch", "the loader computes or casts its values"),
    "row": ("traced", ""),
}


def prewarm_extra(extra: str, batch: int = 256, rank: int = 0) -> tuple[Served, Any, Any]:
    base = checkpoint(0, extra)
    module = Served(rank, 2, extra)
    receiver = ModelReceiver(module, base, batch_entries_max=batch)
    before = all_bytes(module)
    one = receiver.prewarm()["extra"]
    assert extra == "thread" or all_bytes(module) == before
    return module, receiver, one


@pytest.mark.parametrize("extra", sorted(REFUSED))
@pytest.mark.parametrize("batch", [1, 256])
def test_refused_by_reason(extra: str, batch: int) -> None:
    _, _, one = prewarm_extra(extra, batch)
    assert (one.path, one.reason) == ("refused", REFUSED[extra])


@pytest.mark.parametrize("extra", sorted(PATHS))
@pytest.mark.parametrize("batch", [1, 256])
def test_path_by_reason(extra: str, batch: int) -> None:
    _, _, one = prewarm_extra(extra, batch)
    assert (one.path, one.reason) == PATHS[extra]


@pytest.mark.parametrize("batch", [1, 256])
def test_loader_that_talks_to_other_ranks(batch: int, tmp_path: Path) -> None:
    with group_of_one(tmp_path):
        _, receiver, one = prewarm_extra("collective", batch)
    reason = "its loader talks to other ranks"
    assert (one.path, one.need, one.reason, one.collective) == ("scratch", "any", reason, True)
    assert [name for name, one in receiver.classes.items() if one.collective] == ["extra"]


def test_writes_from_another_thread() -> None:
    _, _, one = prewarm_extra("thread")
    assert one.path == "refused"
    assert one.reason.startswith('the loader writes to target "extra_parameter" past the hook')


def test_given_tensor_zeroed() -> None:
    """As a real loader does on every rank but the first."""
    _, _, first = prewarm_extra("zeroed", rank=0)
    assert first.path == "traced"
    _, _, second = prewarm_extra("zeroed", rank=1)
    assert second.path in ("skip", "scratch", "dense")


def test_two_writes_to_one_place() -> None:
    _, _, one = prewarm_extra("twice")
    assert one.path == "refused"


def test_failed_copy_that_the_loader_swallows() -> None:
    _, _, one = prewarm_extra("swallowed")
    assert one.path == "traced"


def test_parameter_that_no_name_reaches() -> None:
    base = checkpoint(0)
    module = served(0, 1, base)
    module.forgotten = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    with pytest.raises(dcr.errors.Mismatch, match="forgotten.*no load writes byte 0"):
        ModelReceiver(module, base).prewarm()
    ModelReceiver(module, base, never_loaded=["forg*"]).prewarm()
    with pytest.raises(dcr.errors.InvalidArgument, match="nothing-like-it"):
        ModelReceiver(module, base, never_loaded=["nothing-like-it"])


def test_parameters_that_move_after_prewarm() -> None:
    base = checkpoint(0)
    module = served(0, 1, base)
    receiver = ModelReceiver(module, base)
    receiver.prewarm()
    module.norm.data = module.norm.data.clone()
    with pytest.raises(dcr.errors.Mismatch, match="prewarm again"):
        receiver.begin(run=bytes(16), attempt=1, base_version=0, target_version=1)
    receiver.prewarm()
    receiver.begin(run=bytes(16), attempt=1, base_version=0, target_version=1)


def test_stopped_by_the_keyboard() -> None:
    base = checkpoint(0)
    module = served(0, 1, base)

    def load_weights(weights: Any) -> None:
        raise KeyboardInterrupt

    receiver = ModelReceiver(module, base, load_weights)
    with pytest.raises(KeyboardInterrupt):
        receiver.prewarm()


class Wide(torch.nn.Module):
    """Buffers that take seconds to read and, never written, no memory: 16 GB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        for i in range(256):
            block = torch.from_numpy(np.zeros(1 << 26, np.uint8))
            self.register_buffer(f"block{i}", block, persistent=False)


def test_ctrl_c_in_what_calls_no_loader() -> None:
    """The digests of prewarm, which are all of the core."""
    stages: list[str] = []
    receiver = ModelReceiver(Wide(), {"weight": torch.zeros(2)}, stage=stages.append)
    seconds = interrupted_after(0, receiver.prewarm, begun=lambda: bool(stages))
    print(f"prewarm: interrupted within {seconds:.2f} s")
    assert seconds < 5
    assert stages == ["digests"]


def test_one_call_at_a_time() -> None:
    base = checkpoint(0)
    module = served(0, 1, base)
    receiver: Any = None

    def load_weights(weights: Any) -> None:
        receiver.prewarm()

    receiver = ModelReceiver(module, base, load_weights, never_loaded=["*"])
    classes = receiver.prewarm()
    assert "one at a time" in classes["norm"].reason


def test_handle_of_one_process() -> None:
    base = checkpoint(0)
    receiver = ModelReceiver(served(0, 1, base), base)
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        copy.deepcopy(receiver._core)
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(receiver)
    calls = (receiver.prewarm, receiver.fingerprint, lambda: receiver.needs, receiver.apply)
    assert refused_in_child(calls) == len(calls)


def test_payload_that_is_none() -> None:
    base = checkpoint(0)
    module = served(0, 1, base)
    receiver = ModelReceiver(module, base)
    with pytest.raises(dcr.errors.InvalidArgument, match="before prewarm"):
        receiver.begin(run=bytes(16), attempt=1, base_version=0, target_version=1)
    receiver.prewarm()
    before = all_bytes(module)
    receiver.begin(run=bytes(16), attempt=1, base_version=0, target_version=1)
    with pytest.raises(dcr.errors.Corrupt):
        receiver.ingest(b"no payload")
    assert all_bytes(module) == before
    with pytest.raises(dcr.errors.InvalidArgument, match="16 bytes"):
        receiver.begin(run=b"1", attempt=1, base_version=0, target_version=1)


@pytest.mark.parametrize(("rank", "size"), RANKS)
def test_geometry_on_the_meta_device(rank: int, size: int) -> None:
    base = checkpoint(0)
    del base["scale"], base["turned"], base["decay"]
    module = served(rank, size, base)
    resident = ModelReceiver(module, base, never_loaded=["scale", "turned", "decay"]).prewarm()
    meta = Served(rank, size).to("meta")
    meta.head = meta.norm
    geometry = trace_geometry(meta, base, never_loaded=["scale", "turned", "decay"])
    for name, one in resident.items():
        found = geometry[name]
        assert (found.path, found.need, found.bytes) == (one.path, one.need, one.bytes), name


def test_geometry_leaves_values_open() -> None:
    base = checkpoint(0)
    meta = Served(1, 2).to("meta")
    meta.head = meta.norm
    geometry = trace_geometry(meta, base)
    assert geometry["turned"].path == "refused"
    assert geometry["turned"].reason == "only values show what its loader copies"
    assert geometry["scale"].path == "refused"


def test_plain_module_without_a_loader() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    base = {name: value.clone() for name, value in module.state_dict().items()}
    receiver = ModelReceiver(module, base)
    classes = receiver.prewarm()
    assert {one.path for one in classes.values()} == {"traced"}
    receiver.audit(base)
    unknown = ModelReceiver(module, {**base, "2.weight": torch.zeros(1)})
    assert "KeyError" in unknown.prewarm()["2.weight"].reason
