"""What a run is made of, and the sizes that it comes in."""

from dataclasses import dataclass

from task import Task
from warm_start import Model, WarmStart

ENGINES = 2
RANKS = 2  # of the trainer


@dataclass(frozen=True)
class Settings:
    """One size of the run."""

    start: WarmStart
    steps: int
    prompts: int  # of a step
    samples: int  # responses to each prompt
    epoch: int  # steps until prompts come again
    rate: float
    clip: tuple[float, float]  # how far the ratio of probabilities may fall and rise
    chunk: int  # prompts that an engine is given at a time
    kill_every: int  # steps; in arms with DCR
    coordinator_kills: tuple[int, ...]  # steps
    asynchronous: tuple[bool, ...]  # the kinds of arms: not, or one step, off-policy
    judged: bool  # whether rewards have to rise: a few steps show nothing


def _settings(**values: object) -> Settings:
    task = Task(digits=2)
    model = Model(hidden=256, layers=4, intermediate=768, heads=4, kv_heads=2, head_dim=64)
    start = WarmStart(task, model, seed=1, accuracy=0.4, steps_max=1000)
    made: dict[str, object] = {
        "start": start,
        "steps": 50,
        "prompts": 64,
        "samples": 8,
        "epoch": 10,
        "rate": 5e-6,
        "clip": (0.2, 0.28),
        "chunk": 16,
        "kill_every": 5,
        "coordinator_kills": (12, 37),
        "asynchronous": (False, True),
        "judged": True,
        **values,
    }
    return Settings(**made)  # type: ignore[arg-type]


SIZES = {
    "full": _settings(),
    "demo": _settings(
        steps=10, prompts=16, epoch=5, chunk=4, coordinator_kills=(7,), judged=False
    ),
    "test": _settings(
        start=WarmStart(
            Task(digits=1),
            Model(hidden=64, layers=2, intermediate=128, heads=2, kv_heads=1, head_dim=32),
            seed=1,
            accuracy=0.3,
            steps_max=500,
        ),
        steps=3,
        prompts=8,
        samples=4,
        epoch=1,
        chunk=2,
        kill_every=2,
        coordinator_kills=(),
        asynchronous=(True,),
        judged=False,
    ),
}
