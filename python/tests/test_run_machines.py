"""Runs on several machines: endpoints over TCP that a file lists, each machine with a directory of
its own for keys and sockets."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import dcr.run
import dcr.torch
from dcr import _core, errors
from interrupts import interrupted_after
from run_parts import Engine, EngineProcess, LabelAgent, Net, digest, step

DCR = str(Path(sys.executable).with_name("dcr"))
SHARED = "has to be the same directory on all machines of the run, on a file system that they share"

ENDPOINTS = {
    "a": ["coordinator-0", "owner-0", "node-a", "engine-a", "engine-a.0", "operator"],
    "b": ["coordinator-1", "node-b", "engine-b", "engine-b.0"],
}


class Cluster:
    """Two machines, of which all but the store and objects is apart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}
        keys = {}
        sockets = []
        for machine, names in ENDPOINTS.items():
            for folder in (path / machine, path / machine / "keys"):
                folder.mkdir(mode=0o700)
            for name in names:
                made = self.dcr("keygen", name, "-o", str(path / machine / "keys")).stdout
                keys[name] = made.split()[1]
                sockets.append(socket.create_server(("127.0.0.1", 0)))
                self.addresses[name] = f"tcp://127.0.0.1:{sockets[-1].getsockname()[1]}"
        for one in sockets:
            one.close()

        def endpoint(table: str, name: str, more: str = "") -> str:
            return (
                f"[[{table}]]\nname = '{name}'\naddress = '{self.addresses[name]}'\n"
                f"public_key = '{keys[name]}'\n{more}"
            )

        self.listed = "[waits]\nleader_ms = 1000\nprepare_ms = 5000\n" + "".join(
            (
                endpoint("coordinator", "coordinator-0"),
                endpoint("coordinator", "coordinator-1"),
                endpoint("owner", "owner-0"),
                endpoint("node", "node-a"),
                endpoint("node", "node-b"),
                endpoint("engine", "engine-a", "node = 'node-a'\n"),
                endpoint("engine.receiver", "engine-a.0"),
                endpoint("engine", "engine-b", "node = 'node-b'\n"),
                endpoint("engine.receiver", "engine-b.0"),
                endpoint("operator", "operator"),
            )
        )
        self.a = self.file("a", "run.toml")
        self.b = self.file("b", "run.toml")

    def file(
        self, machine: str, name: str, directory: str = "../shared", objects: str = "../objects"
    ) -> Path:
        """The run's file on a machine."""
        path = self.path / machine / name
        head = f"directory = '{directory}'\nobjects = '{objects}'\nwork = '.'\n"
        path.write_text(head + self.listed)
        return path

    def dcr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([DCR, *arguments], capture_output=True, text=True, timeout=60)

    def start(self, command: str, name: str, file: Path) -> None:
        self.processes[name] = subprocess.Popen(
            [DCR, command, "--config", str(file), "--name", name],
            stdout=subprocess.DEVNULL,
            stderr=(self.path / f"{name}.log").open("a"),
            text=True,
        )

    def start_all(self, both: bool = True) -> None:
        self.start("coordinator", "coordinator-0", self.a)
        self.wait_until_led()
        self.start("node", "node-a", self.a)
        if both:
            self.start("coordinator", "coordinator-1", self.b)
            self.start("node", "node-b", self.b)

    def wait_until_led(self) -> None:
        while "leader: coordinator-0" not in self.dcr("status", "--config", str(self.a)).stdout:
            assert self.processes["coordinator-0"].poll() is None, self.logs()

    def logs(self) -> str:
        return "\n".join(
            f"== {log.name}\n{log.read_text()}" for log in sorted(self.path.glob("*.log"))
        )

    def stop(self) -> None:
        for file in self.path.glob("*/*.toml"):
            session = dcr.run._sessions.pop(os.path.realpath(file), None)
            if session is not None:
                session.close()
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    except BaseException:
        print(made.logs(), file=sys.stderr)
        raise
    finally:
        made.stop()


def test_two_machines(cluster: Cluster) -> None:
    cluster.start_all()
    run = dcr.run.Run(cluster.a)
    assert run.option == f"--config {cluster.a}"
    model = Net(2)
    owner = dcr.torch.Owner(model, run=cluster.a)
    here = Engine(run, "engine-a", Net(1))
    there = EngineProcess(cluster.b, "engine-b")
    for number in range(4):
        step(model, number)
        result = owner.refit(number, asynchronous=number % 2 == 1)
        here.wait_for(str(number))
        assert there.wait_for(str(number)) == digest(here.model) == digest(model)
    assert (result.version, result.mode) == (4, "mixed")
    # Nothing of a machine's own lies where all look, nor the other way round.
    assert {path.name for path in (cluster.path / "b").glob("*.payloads")} == {
        "engine-b.0.payloads"
    }
    assert not list((cluster.path / "shared").glob("*.payloads"))
    assert not list((cluster.path / "shared" / "keys").glob("*"))
    assert not (cluster.path / "a" / "objects").exists()
    # An engine that is killed and comes back restores over the network.
    there.kill()
    again = EngineProcess(cluster.b, "engine-b")
    assert again.wait_for("3") == digest(model)
    status = cluster.dcr("status", "--config", str(cluster.a)).stdout
    assert "engine engine-b: open for" in status and "committed: version 4 (3)" in status
    assert again.end() == 0
    owner.close()
    here.close()


