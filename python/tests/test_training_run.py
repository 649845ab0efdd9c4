"""The training run, at its smallest, and the parts that decide whether it shows anything."""

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from math import exp
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python/training"))

from arm import COMPARED, Arm, Divergence, Run, Step, compare  # noqa: E402
from engines import Engines  # noqa: E402
from faults import Kills, plan  # noqa: E402
from grpo import advantages, kl_sum, loss_and_ratio, make_batch, response_logprobs  # noqa: E402
from report import judge, judge_kills  # noqa: E402
from rollout import Group, Response  # noqa: E402
from settings import SIZES  # noqa: E402
from task import BEGIN, DIGIT, END, EQUALS, PLUS, VOCABULARY, Task, batches  # noqa: E402
from trainer import Update  # noqa: E402
from weights import DenseWeights  # noqa: E402
from workers import Died  # noqa: E402


def digits(*values: int) -> tuple[int, ...]:
    return tuple(DIGIT + value for value in values)


def test_short_run(tmp_path: Path) -> None:
    """Processes as in a long one; what they come to is equal, or the exit code says otherwise."""
    report, picture = tmp_path / "report.json", tmp_path / "picture.svg"
    ran = subprocess.run(
        [sys.executable, str(ROOT / "python/training/run.py"), "test"]
        + ["--directory", str(ROOT / "build/training")]
        + ["--report", str(report), "--picture", str(picture)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(report.read_text())
    assert found["wrong"] == [] and found["divergences"] == 0
    (seed,) = found["seeds"]
    dense, refits = seed["arms"]
    assert [dense["name"], refits["name"]] == ["dense, asynchronous", "DCR, asynchronous"]
    assert [step["step"] for step in dense["steps"]] == [0, 1, 2]
    for here, there in zip(dense["steps"], refits["steps"], strict=True):
        assert here["changed"] > 0 and here["informative"] > 0
        for what in here.keys() - {"published", "seconds"}:
            assert here[what] == there[what], what
    assert len({step["weights"] for step in dense["steps"]}) == 3
    assert [event["what"] for event in refits["events"]] == ["kill", "return"]
    assert [step["published"]["mode"] for step in refits["steps"]] == [
        "mixed",
        "overwrite",
        "mixed",
    ]
    assert refits["torn_survivors"] == 1
    drawn = ElementTree.fromstring(picture.read_text())
    layers = len(dense["steps"][0]["changed_by_layer"])
    assert len(drawn.findall(".//{*}polyline")) == layers + 1 + 1 + 1
    assert len(drawn.findall(".//{*}circle")) == 2 * 3 + 1  # rings, and the return


def test_task() -> None:
    task = Task(digits=2)
    assert task.prompt(4703) == (BEGIN, *digits(7, 4), PLUS, *digits(3, 0), EQUALS)
    assert task.answer(4703) == (*digits(0, 5), END)
    assert task.answer(9999) == (*digits(8, 9, 1), END)
    assert task.reward(4703, [*digits(0, 5), END]) == 1
    for wrong in (digits(0, 5), (*digits(0, 5), END, END), (*digits(5, 0), END), ()):
        assert task.reward(4703, wrong) == 0
    chosen = batches(task, seed=1, prompts=64, epoch=10)
    assert len({prompt for batch in chosen for prompt in batch}) == 640
    assert chosen == batches(task, seed=1, prompts=64, epoch=10)
    assert chosen != batches(task, seed=2, prompts=64, epoch=10)


def test_advantages() -> None:
    assert advantages([1, 0, 0, 1]) == [1, -1, -1, 1]
    assert advantages([1, 1, 1]) == advantages([0, 0, 0]) == [0, 0, 0]
    assert advantages([1, 0, 0, 0, 0]) == pytest.approx([2, -0.5, -0.5, -0.5, -0.5])


def test_loss_and_divergence() -> None:
    """By hand: one right and one wrong response, of different length, whose tokens are all 1.5
    times, or half, as probable to the trainer as they were to the engine."""
    task = Task(digits=1)
    right = Response((*task.answer(34),), (-1.0, -1.0))
    wrong = Response((*digits(1, 1), END), (-1.0, -1.0, -1.0))
    batch = make_batch(task, [(34, [right, wrong])])
    assert batch.tokens.shape == (2, task.prompt_tokens + task.response_tokens - 1)
    assert batch.tokens[0].tolist() == [*task.prompt(34), *task.answer(34)]
    assert batch.mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    for ratio, right_gain, wrong_gain in ((1.5, 1.28, -1.5), (0.5, 0.5, -0.8), (1.1, 1.1, -1.1)):
        logprobs = batch.rollout_logprobs + torch.tensor(ratio).log()
        loss, outside = loss_and_ratio(logprobs, batch, (0.2, 0.28))
        torch.testing.assert_close(loss, torch.tensor(-(2 * right_gain + 3 * wrong_gain)))
        assert int(outside.sum()) == (0 if ratio == 1.1 else 5)
    by_half = batch.rollout_logprobs + 0.5
    assert kl_sum(by_half, batch) == pytest.approx(5 * (exp(0.5) - 1 - 0.5), rel=1e-6)
    assert kl_sum(batch.rollout_logprobs, batch) == 0


def test_logprobs_are_of_the_tokens_that_come_next() -> None:
    task = Task(digits=1)
    response = Response((*task.answer(34),), (0.0, 0.0))
    batch = make_batch(task, [(34, [response])])
    logits = torch.zeros(1, batch.tokens.shape[1], VOCABULARY)
    whole = (*task.prompt(34), *task.answer(34))
    for place, token in enumerate(whole[1:]):
        logits[0, place, token] = 50.0
    found = response_logprobs(logits, batch)
    assert found[0, :2].tolist() == [0, 0] and found[0, 2] < -3


def test_any_difference_is_a_divergence() -> None:
    update = Update(loss=0.5, kl=1e-5, clipped=0.0, changed={"layer 0": (3, 10)})
    step = Step(
        step=7, reward=0.5, informative=3, rollouts="a", update=update, weights="b",
        published={}, seconds={},
    )
    compare("DCR", dataclasses.replace(step, seconds={"train": 1.0}), step)
    others = {
        "reward": 0.25,
        "informative": 2,
        "rollouts": "c",
        "update": dataclasses.replace(update, kl=1.0000000000000002e-5),
        "weights": "d",
    }
    assert set(others) == set(COMPARED)
    for what, value in others.items():
        other = dataclasses.replace(step, **{what: value})  # type: ignore[arg-type]
        with pytest.raises(Divergence, match=f"DCR, step 7: {what} is "):
            compare("DCR", other, step)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"last_reward": 0.4}, "rewards went from 0.4000 to 0.4000"),
        ({"informative": 0.89}, "only 89% of the steps had an advantage"),
        ({"changed": 0.0049}, "0.49% of the values change in a step"),
        ({"changed": 0.081}, "8.10% of the values change in a step"),
    ],
)
def test_a_run_that_shows_nothing_fails(value: dict[str, float], words: str) -> None:
    good = {"first_reward": 0.4, "last_reward": 0.5, "informative": 0.9, "changed": 0.02}
    assert judge(good) == []
    assert judge({**good, **value}) == [words]


