"""A canonical state dict that payloads are applied to, and what owners must bring it to. Ranks as
threads."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from dcr.torch import ModelOwner, ModelReceiver
from owner_models import words

State = dict[str, torch.Tensor]
# Gathers from all ranks, in order.
Gather = Callable[[list[bytes]], list[list[bytes]]]


class _Canonical(torch.nn.Module):
    """Canonical tensors as they are, one buffer each."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.names = {name: f"tensor{i}" for i, name in enumerate(state)}
        for name, tensor in state.items():
            self.register_buffer(self.names[name], tensor.clone())

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            getattr(self, self.names[name]).copy_(tensor)

    def state(self) -> State:
        return {name: getattr(self, buffer) for name, buffer in self.names.items()}


class CanonicalReceiver:
    """Applies all ranks' payloads to a canonical state dict."""

    def __init__(self, owner: ModelOwner, state: Mapping[str, torch.Tensor]) -> None:
        assert [name for name, _, _ in owner.tensors] == sorted(state)
        for name, _, shape in owner.tensors:
            assert tuple(state[name].shape) == shape, name
        self.module = _Canonical(state)
        self.receiver = ModelReceiver(
            self.module, state, self.module.load_weights, owners=owner.boxes, threads=1
        )
        self.receiver.prewarm()
        self.run = owner.run

    def apply(self, attempt: int, base: int, target: int, payloads: Sequence[list[bytes]]) -> None:
        self.receiver.begin(
            run=self.run, attempt=attempt, base_version=base, target_version=target
        )
        for rank, sent in enumerate(payloads):
            for payload in sent:
                assert self.receiver.ingest(payload) == "queued"
            self.receiver.end_of_owner(rank, len(sent))
        self.receiver.apply()
        self.receiver.finish()

    def compare(self, want: Mapping[str, torch.Tensor], where: str) -> None:
        state = self.module.state()
        assert state.keys() == want.keys()
        for name, tensor in want.items():
            assert state[name].dtype == tensor.dtype, (where, name)
            same = torch.equal(words(state[name].contiguous()), words(tensor.contiguous()))
            assert same, (where, name)


# Mode and encoding of one transition after the other; the first is the whole model.
TRANSITIONS = [
    ("dense", None),
    ("mixed", None),
    ("mixed", "xor"),
    ("mixed", "add"),
    ("mixed", "overwrite"),
    ("overwrite", None),
    ("dense", None),
]


def check_transitions(
    owner: ModelOwner,
    gather: Gather,
    *,
    step: Callable[[int], None],
    saved: Callable[[], State],
    judge: bool,
    where: str,
) -> None:
    """Refits after each step; where `judge`, what receivers get is compared with what is saved."""
    receiver = None
    if judge:
        receiver = CanonicalReceiver(
            owner, {name: torch.zeros_like(tensor) for name, tensor in saved().items()}
        )
    for number, (mode, encoding) in enumerate(TRANSITIONS, start=1):
        if number > 1:
            step(number)
        refit = owner.prepare(mode=mode, encoding=encoding)
        payloads = gather(refit.payloads)
        if receiver is not None:
            receiver.apply(owner.attempt, refit.base_version, refit.target_version, payloads)
            receiver.compare(saved(), f"{where}: transition {number}, {mode} {encoding}")
        owner.commit()


class ThreadedRanks:
    """Trainer ranks as threads, which exchange bytes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._barrier = threading.Barrier(count, timeout=60)
        self._said = [b""] * count

    def exchange(self, rank: int) -> Callable[[bytes], Sequence[bytes]]:
        def exchanged(mine: bytes) -> Sequence[bytes]:
            self._said[rank] = mine
            self._barrier.wait()
            of_all = list(self._said)
            self._barrier.wait()
            return of_all

        return exchanged

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(self._count) as threads:
            return list(threads.map(work, range(self._count)))