def refused(file: Path, error: type[Exception]) -> str:
    """What an engine of machine b is told."""
    with pytest.raises(error) as caught:
        dcr.run.Run(file).gate("engine-b", receivers=["engine-b.0"], agent=LabelAgent())
    return str(caught.value)


def test_a_directory_that_is_not_shared(cluster: Cluster) -> None:
    path = cluster.path
    nobody = cluster.file("b", "nobody.toml")
    assert refused(nobody, errors.NotFound) == (
        f"{path}/b/../shared holds no control plane: start the run's coordinators first (dcr "
        f'coordinator); where they run, "directory" {SHARED}'
    )
    cluster.start_all(both=False)
    # A machine's own directory, where nothing is.
    own = cluster.file("b", "own.toml", directory="own")
    assert refused(own, errors.NotFound) == (
        f"{path}/b/own holds no control plane: start the run's coordinators first (dcr "
        f'coordinator); where they run, "directory" {SHARED}'
    )
    # One in which a coordinator of that machine has made a run.
    another = (
        f"{path}/b/own: the control plane there is of another run than that of coordinator-0 "
        f'({cluster.addresses["coordinator-0"]}); "directory" {SHARED}'
    )
    made = cluster.dcr("coordinator", "--config", str(own), "--name", "coordinator-1")
    assert (made.returncode, made.stderr) == (
        3,
        f"dcr coordinator: {path}/b/../objects/run says that another run's objects lie there: "
        "remove that file with all that is beside it, or name another directory; where that run is "
        f'this one, "directory" {SHARED}\n',
    )
    own = cluster.file("b", "own.toml", directory="own", objects="own/objects")
    made = cluster.dcr("coordinator", "--config", str(own), "--name", "coordinator-1")
    # It listens by then: a peer may have connected that it had no time to shake hands with.
    ended = (
        "coordinator-1: a connection ended before its handshake at "
        f"{cluster.addresses['coordinator-1']}\n"
    )
    said = made.stderr.replace(ended, "")
    assert (made.returncode, said) == (3, f"dcr coordinator: {another}\n")
    assert refused(own, errors.Mismatch) == another
    with pytest.raises(errors.Mismatch, match=re.escape(another)):
        dcr.run.Run(own).receiver("engine-b.0", engine="engine-b", model=Net(1))
    node = cluster.dcr("node", "--config", str(own), "--name", "node-b")
    assert (node.returncode, node.stderr) == (3, f"dcr node: {another}\n")


def test_a_copy_of_the_directory(cluster: Cluster) -> None:
    cluster.start_all()
    owner = dcr.torch.Owner(Net(2), run=cluster.a)  # so coordinators have made it
    shutil.copytree(cluster.path / "shared", cluster.path / "b" / "copy")
    copy = cluster.file("b", "copy.toml", directory="copy")
    message = refused(copy, errors.Mismatch)
    assert re.fullmatch(
        re.escape(f"{cluster.path}/b/copy: the control plane there is a copy of that of ")
        + r"coordinator-[01] \(tcp://127\.0\.0\.1:\d+\), whose beat does not come to it; "
        + re.escape(f'"directory" {SHARED}'),
        message,
    )
    owner.close()


def test_objects_that_are_not_shared(cluster: Cluster) -> None:
    cluster.start_all(both=False)
    path = cluster.path
    for number, objects in enumerate(("objects", "others")):
        file = cluster.file("b", f"{objects}.toml", objects=objects)
        message = (
            f"{path}/b/{objects}: the objects there are not those of the run in "
            f'{path}/b/../shared; "objects" {SHARED}'
        )
        if number == 1:
            (path / "b" / objects).mkdir()
            (path / "b" / objects / "run").write_text("0" * 32 + "\n")
        assert refused(file, errors.Mismatch) == message
        node = cluster.dcr("node", "--config", str(file), "--name", "node-b")
        assert (node.returncode, node.stderr) == (3, f"dcr node: {message}\n")


def test_a_creation_that_was_cut_short(cluster: Cluster) -> None:
    """After the objects' mark, before the control plane was there."""
    shared, objects = cluster.path / "shared", cluster.path / "objects"
    for folder in (shared, objects):
        folder.mkdir(mode=0o700)
    (shared / "creating.run").write_text("ab" * 16 + "\n")
    (objects / "run").write_text("ab" * 16 + "\n")
    cluster.start_all(both=False)
    assert (objects / "run").read_text() == "ab" * 16 + "\n"
    assert not (shared / "creating.run").exists()