def test_kills_that_show_nothing_fail() -> None:
    assert judge_kills({"torn_survivors": 1, "overwrite_retries": 1}) == []
    assert len(judge_kills({"torn_survivors": 0, "overwrite_retries": 0})) == 2


class FakeWorker:
    """An engine that answers at once, or dies when it is asked for an answer."""

    def __init__(self, place: int, asked: list[tuple[int, tuple[Any, ...]]]) -> None:
        self.name, self.log = f"engine {place}", Path("engine.log")
        self.dies = False
        self.digest = "digest"
        self._place, self._asked = place, asked
        self._open: list[tuple[Any, ...]] = []

    def call(self, *call: Any) -> None:
        self._asked.append((self._place, call))
        self._open.append(call)

    def answer(self) -> Any:
        if self.dies:
            raise Died(self.name)
        method, *arguments = self._open.pop(0)
        if method == "adopt":
            return self.digest
        return [[Response((END,), (float(group.prompt),))] for group in arguments[1]]

    def kill(self) -> None:
        self.dies = True

    def close(self) -> None:
        pass


def test_lost_groups_are_answered_again_with_the_same_version() -> None:
    asked: list[tuple[int, tuple[Any, ...]]] = []
    workers: dict[int, FakeWorker] = {}

    def start(place: int, environment: Any) -> Any:
        workers[place] = FakeWorker(place, asked)
        return workers[place]

    engines = Engines(start, chunk=2)
    assert engines.adopt("7") == {0: "digest", 1: "digest"}
    groups = [Group(7, prompt) for prompt in range(8)]
    engines.begin(groups)
    engines.kill(1)
    answers = engines.finish()
    assert answers == {group: [Response((END,), (float(group.prompt),))] for group in groups}
    assert engines.live == [0] and engines.regenerated == 4
    generated = [(place, call[1], call[2]) for place, call in asked if call[0] == "generate"]
    assert generated == [
        (0, "7", groups[:2]),
        (1, "7", groups[2:4]),
        (0, "7", groups[4:6]),
        (1, "7", groups[6:]),
        (0, "7", groups[2:4]),
        (0, "7", groups[6:]),
    ]
    # One that has come back answers nothing before it has adopted a version.
    engines.start(1)
    engines.begin(groups)
    assert {place for place, call in asked[-4:]} == {0}
    engines.finish()
    engines.adopt("8")
    engines.begin(groups)
    assert {place for place, call in asked[-4:]} == {0, 1}
    workers[0].dies = True
    with pytest.raises(Died, match="engine 0 died by itself"):
        engines.finish()


