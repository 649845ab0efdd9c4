"""What a run came to: judged, and written as JSON."""

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arm import Arm, Step
from settings import Settings

INFORMATIVE_MIN = 0.9  # of all steps: those with an advantage that is not 0
CHANGED_MIN, CHANGED_MAX = 0.005, 0.08  # of all values, in a step, on average


def change_rate(step: Step) -> float:
    """Of all values, those that changed in BF16."""
    counts = list(step.update.changed.values())
    return sum(changed for changed, _ in counts) / sum(total for _, total in counts)


def arm_as_data(arm: Arm, epoch: int) -> dict[str, Any]:
    """An arm as the report has it. `first_reward` and `last_reward` are means of the first and of
    the last epoch, which have the same prompts."""
    steps = arm.steps
    return {
        "name": arm.name,
        "asynchronous": arm.asynchronous,
        "refits": arm.refits,
        "seconds": arm.seconds,
        "first_reward": _mean(step.reward for step in steps[:epoch]),
        "last_reward": _mean(step.reward for step in steps[-epoch:]),
        "informative": _mean(step.informative > 0 for step in steps),
        "changed": _mean(change_rate(step) for step in steps),
        "kl": _mean(step.update.kl for step in steps),
        **(_refits_of(arm) if arm.refits else {}),
        "steps": [_step_as_data(step) for step in steps],
    }


def _refits_of(arm: Arm) -> dict[str, Any]:
    """What an arm with DCR has besides. Killed are engines, and coordinators."""
    refits = [step.published for step in arm.steps]
    values = sum(total for _, total in arm.steps[0].update.changed.values())
    events = [event.what for event in arm.faults.events]
    return {
        "killed": events.count("kill"),
        "coordinators_killed": events.count("coordinator"),
        "attempts": sum(refit["attempts"] for refit in refits),
        "overwrite_retries": sum(refit["mode"] == "overwrite" for refit in refits),
        "torn_survivors": arm.faults.torn,
        "regenerated": arm.regenerated,
        "share_of_dense_bytes": _mean(refit["payload_bytes"] / (2 * values) for refit in refits),
        "events": [asdict(event) for event in arm.faults.events],
    }


def arm_line(arm: Mapping[str, Any]) -> str:
    """An arm in a line."""
    line = (
        f"{arm['name']}: {len(arm['steps'])} steps in {arm['seconds']:.0f} s, "
        f"reward {arm['first_reward']:.3f} to {arm['last_reward']:.3f}, "
        f"{arm['changed']:.2%} of the values change in a step, KL {arm['kl']:.1e}"
    )
    if not arm["refits"]:
        return line
    return (
        f"{line}; {arm['share_of_dense_bytes']:.1%} of the dense bytes, "
        f"{arm['killed']} engines and {arm['coordinators_killed']} coordinators killed, "
        f"{arm['overwrite_retries']} retries by overwriting, "
        f"{arm['torn_survivors']} torn survivors, {arm['regenerated']} groups answered again"
    )


def report_of(
    settings: Settings, start: Path, seeds: Sequence[Mapping[str, Any]], divergence: str
) -> dict[str, Any]:
    """The whole report; `wrong` says why the run failed, if it did."""
    wrong = [divergence] if divergence else []
    for seed in seeds:
        for arm in seed["arms"]:
            why = judge(arm) if settings.judged else []
            why += judge_kills(arm) if arm["refits"] else []
            wrong += [f"seed {seed['seed']}, {arm['name']}: {line}" for line in why]
    return {
        "settings": asdict(settings),
        "start": json.loads((start / "start.json").read_text()),
        "machine": {
            "processors": len(os.sched_getaffinity(0)),
            "architecture": platform.machine(),
            "python": platform.python_version(),
        },
        "wrong": wrong,
        "divergences": int(bool(divergence)),
        "seeds": list(seeds),
    }


def judge(arm: Mapping[str, Any]) -> list[str]:
    """Why an arm shows nothing, if it does not."""
    wrong = []
    if arm["last_reward"] <= arm["first_reward"]:
        wrong.append(f"rewards went from {arm['first_reward']:.4f} to {arm['last_reward']:.4f}")
    if arm["informative"] < INFORMATIVE_MIN:
        wrong.append(f"only {arm['informative']:.0%} of the steps had an advantage")
    if not CHANGED_MIN <= arm["changed"] <= CHANGED_MAX:
        wrong.append(f"{arm['changed']:.2%} of the values change in a step")
    return wrong


def judge_kills(arm: Mapping[str, Any]) -> list[str]:
    """Why the kills of an arm with DCR show nothing, if they do not."""
    wrong = []
    if arm["torn_survivors"] == 0:
        wrong.append("no engine had applied a version that another one's death took back")
    if arm["overwrite_retries"] == 0:
        wrong.append("no refit was tried again by overwriting")
    return wrong


def write(report: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n")


def _step_as_data(step: Step) -> dict[str, Any]:
    layers = step.update.changed.items()
    return {
        "step": step.step,
        "reward": step.reward,
        "informative": step.informative,
        "loss": step.update.loss,
        "kl": step.update.kl,
        "clipped": step.update.clipped,
        "changed": change_rate(step),
        "changed_by_layer": {layer: changed / total for layer, (changed, total) in layers},
        "rollouts": step.rollouts,
        "weights": step.weights,
        "published": dict(step.published),
        "seconds": dict(step.seconds),
    }


def _mean(values: Iterable[float]) -> float:
    every = [float(value) for value in values]
    return sum(every) / len(every)
