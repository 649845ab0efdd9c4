"""The rollout engines of an arm: they share the groups of a step, die, and come back."""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollout import Engine, Group, Response
from settings import ENGINES, Settings
from weights import Weights
from workers import Died, Worker


def start_engine(
    settings: Settings,
    seed: int,
    start: Path,
    weights: Weights,
    directory: Path,
    place: int,
    environment: Mapping[str, str] | None = None,
) -> Worker:
    """One engine, on a processor of its own as far as there are so many."""
    processors = sorted(os.sched_getaffinity(0))
    return Worker(
        f"engine {place}",
        directory / f"engine{place}.log",
        Engine,
        settings,
        seed,
        start / "serving",
        weights,
        place,
        environment={
            "VLLM_CPU_OMP_THREADS_BIND": str(processors[place % len(processors)]),
            **(environment or {}),
        },
    )


class Engines:
    """A place for each; a place whose engine died is empty until `start`."""

    def __init__(self, start_place: Callable[[int, Mapping[str, str]], Worker], chunk: int) -> None:
        self._start_place = start_place
        self._chunk = chunk
        self._workers: dict[int, Worker] = {}
        self._label = ""
        self._chunks: dict[int, deque[Sequence[Group]]] = {}
        self._responses: dict[Group, list[Response]] = {}
        self._doomed: set[int] = set()
        self._adopted: set[int] = set()  # that have a version
        self.regenerated = 0
        """Groups that were lost with their engine and made again."""
        for place in range(ENGINES):
            self.start(place)

    @property
    def live(self) -> list[int]:
        """The places that have an engine."""
        return sorted(self._workers)

    def start(self, place: int, environment: Mapping[str, str] | None = None) -> None:
        """Starts an engine in an empty place. It has nothing to do until the next `adopt`."""
        self._workers[place] = self._start_place(place, environment or {})

    def adopt(self, label: str) -> dict[int, str]:
        """Brings all to a version; a digest of what each engine that is still alive holds."""
        self._label = label
        self._call("adopt", label)
        digests = {}
        for place in self.live:
            try:
                digests[place] = self._workers[place].answer()
                self._adopted.add(place)
            except Died:
                self._bury(place)
        return digests

    def begin(self, groups: Sequence[Group]) -> None:
        """Shares groups out; engines answer with the version that they last adopted."""
        size = self._chunk
        self._chunks = {place: deque() for place in self.live if place in self._adopted}
        self._responses = {}
        self._share([groups[at : at + size] for at in range(0, len(groups), size)])

    def finish(self) -> dict[Group, list[Response]]:
        """All answers, when they are back. What an engine that died was to answer is answered by
        another, with the same version."""
        while waiting := [place for place in self.live if self._chunks.get(place)]:
            place = waiting[0]
            try:
                answered = self._workers[place].answer()
            except Died:
                self._bury(place)
                continue
            chunk = self._chunks[place].popleft()
            self._responses.update(zip(chunk, answered, strict=True))
        return self._responses

    def kill(self, place: int) -> None:
        """Ends an engine at once; it is missed when it should answer."""
        self.may_die(place)
        self._workers[place].kill()

    def doom(self, place: int) -> None:
        """Has an engine die while the next version comes."""
        self.may_die(place)
        self._workers[place].ask("doom")

    def may_die(self, place: int) -> None:
        """An engine that was told to die is no failure of the run."""
        self._doomed.add(place)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.hang_up()
        for worker in self._workers.values():
            worker.close()

    def _call(self, method: str, *arguments: object) -> None:
        for place in self.live:
            try:
                self._workers[place].call(method, *arguments)
            except Died:
                self._bury(place)

    def _share(self, chunks: Sequence[Sequence[Group]]) -> None:
        for number, chunk in enumerate(chunks):
            able = sorted(self._chunks)
            place = able[number % len(able)]
            self._chunks[place].append(chunk)
            try:
                self._workers[place].call("generate", self._label, chunk)
            except Died:
                self._bury(place)

    def _bury(self, place: int) -> None:
        worker = self._workers.pop(place)
        worker.close()
        self._adopted.discard(place)
        if place not in self._doomed or not self._workers:
            raise Died(f"{worker.name} died by itself, or was the last: {worker.log}")
        self._doomed.remove(place)
        lost = self._chunks.pop(place, deque())
        self.regenerated += sum(len(chunk) for chunk in lost)
        self._share(list(lost))
