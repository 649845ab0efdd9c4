"""One arm of the comparison: so many steps of the trainer, with rollouts of engines in between that
have the weights of a version each."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import Engines, start_engine
from faults import Quiet
from rollout import Group, Response
from settings import RANKS, Settings
from task import batches
from trainer import Rank, Update
from weights import Weights
from workers import Worker


@dataclass(frozen=True)
class Step:
    """What a step came to. All but `seconds` and `published` is the same in a dense arm and in one
    with DCR."""

    step: int
    reward: float  # the mean
    informative: int  # groups in which responses differ in reward: advantages are not all 0
    rollouts: str  # a digest of all tokens and probabilities
    update: Update
    weights: str  # a digest of all that each engine holds after it
    published: Mapping[str, Any]
    seconds: Mapping[str, float]


COMPARED = ("reward", "informative", "rollouts", "update", "weights")


@dataclass
class Arm:
    """What an arm came to."""

    asynchronous: bool
    refits: bool  # by DCR; or dense
    steps: list[Step] = field(default_factory=list)
    first_weights: str = ""
    """The digest of version 0."""
    faults: Quiet = field(default_factory=Quiet)
    regenerated: int = 0
    """Groups that were lost with their engine and answered again."""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """What it is called in reports."""
        way = "DCR" if self.refits else "dense"
        return f"{way}, {'asynchronous' if self.asynchronous else 'synchronous'}"


class _Clock:
    """Where the time of a step goes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def passed(self, what: str) -> None:
        now = time.monotonic()
        self.seconds[what] = round(self.seconds.get(what, 0.0) + now - self._last, 3)
        self._last = now


class Trainer:
    """All ranks, told the same."""

    def __init__(self, settings: Settings, start: Path, weights: Weights, directory: Path) -> None:
        store = directory / "gloo"
        self._ranks = [
            Worker(
                f"rank {rank}",
                directory / f"rank{rank}.log",
                Rank,
                settings,
                rank,
                start / "masters",
                store,
                weights,
            )
            for rank in range(RANKS)
        ]

    def call(self, method: str, *arguments: Any) -> None:
        for rank in self._ranks:
            rank.call(method, *arguments)

    def answer(self) -> Any:
        """The first rank's; the others have to have answered too."""
        return [rank.answer() for rank in self._ranks][0]

    def close(self) -> None:
        for rank in self._ranks:
            rank.hang_up()
        for rank in self._ranks:
            rank.close()


class Divergence(Exception):
    """Something is not as it is in the dense arm, or in another engine."""


@dataclass
class Run:
    """Makes an arm. `reference` is the dense arm of its kind, with which all is compared."""

    settings: Settings
    seed: int
    start: Path
    directory: Path
    weights: Weights
    arm: Arm
    reference: Arm | None = None

    def __post_init__(self) -> None:
        self._batches = batches(
            self.settings.start.task, self.seed, self.settings.prompts, self.settings.epoch
        )

    def run(self) -> Arm:
        began = time.monotonic()
        trainer = Trainer(self.settings, self.start, self.weights, self.directory)
        engines = Engines(self._start_engine, self.settings.chunk)
        try:
            self._steps(trainer, engines)
        finally:
            engines.close()
            trainer.close()
        self.arm.regenerated = engines.regenerated
        self.arm.seconds = round(time.monotonic() - began, 1)
        return self.arm

    def _steps(self, trainer: Trainer, engines: Engines) -> None:
        """In an asynchronous arm engines answer the next step's prompts while the trainer takes
        this one's; in both, a version is adopted when all groups of the one before are back."""
        trainer.call("publish", "0")
        self.arm.first_weights = self._adopt(engines, "0")
        trainer.answer()
        if self.reference is not None and self.reference.first_weights != self.arm.first_weights:
            raise Divergence(f"{self.arm.name}: version 0 is not what it is in the dense arm")
        engines.begin(self._groups(0))
        responses = engines.finish()
        for step in range(self.settings.steps):
            clock = _Clock()
            more = step + 1 < self.settings.steps
            self.arm.faults.step_begins(step, engines)
            if self.arm.asynchronous and more:
                self._begin(engines, step)
            answered = [(group.prompt, responses[group]) for group in self._groups(step)]
            trainer.call("train", answered)
            update = trainer.answer()
            clock.passed("train")
            label = str(step + 1)
            trainer.call("publish", label)
            if self.arm.asynchronous and more:
                responses = engines.finish()
                clock.passed("rollouts")
            self.arm.faults.refit_called(step, engines)
            weights = self._adopt(engines, label)
            self.arm.faults.adopted(step, label, engines)
            published = trainer.answer()
            clock.passed("refit")
            if not self.arm.asynchronous and more:
                self._begin(engines, step)
                responses = engines.finish()
                clock.passed("rollouts")
            self._note(step, answered, update, weights, published, clock)

    def _begin(self, engines: Engines, step: int) -> None:
        engines.begin(self._groups(step + 1))
        self.arm.faults.rollouts_begun(step, engines)

    def _start_engine(self, place: int, environment: Mapping[str, str]) -> Worker:
        return start_engine(
            self.settings,
            self.seed,
            self.start,
            self.weights,
            self.directory,
            place,
            environment,
        )

    def _groups(self, step: int) -> list[Group]:
        return [Group(step, prompt) for prompt in self._batches[step % self.settings.epoch]]

    def _adopt(self, engines: Engines, label: str) -> str:
        """All engines that are alive hold the same bytes then."""
        digests = engines.adopt(label)
        if len(set(digests.values())) != 1:
            raise Divergence(f"{self.arm.name}: engines differ in version {label}: {digests}")
        return next(iter(digests.values()))

    def _note(
        self,
        step: int,
        answered: Sequence[tuple[int, Sequence[Response]]],
        update: Update,
        weights: str,
        published: Mapping[str, Any],
        clock: _Clock,
    ) -> None:
        task = self.settings.start.task
        rewards = [
            [task.reward(prompt, response.tokens) for response in responses]
            for prompt, responses in answered
        ]
        every = [reward for group in rewards for reward in group]
        made = Step(
            step=step,
            reward=sum(every) / len(every),
            informative=sum(len(set(group)) > 1 for group in rewards),
            rollouts=_digest(answered),
            update=update,
            weights=weights,
            published=published,
            seconds=clock.seconds,
        )
        self.arm.steps.append(made)
        changed = sum(count for count, _ in update.changed.values())
        if published.get("changed", changed) != changed:
            raise Divergence(
                f"{self.arm.name}, step {step}: {published['changed']} values were refitted, "
                f"{changed} have changed"
            )
        if self.reference is not None:
            compare(self.arm.name, made, self.reference.steps[step])


def compare(name: str, made: Step, reference: Step) -> None:
    """Raises unless a step is that of the dense arm, bit for bit."""
    for what in COMPARED:
        here, there = getattr(made, what), getattr(reference, what)
        if here != there:
            raise Divergence(f"{name}, step {made.step}: {what} is {here}, dense {there}")


def _digest(answered: Sequence[tuple[int, Sequence[Response]]]) -> str:
    """Floats are written so that different bits are different words."""
    return hashlib.sha256(repr(answered).encode()).hexdigest()
