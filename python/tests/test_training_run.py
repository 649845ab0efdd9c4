"""The training run, at its smallest, and the parts that decide whether it shows anything."""

import dataclasses
import json
import subprocess
import sys
from math import exp
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python/training"))

from arm import COMPARED, Divergence, Step, compare  # noqa: E402
from grpo import advantages, kl_sum, loss_and_ratio, make_batch, response_logprobs  # noqa: E402
from report import judge  # noqa: E402
from rollout import Response  # noqa: E402
from task import BEGIN, DIGIT, END, EQUALS, PLUS, VOCABULARY, Task, batches  # noqa: E402
from trainer import Update  # noqa: E402


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
    assert [arm["name"] for arm in seed["arms"]] == ["dense, synchronous", "dense, asynchronous"]
    for arm in seed["arms"]:
        steps = arm["steps"]
        assert [step["step"] for step in steps] == [0, 1, 2]
        assert len({step["weights"] for step in steps}) == 3  # every step changed something
        assert all(step["changed"] > 0 and step["informative"] > 0 for step in steps)
    # The first step of both kinds is the same; later ones have other rollouts.
    first, second = (arm["steps"] for arm in seed["arms"])
    assert first[0]["weights"] == second[0]["weights"]
    assert first[1]["rollouts"] != second[1]["rollouts"]
    lines = ElementTree.fromstring(picture.read_text()).findall(".//{*}polyline")
    layers = len(first[0]["changed_by_layer"])
    assert len(lines) == 2 * (layers + 1 + 1 + 1)


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
    )  # fmt: skip
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
