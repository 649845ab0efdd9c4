"""Runs: owners and engines that come, go and are killed, over one directory."""

import copy
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import dcr.run
import dcr.torch
from dcr import errors
from forks import refused_in_child
from interrupts import interrupted_after
from run_parts import (
    Engine,
    EngineProcess,
    LabelAgent,
    Net,
    digest,
    forked,
    processes,
    run_directory,
    step,
    train_without_the_gil,
    wait_until,
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


def test_a_run(directory: Path) -> None:
    run = dcr.run.Run(directory)
    assert run.committed() == (0, "")
    engine = Engine(run, "engine-a", Net(1))
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    before = digest(engine.model)
    assert engine.agent.opened == [] and not engine.gate.status()[0]
    assert digest(engine.model) == before

    first = owner.refit(0)
    engine.wait_for("0")
    assert (first.version, first.label, first.mode, first.attempts) == (1, "0", "dense", 1)
    assert digest(engine.model) == digest(model)

    other = Engine(run, "engine-b", Net(3))
    other.wait_for("0")  # by what the owner holds of the committed version
    assert digest(other.model) == digest(model)

    for number in range(1, 5):
        step(model, number)
        result = owner.refit(number, asynchronous=number % 2 == 0)
        for one in (engine, other):
            one.wait_for(str(number))
            assert digest(one.model) == digest(model)
        assert (result.version, result.mode) == (number + 1, "mixed")
        metrics = result.metrics()
        assert metrics["refit/delta/payload_bytes"] == result.payload_bytes > 0
        assert 0 < metrics["refit/delta/change_rate"] < 0.1
    assert run.committed() == (5, "4")
    assert engine.agent.opened == ["0", "1", "2", "3", "4"]

    unchanged = owner.refit("same")
    assert (unchanged.changed_elements, unchanged.payloads) == (0, 0)
    engine.wait_for("same")
    other.close()
    step(model, 9)
    assert owner.refit("without b").attempts == 1
    deadline = time.monotonic() + 60
    # Not rglob, which fails where a folder goes away under it.
    while any(files for _, _, files in os.walk(directory / "objects")):
        assert time.monotonic() < deadline, "an attempt that is over has left objects"
        time.sleep(0.05)


def test_the_environment_names_a_run_that_is_nobody_elses(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCR_RUN", str(directory))
    before = os.umask(0)  # whose bits would show
    try:
        engine = Engine(dcr.run.Run(), "engine", Net(1))
        model = Net(2)
        owner = dcr.torch.Owner(model)
        assert owner.refit("a").version == 1
        engine.wait_for("a")
    finally:
        os.umask(before)
    assert digest(engine.model) == digest(model)
    assert dcr.run.Run().path == str(directory)
    modes = {one: one.lstat().st_mode for one in (directory, *directory.iterdir())}
    folders = {one for one, mode in modes.items() if stat.S_ISDIR(mode)}
    assert {one.name for one in folders} >= {"keys", "locks", "logs", "objects", "peers", "sources"}
    assert {stat.S_IMODE(modes[one]) for one in folders} == {0o700}
    # The rest lies behind these. Secrets, and what says who takes part, have modes of their own.
    files = [*directory.glob("keys/*.key"), *directory.glob("peers/*"), *directory.glob("logs/*")]
    assert {"owner-0.key", "engine.0.key", "coordinator-0.log"} <= {one.name for one in files}
    for file in (directory / "settings.toml", *files):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_handle_and_optimizers(directory: Path) -> None:
    model = Net(2)
    engine = Engine(dcr.run.Run(directory), "engine", Net(1))
    owner = dcr.torch.Owner(model, run=directory)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    handle = owner.refit("a", wait=False)
    with pytest.raises(dcr.torch.OpenRefit, match="the refit 'a' is open"):
        optimizer.step()
    with pytest.raises(errors.InvalidArgument, match="the refit 'a' is open"):
        owner.refit("b")
    result = handle.result()
    assert handle.done() and handle.result() is result
    optimizer.step()
    core = dcr.run.Run(directory).core
    operator = dcr._core.RunOperator(core)
    coordinator = dcr._core.RunCoordinator(core, "coordinator-2")
    made = owner, handle, engine.gate._core, engine.receiver._core, core, operator, coordinator
    for one in made:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(one)
        with pytest.raises(TypeError, match="cannot be pickled"):
            copy.copy(one)
    calls = [one.close for one in made if one is not handle]
    calls += [lambda: owner.refit("in a child"), core.committed, lambda: operator.look(0)]
    calls += [handle.result, handle.done, coordinator.failure]
    assert refused_in_child(calls) == len(made) + 5
    operator.close()
    coordinator.close()
    # What is refused changes nothing.
    with pytest.raises(errors.Exists, match="owner-0 takes part in this run already"):
        dcr.torch.Owner(model, run=directory)
    step(model, 1)
    assert owner.refit("b").version == 2
    engine.wait_for("b")
    assert digest(engine.model) == digest(model)


def test_weights_that_change_under_an_open_refit(directory: Path) -> None:
    """What was sent is committed; the owner's next refit sends everything."""
    applied, go_on = threading.Event(), threading.Event()

    def after_apply() -> None:
        applied.set()
        assert go_on.wait(60)

    run = dcr.run.Run(directory)
    serving, model, agent = Net(1), Net(2), LabelAgent()
    run.gate("e", receivers=["e.0"], agent=agent)
    run.receiver("e.0", engine="e", model=serving, after_apply=after_apply)
    owner = dcr.torch.Owner(model, run=directory)
    go_on.set()
    owner.refit("a")
    go_on.clear()
    applied.clear()
    step(model, 1)
    sent = digest(model)
    handle = owner.refit("b", wait=False)
    assert applied.wait(60)
    with torch.no_grad():
        model.second.weight[3, 4] += 1
    go_on.set()
    result = handle.result()
    assert (result.version, result.mode, result.without_baseline) == (2, "mixed", ("owner-0",))
    wait_until(lambda: agent.label == "b")
    assert digest(serving) == sent != digest(model)
    result = owner.refit("c")
    assert (result.version, result.mode, result.without_baseline) == (3, "dense", ())
    wait_until(lambda: agent.label == "c")
    assert digest(serving) == digest(model)


def test_no_data_thread_of_an_owner_takes_the_gil(directory: Path) -> None:
    """Weights are compared, compressed, sent and committed while a call holds the GIL."""
    engine = Engine(dcr.run.Run(directory), "engine", Net(1))
    trainer, said = forked(train_without_the_gil, str(directory))
    try:
        engine.wait_for("b")
        assert digest(engine.model) == said.recv()
    finally:
        trainer.kill()
    with pytest.raises(EOFError):  # it was held to its end
        said.recv()


def test_ctrl_c_ends_a_refit(directory: Path) -> None:
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    # Not after the minutes that a refit may wait.
    assert interrupted_after(0.5, lambda: owner.refit("nobody is there")) < 5
    assert owner.open_refit is None
    engine = Engine(dcr.run.Run(directory), "engine", Net(1))
    step(model, 1)
    assert owner.refit("now").version == 1
    engine.wait_for("now")
    assert digest(engine.model) == digest(model)


def test_an_interrupted_refit_is_committed(directory: Path) -> None:
    """Everything of it has been sent: the next one is the version after it."""
    run = dcr.run.Run(directory)
    model, serving, agent = Net(2), Net(1), LabelAgent()
    applying, go_on = threading.Event(), threading.Event()

    def after_apply() -> None:
        applying.set()
        go_on.wait(60)

    run.gate("engine", receivers=["engine.0"], agent=agent)
    run.receiver("engine.0", engine="engine", model=serving, after_apply=after_apply)
    owner = dcr.torch.Owner(model, run=directory)

    handle = owner.refit("kept", wait=False)
    assert applying.wait(60)
    interrupted_after(0.3, handle.result)
    assert owner.version == 0
    threading.Timer(0.5, go_on.set).start()
    assert owner.next_version() == 2
    wait_until(lambda: agent.label == "kept")
    assert digest(serving) == digest(model)
    step(model, 1)
    assert owner.refit("next").version == 2


def test_an_engine_dies_while_it_applies(directory: Path) -> None:
    model = Net(2)
    survivor = EngineProcess(directory, "survivor")
    # What comes first is applied, then audited.
    victim = EngineProcess(directory, "victim", kill="receiver@apply:3")
    owner = dcr.torch.Owner(model, run=directory)
    owner.refit("0")
    assert survivor.wait_for("0") == victim.wait_for("0") == digest(model)
    step(model, 1)
    result = owner.refit("1")
    assert victim.end() == -signal.SIGKILL
    assert (result.version, result.mode) == (2, "overwrite") and result.attempts > 1
    assert survivor.wait_for("1") == digest(model)
    again = EngineProcess(directory, "victim")
    assert again.wait_for("1") == digest(model)
    step(model, 2)
    assert owner.refit("2").mode == "mixed"
    assert survivor.wait_for("2") == again.wait_for("2") == digest(model)
    assert (survivor.end(), again.end()) == (0, 0)


class BusyAgent(LabelAgent):
    """An engine with a request that runs until it is finished, or failed."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = threading.Event()
        self.failed = False

    def close(self, fail_requests: bool) -> None:
        if fail_requests:
            self.failed = True
            self.finished.set()
        if self.label is not None:
            assert self.finished.wait(60)
        super().close(fail_requests)


@pytest.mark.parametrize("fail_overdue", [True, False])
def test_requests_that_do_not_drain(directory: Path, fail_overdue: bool) -> None:
    directory.mkdir(mode=0o700)
    drain_ms = 6000 if fail_overdue else 300
    (directory / "settings.toml").write_text(f"[waits]\ndrain_ms = {drain_ms}\n")
    run = dcr.run.Run(directory)
    agent, model = BusyAgent(), Net(1)
    run.gate("busy", receivers=["busy.0"], agent=agent, fail_overdue=fail_overdue)
    run.receiver("busy.0", engine="busy", model=model)
    trained = Net(2)
    owner = dcr.torch.Owner(trained, run=directory)
    owner.refit("first")
    wait_until(lambda: agent.label == "first")
    held = digest(model)
    step(trained, 1)
    handle = owner.refit("second", wait=False)
    if not fail_overdue:
        time.sleep(1)
        assert not handle.done() and not agent.failed
        assert agent.label == "first" and digest(model) == held  # nothing is written beneath it
        agent.finished.set()
    result = handle.result()
    assert result.version == 2 and (result.attempts == 1 or not fail_overdue)
    wait_until(lambda: agent.label == "second")
    assert agent.failed == fail_overdue
    assert digest(model) == digest(trained) != held


def test_the_coordinator_is_killed_and_comes_back(directory: Path) -> None:
    model = Net(2)
    engine = Engine(dcr.run.Run(directory), "engine", Net(1))
    owner = dcr.torch.Owner(model, run=directory)
    for number in range(3):
        step(model, number)
        handle = owner.refit(number, wait=False)
        for name in ("coordinator-0", "coordinator-1")[: number % 3]:
            for process in processes(directory, name):
                os.kill(process, signal.SIGKILL)
        assert handle.result().version == number + 1
        engine.wait_for(str(number))
        assert digest(engine.model) == digest(model)
    for name in ("coordinator-0", "coordinator-1", "node-0"):
        deadline = time.monotonic() + 60
        while not processes(directory, name):
            assert time.monotonic() < deadline, name
            time.sleep(0.1)


class Damaged:
    """A module with something that writes to a parameter behind everybody's back."""

    def __init__(self, seed: int) -> None:
        self.model = Net(seed)
        self.on = True

    def __call__(self) -> None:
        if self.on:
            with torch.no_grad():
                self.model.second.weight[3, 4] += 1


def test_what_no_loader_takes_is_said(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with role and rank of who says it."""
    serving, agent = torch.nn.Linear(64, 33, bias=False), LabelAgent()
    run = dcr.run.Run(directory)
    run.gate("e", receivers=["e.0"], agent=agent)

    def load_weights(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if name == "second.weight":
                serving.weight.data.copy_(tensor)

    receiver = run.receiver("e.0", engine="e", model=serving, load_weights=load_weights)
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    for number in range(2):
        step(model, number)
        owner.refit(number)
        wait_until(lambda number=number: agent.label == str(number), receiver.status)
        held, wanted = (one.weight.view(torch.int32) for one in (serving, model.second))
        assert torch.equal(held, wanted)
    run.close()
    said = [one for one in caplog.records if "no receiver's loader takes" in one.getMessage()]
    (record,) = said
    assert record.getMessage() == (
        'owner-0: no receiver\'s loader takes "first.bias", "first.weight", "steps": '
        "is that meant?"
    )
    assert (record.dcr_endpoint, record.dcr_role, record.dcr_rank) == ("owner-0", "owner", 0)


def test_what_comes_first_is_audited(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / "settings.toml").write_text("[waits]\nrestore_again_ms = 200\n")
    run = dcr.run.Run(directory)
    trained = Net(9)
    owner = dcr.torch.Owner(trained, run=directory)
    wrong = 'tensor "second.weight": an audit of what came found 1 of '
    handle = None
    engines = []
    for name in ("early", "late"):  # by an attempt that sends everything, by a restore
        damaged, agent = Damaged(1), LabelAgent()
        gate = run.gate(name, receivers=[f"{name}.0"], agent=agent)
        run.receiver(f"{name}.0", engine=name, model=damaged.model, after_apply=damaged)
        handle = handle or owner.refit("first", wait=False)
        wait_until(lambda gate=gate: wrong in gate.status()[1], gate.status)
        assert agent.opened == []
        damaged.on = False
        wait_until(lambda agent=agent: agent.label == "first", gate.status)
        assert digest(damaged.model) == digest(trained)
        engines.append((damaged, agent))
    assert handle is not None and handle.result().version == 1
    step(trained, 1)
    owner.refit("next")
    for damaged, agent in engines:
        wait_until(lambda agent=agent: agent.label == "next")
        assert digest(damaged.model) == digest(trained)


def test_one_directory_by_two_paths(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(directory)
    run = dcr.run.Run(directory)
    assert dcr.run.Run(tmp_path / "link").core is run.core


def test_a_run_is_closed_while_a_receiver_works(directory: Path) -> None:
    """What is closed ends when its calls have returned, and harms nobody."""
    inside, go_on = threading.Event(), threading.Event()

    def before_prewarm() -> None:
        inside.set()
        go_on.wait(60)

    run = dcr.run.Run(directory)
    receiver = run.receiver("e.0", engine="e", model=Net(1), before_prewarm=before_prewarm)
    owner = dcr.torch.Owner(Net(2), run=directory)
    assert inside.wait(60)
    with pytest.raises(errors.InvalidArgument, match="no owners were found yet|is closed"):
        dcr._core.RunReceiver(run.core, "f.0", "e").serve(traced())
    dcr.run._CLOSE_SECONDS, before = 0.1, dcr.run._CLOSE_SECONDS
    try:
        run.close()
    finally:
        dcr.run._CLOSE_SECONDS = before
    go_on.set()
    receiver._thread.join(60)
    assert not receiver._thread.is_alive()
    with pytest.raises(errors.InvalidArgument, match="the owner is closed"):
        owner.refit("late")
    again = dcr.torch.Owner(Net(2), run=directory)
    again.close()


def test_two_sessions_of_a_process(directory: Path) -> None:
    """One that opens while another closes takes nobody's place, nor the lock that says it lives."""
    first, second = (
        dcr._core.RunSession(str(directory), program=dcr.run._program()) for _ in range(2)
    )
    gate = dcr._core.RunGate(first, "e", ["e.0"])
    with pytest.raises(errors.Exists, match="e takes part in this run already"):
        dcr._core.RunGate(second, "e", ["e.0"])
    other = dcr._core.RunGate(second, "other", ["other.0"])
    gate.close()
    first.close()
    heir = dcr._core.RunGate(second, "e", ["e.0"])
    for one in (heir, other, second):
        one.close()


def test_a_receiver_of_another_engine_of_its_name(directory: Path) -> None:
    """One that was taken for dead and goes on: it has weights, which the gate is not over."""
    run, agent = dcr.run.Run(directory), LabelAgent()
    gate = run.gate("e", receivers=["e.0"], agent=agent, engine_instance=2**62)
    old = run.receiver("e.0", engine="e", model=Net(1))
    owner = dcr.torch.Owner(Net(2), run=directory)
    stranger = (
        "e.0 has proven no version to this gate; one of another instance of the engine spoke"
    )
    wait_until(lambda: gate.status() == (False, stranger), lambda: str(gate.status()))
    old.close()
    run.receiver("e.0", engine="e", model=Net(1), engine_instance=2**62)
    owner.refit("step")
    wait_until(lambda: agent.opened == ["step"], lambda: str(gate.status()))
    with pytest.raises(errors.InvalidArgument, match=f"instance {2**62 + 1} is more than 2"):
        run.gate("other", receivers=["other.0"], agent=agent, engine_instance=2**62 + 1)


def traced() -> object:
    """A receiver of nothing."""
    from dcr.torch.receiver import traced_receiver

    return traced_receiver(torch.nn.Module(), [], None, [[]], ())[0]


def test_replicas_are_compared_beside_a_restore(directory: Path) -> None:
    engines = [Engine(dcr.run.Run(directory), "engine-0", Net(1))]
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory, check_replicas_every=1)
    owner.refit(0)
    for number in range(1, 4):
        engines.append(Engine(dcr.run.Run(directory), f"engine-{number}", Net(number)))
        step(model, number)
        owner.refit(number)
    for engine in engines:
        engine.wait_for("3")
        assert digest(engine.model) == digest(model)


def test_a_trainer_comes_back(directory: Path) -> None:
    engine = Engine(dcr.run.Run(directory), "engine", Net(1))
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    owner.refit("before")
    owner.close()
    again = Net(5)
    owner = dcr.torch.Owner(again, run=directory)
    result = owner.refit("after")
    assert (result.version, result.mode) == (2, "dense")
    engine.wait_for("after")
    assert digest(engine.model) == digest(again)


def test_owners_of_another_model(directory: Path) -> None:
    """A receiver that may be serving does not trace anew; one that never has does, and says what
    it can't load."""

    def wait_for(engine: Engine, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in engine.receiver.status():
            assert time.monotonic() < deadline, engine.receiver.status()
            time.sleep(0.05)

    run = dcr.run.Run(directory)
    half = Net(3)
    half.first.bias = None
    waiting = Engine(run, "waiting", half)
    owner = dcr.torch.Owner(half, run=directory)
    wait_for(waiting, "waits for a dense attempt")
    owner.close()
    owner = dcr.torch.Owner(Net(2), run=directory)
    wait_for(waiting, "failed: ")  # for it has no bias to load
    waiting.close()
    serving = Engine(run, "serving", Net(1))
    owner.refit("before")
    owner.close()
    owner = dcr.torch.Owner(half, run=directory)
    wait_for(serving, "failed: owners with other tensors")
    owner.close()


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DCR_RUN", raising=False)
    with pytest.raises(errors.InvalidArgument, match="set DCR_RUN"):
        dcr.run.Run()
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(errors.InvalidArgument, match="others may write to this directory of a run"):
        dcr.run.Run(open_to_all)
    with pytest.raises(errors.InvalidArgument, match="at most 67 bytes, for sockets lie in it"):
        dcr.run.Run(tmp_path / ("long" * 20))
    with pytest.raises(errors.InvalidArgument, match="sockets lie: .* is no address"):
        dcr.run.Run(tmp_path / "with space")
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    if os.geteuid() == 0:  # who else could give a folder away
        os.chown(theirs, 12345, -1)
        with pytest.raises(errors.InvalidArgument, match="belongs to user 12345, not to user 0"):
            dcr.run.Run(theirs)
    wrong = tmp_path / "wrong"
    wrong.mkdir(mode=0o700)
    (wrong / "settings.toml").write_text("[waits]\nlook_mss = 1\n")
    with pytest.raises(errors.InvalidArgument, match="did you mean look_ms"):
        dcr.run.Run(wrong)


def test_a_refused_receiver_is_named_to_everybody(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine's gate, `dcr status`, the owner that waits, and then the refit say who and why."""
    directory.mkdir(mode=0o700)
    (directory / "settings.toml").write_text("[waits]\nprepare_ms = 4000\n")
    monkeypatch.setattr("dcr.torch.run_owner._SLOW_SECONDS", 1.0)

    def before_prewarm() -> None:
        raise errors.Unsupported("layer first is packed")

    run = dcr.run.Run(directory)
    gate = run.gate("e", receivers=["e.0"], agent=LabelAgent())
    receiver = run.receiver("e.0", engine="e", model=Net(1), before_prewarm=before_prewarm)
    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    why = "e.0 takes no part: layer first is packed"
    with pytest.raises(errors.Unsupported, match=f"no engine can take the refit: {why}"):
        owner.refit("nobody")
    assert gate.status() == (False, why) and gate.refusal == why
    assert f"e stays closed: {why}" in caplog.text
    assert f"gather: waits for a receiver to join; {why} (dcr status --run " in caplog.text
    status = subprocess.run(
        [Path(sys.executable).with_name("dcr"), "status", "--run", directory],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f": {why}; holds no version" in status
    assert "receiver e.0: enrolled, refused (layer first is packed)" in status
    # Another engine is served without it, and its own next life is served too.
    other = Engine(run, "other", Net(3))
    assert owner.refit("other").version == 1
    other.wait_for("other")
    assert not gate.status()[0]
    gate.close()
    receiver.close()
    again = Engine(run, "e", Net(4))
    again.wait_for("other")
    assert digest(again.model) == digest(model)