def test_folders_that_others_may_write_to(cluster: Cluster) -> None:
    cluster.start_all()
    for folder in ("shared", "objects", "a", "a/keys", "shared/sources"):
        path = cluster.path / folder
        before = path.stat().st_mode
        path.chmod(0o770)
        message = (
            f"{cluster.path}/{folder}: others may write to this directory of a run: chmod go-w it, "
            "or name another"
        )
        refusal = refused(cluster.a, errors.InvalidArgument)
        plain = refusal.replace("/a/../", "/").replace("/./", "/").replace("/.:", ":")
        assert plain == message
        made = cluster.dcr("coordinator", "--config", str(cluster.a), "--name", "coordinator-0")
        assert made.returncode == 2 and "others may write" in made.stderr
        path.chmod(before)


def test_what_a_file_must_have(cluster: Cluster) -> None:
    cluster.start_all()
    run = dcr.run.Run(cluster.b)
    with pytest.raises(errors.InvalidArgument, match=r"named engine-x; did you mean engine-a\?"):
        run.gate("engine-x", receivers=["engine-x.0"], agent=LabelAgent())
    with pytest.raises(errors.InvalidArgument, match="node-b is no gate there"):
        run.gate("node-b", receivers=["engine-b.0"], agent=LabelAgent())
    with pytest.raises(errors.InvalidArgument, match=r"engine-a\.0 is no receiver of engine-b"):
        run.receiver("engine-a.0", engine="engine-b", model=Net(1))
    key = cluster.path / "b" / "keys" / "engine-b.key"
    key.chmod(0o644)
    with pytest.raises(
        errors.InvalidArgument, match=r"engine-b\.key holds a secret but others may use it: chmod"
    ):
        run.gate("engine-b", receivers=["engine-b.0"], agent=LabelAgent())
    key.chmod(0o600)
    secret = key.read_text()
    cluster.dcr("keygen", "engine-b", "-o", str(key.parent), "--force")
    with pytest.raises(errors.Mismatch, match="the key of engine-b is another than the config"):
        run.gate("engine-b", receivers=["engine-b.0"], agent=LabelAgent())
    key.unlink()
    with pytest.raises(errors.NotFound, match=r"keys/engine-b\.key"):
        run.gate("engine-b", receivers=["engine-b.0"], agent=LabelAgent())
    key.write_text(secret)
    key.chmod(0o600)
    run.gate("engine-b", receivers=["engine-b.0"], agent=LabelAgent()).close()
    # Its coordinators have to be there.
    for name in ("coordinator-0", "coordinator-1"):
        cluster.processes.pop(name).kill()
    message = refused(cluster.b, errors.Unavailable)
    assert message.startswith("no coordinator of the run answers engine-b: start one")
    assert cluster.addresses["coordinator-0"] in message
    # Ctrl-C comes before that.
    joins = {
        "owner": lambda: dcr.torch.Owner(Net(1), run=cluster.a),
        "gate": lambda: run.gate("engine-b", receivers=["engine-b.0"], agent=LabelAgent()),
        "receiver": lambda: _core.RunReceiver(run.core, "engine-b.0", "engine-b"),
    }
    for name, join in joins.items():
        print(f"{name}: {interrupted_after(0.5, join) * 1000:.0f} ms")
    # A run of checkpoints is not for trainers and engines, nor the other way round.
    file = cluster.b
    file.write_text("base = '/b'\nowners = 'fsdp:1'\nreceivers = 'fused-tp:1'\n" + file.read_text())
    run.close()
    with pytest.raises(errors.InvalidArgument, match="bring the weights of a run: the keys base"):
        dcr.run.Run(file)
    owner = cluster.dcr("owner", "--config", str(cluster.a), "--name", "owner-0")
    assert owner.returncode == 2 and "the run's file has no base" in owner.stderr


def test_a_driver_coordinates(cluster: Cluster) -> None:
    """No coordinator is a process of its own here."""
    run = dcr.run.Run(cluster.a, create=True)
    coordinator = run.coordinator("coordinator-0")
    for machine, file in (("a", cluster.a), ("b", cluster.b)):
        cluster.start("node", f"node-{machine}", file)
    model = Net(2)
    owner = dcr.torch.Owner(model, run=cluster.a)
    there = EngineProcess(cluster.b, "engine-b")
    owner.refit("here")
    assert there.wait_for("here") == digest(model)
    seen = run.status()
    assert (seen.leader, seen.version) == ("coordinator-0", 1)
    assert [(one.name, one.open) for one in seen.engines if one.answers] == [("engine-b", True)]
    assert coordinator.failure == ""
    # When it leaves another takes over.
    cluster.start("coordinator", "coordinator-1", cluster.b)
    coordinator.close()
    step(model, 1)
    owner.refit("there")
    assert there.wait_for("there") == digest(model)
    assert run.status().leader == "coordinator-1"
    with pytest.raises(errors.InvalidArgument, match="the coordinator is closed"):
        coordinator.failure  # noqa: B018
    there.end()
