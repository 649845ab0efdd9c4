"""What dies in an arm with DCR, when, and what came of it. All is drawn from the seed."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from engines import Engines
from run_processes import kill_leader
from settings import ENGINES, Settings

# When an engine dies, and how often of nine times.
MOMENTS = {
    "applied": 6,  # it has applied a version, another engine has too, and nothing is committed
    "rollouts": 1,  # it has groups to answer
    "open": 1,  # a refit is open, and it knows nothing of that yet
    "restore": 1,  # as before, and again while it restores what is committed
}
BACK_AFTER = (1, 2, 3)  # steps


@dataclass(frozen=True)
class Event:
    """Something died, or came back."""

    step: int
    what: str  # "kill", "return", "coordinator"
    place: int | None  # of the engine
    moment: str


@dataclass(frozen=True)
class Kill:
    """An engine's death in a step, and the step in which its place is filled again."""

    step: int
    place: int
    moment: str
    back: int


def plan(settings: Settings, seed: str) -> dict[int, Kill]:
    """What dies, by step. Whatever died is back before the next one dies."""
    draw = random.Random(f"kills {seed}")
    steps = range(settings.kill_every - 1, settings.steps - 1, settings.kill_every)
    moments: list[str] = []
    while len(moments) < len(steps):
        moments += _shuffled(draw)
    kills = {}
    for step, moment in zip(steps, moments, strict=False):
        back = step + min(draw.choice(BACK_AFTER), settings.kill_every - 1)
        kills[step] = Kill(step, draw.randrange(ENGINES), moment, back)
    return kills


def _shuffled(draw: random.Random) -> list[str]:
    """All moments as often as they are to be; the first is always the same."""
    first, *others = (moment for moment, times in MOMENTS.items() for _ in range(times))
    draw.shuffle(others)
    return [first, *others]


@dataclass
class Quiet:
    """What is asked between the parts of a step. Here nothing dies."""

    events: list[Event] = field(default_factory=list)
    torn: int = 0
    """Engines that had applied a version, which was then not committed because another died."""

    def step_begins(self, step: int, engines: Engines) -> None:
        """Before all else."""

    def rollouts_begun(self, step: int, engines: Engines) -> None:
        """Engines have groups to answer."""

    def refit_called(self, step: int, engines: Engines) -> None:
        """The trainer waits for a version; no engine has been told to adopt it."""

    def adopted(self, step: int, label: str, engines: Engines) -> None:
        """Engines hold it, but for those that died."""


class Kills(Quiet):
    """A plan that is carried out. What was to die and did not is an error: the arm would show less
    than it says. `applied` is where engines note that they have applied a version."""

    def __init__(self, settings: Settings, seed: str, run: Path, applied: Path) -> None:
        super().__init__()
        self._settings = settings
        self._run = run
        self._applied = applied
        self._kills = plan(settings, seed)
        self._back = {kill.back: kill for kill in self._kills.values()}

    def step_begins(self, step: int, engines: Engines) -> None:
        kill = self._back.get(step)
        if kill is None:
            return
        self._note(step, "return", kill)
        if kill.moment == "restore":
            engines.start(kill.place, {"DCR_KILL": "receiver@apply"})
            engines.may_die(kill.place)
        else:
            engines.start(kill.place)

    def rollouts_begun(self, step: int, engines: Engines) -> None:
        kill = self._kills.get(step)
        if kill is not None and kill.moment == "rollouts":
            self._kill(kill, engines)

    def refit_called(self, step: int, engines: Engines) -> None:
        if step in self._settings.coordinator_kills:
            kill_leader(self._run)
            self.events.append(Event(step, "coordinator", None, "open"))
        kill = self._kills.get(step)
        if kill is None:
            return
        if kill.moment in ("open", "restore"):
            self._kill(kill, engines)
        elif kill.moment == "applied":
            engines.doom(kill.place)

    def adopted(self, step: int, label: str, engines: Engines) -> None:
        kill = self._kills.get(step)
        if kill is not None and kill.moment == "applied":
            self._see_dead(kill, engines)
            self._note(step, "kill", kill)
            self.torn += sum(
                applied_file(self._applied, label, place, 2).exists() for place in engines.live
            )
        back = self._back.get(step)
        if back is not None and back.moment == "restore":
            self._see_dead(back, engines)
            self._note(step, "kill", back)
            self._back[step + 1] = replace(back, moment="")

    def _kill(self, kill: Kill, engines: Engines) -> None:
        engines.kill(kill.place)
        self._note(kill.step, "kill", kill)

    def _see_dead(self, kill: Kill, engines: Engines) -> None:
        if kill.place in engines.live:
            raise RuntimeError(f"step {kill.step}: engine {kill.place} lives, and was to be killed")

    def _note(self, step: int, what: str, kill: Kill) -> None:
        self.events.append(Event(step, what, kill.place, kill.moment))


def applied_file(directory: Path, label: str, place: int, times: int) -> Path:
    """There if the engine has applied payloads of a version so many times."""
    return directory / f"{label}-{place}-{times}"
