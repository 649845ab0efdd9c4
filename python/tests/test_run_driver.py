"""What a driver does with a run: sees how it stands, ends transitions, has engines restore."""

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import dcr.run
import dcr.torch
from dcr import _core, errors
from interrupts import interrupted_after
from run_parts import (
    Engine,
    EngineProcess,
    LabelAgent,
    Net,
    digest,
    processes,
    run_directory,
    step,
    wait_until,
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


def test_how_a_run_stands(directory: Path) -> None:
    run = dcr.run.Run(directory)
    empty = run.status()
    assert (empty.version, empty.label, empty.attempt, empty.attempt_state) == (0, "", 0, "none")
    assert (empty.engines, [one.role for one in empty.members if one.role == "owner"]) == ([], [])
    engine = Engine(run, "engine", Net(1))
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    closed = run.status().engines[0]
    assert (closed.name, closed.open, closed.version) == ("engine", False, None)
    assert "engine.0" in closed.reason
    owner.refit("first")
    engine.wait_for("first")
    seen = run.status()
    assert (seen.version, seen.label, seen.attempt, seen.attempt_version) == (1, "first", 1, 1)
    assert (seen.attempt_state, seen.attempt_mode) == ("committed", "dense")
    assert seen.leader in ("coordinator-0", "coordinator-1")
    assert (seen.engines[0].open, seen.engines[0].version, seen.engines[0].reason) == (True, 1, "")
    members = {one.name: one for one in seen.members}
    assert list(members) == sorted(members)
    assert (members["owner-0"].role, members["owner-0"].version) == ("owner", 1)
    receiver = members["engine.0"]
    assert (receiver.role, receiver.engine, receiver.membership) == ("receiver", "engine", "member")
    assert receiver.answers and receiver.state == "member"
    assert pickle.loads(pickle.dumps(seen)) == seen
    assert run.restore() == []  # nobody is behind
    operator = dcr._core.RunOperator(run.core)
    for one in (operator, dcr._core.RunCoordinator(run.core, "coordinator-x")):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(one)
        one.close()
    with pytest.raises(errors.InvalidArgument, match="the operator is closed"):
        operator.look(1.0)


def test_refit_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The program that measures refits, at a size that takes moments."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "tools"))
    words = ["refit_time", "--layers", "2", "--size", "64", "--refits", "2"]
    monkeypatch.setattr(sys, "argv", words)
    import_module("refit_time").main()
    lines = sorted(line.partition(":")[0] for line in capsys.readouterr().out.splitlines())
    assert lines == [f"rank {rank} refit {number}" for rank in range(2) for number in range(2)]


def test_its_processes_outlive_who_started_them(directory: Path) -> None:
    """They end when there has been no member for a time."""
    names = ("coordinator-0", "coordinator-1", "node-0")

    def found() -> list[list[int]]:
        return [processes(directory, name) for name in names]

    starter = EngineProcess(directory, "engine")
    wait_until(lambda: all(len(of) == 1 for of in found()), found)
    there = found()
    starter.kill()
    time.sleep(1)
    assert found() == there
    wait_until(lambda: found() == [[], [], []], found)


def test_a_driver_ends_a_transition(directory: Path) -> None:
    """A refit that cannot go on, as an engine does not drain, ends for its owner."""
    run = dcr.run.Run(directory)
    go_on = threading.Event()

    class Slow(LabelAgent):
        def close(self, fail_requests: bool) -> None:
            if self.opened:
                go_on.wait(60)
            super().close(fail_requests)

    model, serving = Net(2), Net(1)
    agent = Slow()
    gate = run.gate("engine", receivers=["engine.0"], agent=agent)
    receiver = run.receiver("engine.0", engine="engine", model=serving)
    owner = dcr.torch.Owner(model, run=directory)
    owner.refit("first")
    wait_until(lambda: agent.label == "first")
    step(model, 1)
    handle = owner.refit("second", wait=False)
    wait_until(lambda: run.status().attempt_state == "active")
    assert run.status().attempt_version == 2
    with pytest.raises(errors.Conflict, match="attempt 2 is active"):
        run.restore(wait=0.0)  # who has no time to answer is behind, as far as is known
    assert run.abort() == (1, "first")
    go_on.set()
    with pytest.raises(errors.Cancelled, match="an operator aborted the transition"):
        handle.result()
    assert run.status().attempt_state == "obsolete"
    result = owner.refit("third")
    assert (result.version, result.mode) == (2, "dense")
    wait_until(lambda: agent.label == "third")
    assert digest(serving) == digest(model)
    gate.close()
    receiver.close()


@pytest.mark.parametrize("lock", ["making", "creating"])
def test_ctrl_c_while_another_process_makes_the_run(tmp_path: Path, lock: str) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    code = """if True:
        import fcntl, sys, time
        with open(sys.argv[1], "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            print("locked", flush=True)
            time.sleep(3600)
    """
    command = [sys.executable, "-c", code, path / f"{lock}.lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        # One thread waits for the other process, the main thread for it or for that thread.
        errors_seen: list[Exception] = []

        def open_too() -> None:
            try:
                _core.RunSession(str(path))
            except errors.Error as error:
                errors_seen.append(error)

        thread = threading.Thread(target=open_too)
        thread.start()
        try:
            seconds = interrupted_after(0.5, lambda: _core.RunSession(str(path)))
            print(f"{seconds * 1000:.0f} ms")
            assert seconds < 5 and thread.is_alive()
        finally:
            other.kill()
            thread.join()
    assert not errors_seen
    dcr.run.Run(path).close()


def test_a_program_ends_while_its_members_work(directory: Path) -> None:
    """With a refit open that no engine takes, and a receiver that does not come back."""
    code = """if True:
        import sys, threading, time
        import dcr.run, dcr.torch, torch

        def before_prewarm():
            inside.set()
            time.sleep(3600)

        inside, run = threading.Event(), dcr.run.Run(sys.argv[1])
        run.receiver("e.0", engine="e", model=torch.nn.Linear(2, 2), before_prewarm=before_prewarm)
        owner = dcr.torch.Owner(torch.nn.Linear(2, 2), run=sys.argv[1])
        owner.refit("a", wait=False)
        assert inside.wait(60)
        dcr.run._CLOSE_SECONDS = 0.5
        sys.exit(7)
    """
    ended = subprocess.run([sys.executable, "-c", code, directory], timeout=120)
    assert ended.returncode == 7
    again = dcr.torch.Owner(Net(2), run=directory)
    again.close()
