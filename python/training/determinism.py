"""Whether responses depend on anything but weights, prompt and seed, which the comparison of arms
stands on: on what else is in a batch, or on the engine."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from arm import Divergence
from engines import start_engine
from rollout import Group, Response
from settings import ENGINES, Settings
from task import batches
from weights import DenseWeights, version_file
from workers import Worker


def check(settings: Settings, seed: int, start: Path, directory: Path) -> int:
    """Draws the responses of the first step in one batch, in small ones, and one prompt at a time
    in reverse, each in two engines, and compares all bits with each other. Returns how many
    responses were compared.

    Raises:
        Divergence: there is a difference.
    """
    shutil.copy(start / "serving" / "model.safetensors", version_file(directory, "0"))
    engines = [
        start_engine(settings, seed, start, DenseWeights(directory), directory, place)
        for place in range(ENGINES)
    ]
    try:
        return _compare(settings, seed, engines)
    finally:
        for engine in engines:
            engine.hang_up()
        for engine in engines:
            engine.close()


def _compare(settings: Settings, seed: int, engines: Sequence[Worker]) -> int:
    prompts = batches(settings.start.task, seed, settings.prompts, settings.epoch)[0]
    groups = [Group(0, prompt) for prompt in prompts]
    for engine in engines:
        engine.call("adopt", "0")
    weights = {engine.answer() for engine in engines}
    if len(weights) != 1:
        raise Divergence("two engines that loaded the same weights hold different bytes")
    orders: dict[str, Sequence[Sequence[Group]]] = {
        "one batch": [groups],
        "batches of a chunk": _cut(groups, settings.chunk),
        "one prompt at a time, in reverse": _cut(groups[::-1], 1),
    }
    expected: dict[Group, list[Response]] = {}
    compared = 0
    for order, chunks in orders.items():
        for engine in engines:
            for chunk in chunks:
                engine.call("generate", "0", chunk)
        for engine in engines:
            for chunk in chunks:
                for group, responses in zip(chunk, engine.answer(), strict=True):
                    if responses != expected.setdefault(group, responses):
                        raise Divergence(
                            f"{engine.name} answers prompt {group.prompt} otherwise in {order}"
                        )
                    compared += len(responses)
    return compared


def _cut(groups: Sequence[Group], size: int) -> list[Sequence[Group]]:
    return [groups[at : at + size] for at in range(0, len(groups), size)]
