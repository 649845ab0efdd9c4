"""SGLang's custom weight loader, with workers that call it as SGLang's do."""

import importlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dcr.errors
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import dcr.sglang  # noqa: E402
from refits import StateOwner, changed  # noqa: E402
from test_tracer import served  # noqa: E402
from test_tracer_refits import transition  # noqa: E402
from torch_loaders import Served, all_bytes, checkpoint, group_of_one  # noqa: E402


class Worker:
    """What SGLang's model runner does with an update, on one tensor parallel rank."""

    def __init__(self, model: Any, custom_weight_loader: list[str]) -> None:
        self.model, self.custom_weight_loader = model, custom_weight_loader

    def update_weights_from_tensor(
        self, named_tensors: list[tuple[str, Any]], load_format: str | None = None
    ) -> tuple[bool, str]:
        # Serialised for each rank, and put on its device.
        named_tensors = [(name, tensor.clone()) for name, tensor in named_tensors]
        if load_format in self.custom_weight_loader:
            module, function = load_format.rsplit(".", 1)
            getattr(importlib.import_module(module), function)(self.model, named_tensors)
        elif load_format is None:
            self.model.load_weights(named_tensors)
        else:
            raise NotImplementedError(f"Unknown load_format={load_format}")
        return True, "Success"


Send = Callable[[list[tuple[str, Any]]], None]


def engine(tensors: dict[str, Any], size: int) -> tuple[list[Worker], Send]:
    workers = [
        Worker(served(rank, size, tensors), ["dcr.sglang.load_weights"]) for rank in range(size)
    ]

    def send(messages: list[tuple[str, Any]]) -> None:
        for worker in workers:
            done = worker.update_weights_from_tensor(messages, dcr.sglang.LOAD_FORMAT)
            assert done == (True, "Success")

    return workers, send


@pytest.mark.parametrize("size", [1, 2])
def test_refits_equal_dense_loads(size: int, tmp_path: Path) -> None:
    tensors = checkpoint(size)
    state = StateOwner(tensors)
    owner = state.owner
    workers, send = engine(tensors, size)
    send(dcr.sglang.declaration(owner, tmp_path))
    needs = dcr.sglang.read_needs(tmp_path)
    assert set(needs) == {"any", "overwrite", "dense", "skip"}
    before = [all_bytes(worker.model) for worker in workers]
    send(dcr.sglang.audit([owner.restore()], owner))
    assert [all_bytes(worker.model) for worker in workers] == before
    for step in range(3):
        tensors = transition(tensors, step, 0.2)
        state.set(tensors)
        send(dcr.sglang.refit([owner.prepare(needs=needs)], owner))
        if step == 1:  # a second attempt, as if the first had failed somewhere
            prepared = owner.prepare(needs=needs)
            send(dcr.sglang.refit([prepared], owner, overwrite_only=True))
        owner.commit()
        for rank, worker in enumerate(workers):
            assert all_bytes(worker.model) == all_bytes(served(rank, size, tensors)), step


def owners_of_replicas(tensors: dict[str, Any], count: int) -> list[StateOwner]:
    """Ranks of a trainer that hold the same, each of which owns a part."""
    said: dict[int, list[bytes]] = {rank: [] for rank in range(count)}
    barrier = threading.Barrier(count)

    def make(rank: int) -> StateOwner:
        def exchange(mine: bytes) -> list[bytes]:
            said[rank].append(mine)
            barrier.wait()
            turn = len(said[rank]) - 1
            return [said[other][turn] for other in range(count)]

        return StateOwner(tensors, exchange=exchange, rank=rank, ranks=count, bucket_bytes=256)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(make, range(count)))


def test_payloads_of_several_owners(tmp_path: Path) -> None:
    tensors = checkpoint(0)
    states = owners_of_replicas(tensors, 3)
    owners = [state.owner for state in states]
    workers, send = engine(tensors, 2)
    send(dcr.sglang.declaration(owners[0], tmp_path))
    needs = dcr.sglang.read_needs(tmp_path)
    send(dcr.sglang.audit([owner.restore() for owner in owners], owners[0]))
    for step in range(2):
        tensors = transition(tensors, step, 0.2)
        for state in states:
            state.set(tensors)
        prepared = [owner.prepare(needs=needs) for owner in owners]
        counts = {len(one.payloads) for one in prepared}
        assert max(counts) > min(counts)  # some have no turn when others do
        send(dcr.sglang.refit(prepared, owners[0]))
        for owner in owners:
            owner.commit()
        for rank, worker in enumerate(workers):
            assert all_bytes(worker.model) == all_bytes(served(rank, 2, tensors)), step


def test_what_is_not_the_owners_version_is_found(tmp_path: Path) -> None:
    tensors = checkpoint(0)
    state = StateOwner(tensors)
    (worker,), send = engine(tensors, 1)
    worker.model.stack.data = worker.model.stack.data.flip(0)  # packed after loading
    send(dcr.sglang.declaration(state.owner, tmp_path))
    before = all_bytes(worker.model)
    with pytest.raises(dcr.errors.Mismatch, match="resident words .* version 0"):
        send(dcr.sglang.audit([state.owner.restore()], state.owner))
    state.set(changed(tensors, 1, 0.1))
    with pytest.raises(dcr.errors.InvalidArgument, match="before the audit"):
        send(dcr.sglang.refit([state.owner.prepare()], state.owner))
    assert all_bytes(worker.model) == before


def test_what_cannot_be_refitted_is_refused(tmp_path: Path) -> None:
    tensors = checkpoint(0, "normalized")
    state = StateOwner(tensors)
    worker = Worker(served(0, 1, tensors, "normalized"), [dcr.sglang.LOAD_FORMAT])
    audit = dcr.sglang.audit([state.owner.restore()], state.owner)
    with pytest.raises(dcr.errors.InvalidArgument, match="no declaration"):
        worker.update_weights_from_tensor(audit, dcr.sglang.LOAD_FORMAT)
    with pytest.raises(dcr.errors.InvalidArgument, match="'norm' is no message"):
        worker.update_weights_from_tensor([("norm", tensors["norm"])], dcr.sglang.LOAD_FORMAT)
    with pytest.raises(dcr.errors.InvalidArgument, match="no worker"):
        dcr.sglang.read_needs(tmp_path)
    declaration = dcr.sglang.declaration(state.owner, tmp_path)
    worker.update_weights_from_tensor(declaration, dcr.sglang.LOAD_FORMAT)
    with pytest.raises(dcr.errors.Unsupported, match="'extra' is refused: .*") as refused:
        dcr.sglang.read_needs(tmp_path)
    assert refused.value.tensor == "extra"
    for reply in tmp_path.iterdir():
        reply.unlink()
    worker = Worker(Served(0, 1, "collective"), [dcr.sglang.LOAD_FORMAT])
    with group_of_one(tmp_path):
        worker.update_weights_from_tensor(declaration, dcr.sglang.LOAD_FORMAT)
    with pytest.raises(dcr.errors.Unsupported, match="'extra' is refused: its loader talks to"):
        dcr.sglang.read_needs(tmp_path)
    worker.model.post_load_weights = lambda: None
    with pytest.raises(dcr.errors.Unsupported, match="Served computes weights of its own"):
        worker.update_weights_from_tensor(declaration, dcr.sglang.LOAD_FORMAT)