def test_engines_that_hold_other_bytes_are_a_divergence(tmp_path: Path) -> None:
    asked: list[tuple[int, tuple[Any, ...]]] = []
    workers: Any = [FakeWorker(place, asked) for place in range(2)]
    engines = Engines(lambda place, environment: workers[place], chunk=2)
    run = Run(SIZES["full"], 1, tmp_path, tmp_path, DenseWeights(tmp_path), Arm(False, False))
    assert run._adopt(engines, "1") == "digest"
    workers[1].digest = "other"
    with pytest.raises(Divergence, match="engines differ in version 2"):
        run._adopt(engines, "2")


@pytest.mark.parametrize("seed", range(20))
def test_planned_kills(seed: int) -> None:
    settings = SIZES["full"]
    kills = plan(settings, str(seed))
    assert list(kills) == list(range(4, 49, 5))
    assert kills == plan(settings, str(seed)) != plan(settings, str(seed + 1))
    assert kills[4].moment == "applied"
    assert {kill.place for kill in kills.values()} == {0, 1}
    moments = Counter(kill.moment for kill in kills.values())
    assert moments == {"applied": 6, "rollouts": 1, "open": 1, "restore": 1}
    assert all(step < kill.back < step + 4 for step, kill in kills.items())


def test_an_engine_that_does_not_die_as_planned_is_an_error(tmp_path: Path) -> None:
    settings = SIZES["full"]
    engine: Any = FakeWorker(0, [])
    engine.ask = lambda method: None
    engines = Engines(lambda place, environment: engine, chunk=2)
    faults = Kills(settings, "1", run=tmp_path, applied=tmp_path)
    faults.refit_called(4, engines)
    with pytest.raises(RuntimeError, match="step 4: engine . lives, and was to be killed"):
        faults.adopted(4, "5", engines)
