"""What an engine holds is compared with samples of the trainer's between refits."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("safetensors", reason="needs safetensors")

import dcr.run
import dcr.torch
from run_parts import Engine, Net, digest, run_directory, step, wait_until


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


def test_weights_that_change_behind_everybodys_back(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A refit that finds them fails an attempt, names the tensor, and restores all of it."""
    caplog.set_level(logging.DEBUG, logger="dcr")
    directory.mkdir(mode=0o700)
    (directory / "settings.toml").write_text("[waits]\nlook_ms = 100\n")
    run = dcr.run.Run(directory)
    engine, sound = Engine(run, "engine", Net(1)), Engine(run, "sound", Net(3))
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    owner.refit("first")
    engine.wait_for("first")
    with torch.no_grad():
        engine.model.second.weight += 1
    # A refit that comes before the sample sends what changed, as if nothing were wrong.
    for number in range(100):
        time.sleep(0.3)
        step(model, number)
        result = owner.refit(number)
        for one in (engine, sound):
            one.wait_for(str(number))
        assert digest(sound.model) == digest(model)
        if digest(engine.model) == digest(model):
            break
        assert result.attempts == 1
    assert digest(engine.model) == digest(model)
    assert result.attempts > 1
    # Receivers' words reach the log from a thread of their own.
    wrong = 'tensor "second.weight": '

    def said(name: str) -> list[str]:
        text = f"{name}.0: it does not hold version"
        return [one for one in caplog.messages if one.startswith(text)]

    wait_until(lambda: bool(said("engine")), lambda: caplog.messages)
    assert wrong in said("engine")[0]
    run.close()
    assert not said("sound")
