"""Trainers of two ranks in a run: under torchrun, without torch.distributed, and called by a
driver."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

import dcr.run  # noqa: E402
import run_ranks  # noqa: E402
from dcr.torch import Owner  # noqa: E402
from owner_checks import ThreadedRanks  # noqa: E402
from run_parts import FORKSERVER, Engine, Net, digest, run_directory  # noqa: E402


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


@pytest.fixture
def engine(directory: Path) -> Engine:
    return Engine(dcr.run.Run(directory), "engine", Net(1))


def test_under_torchrun(directory: Path, engine: Engine, tmp_path: Path) -> None:
    results = tmp_path / "results"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", run_ranks.__file__, str(directory), str(results)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(results.read_text())
    assert [one[:3] for one in found] == [[1, "0", "dense"], [2, "1", "mixed"], [3, "2", "mixed"]]
    assert engine.agent.opened == ["0", "1", "2"]
    assert digest(engine.model) == found[-1][3]


def ends(process: Any) -> None:
    process.join(60)
    assert process.exitcode == 0


@contextmanager
def actors_of(
    tmp_path: Path,
) -> Iterator[tuple[Callable[..., list[Any]], Callable[..., list[Any]]]]:
    """Two ranks in processes of their own: what calls a method of both, and one of each."""
    actors: list[tuple[Connection, Any]] = []
    for rank in range(2):
        ours, theirs = FORKSERVER.Pipe()
        process = FORKSERVER.Process(
            target=run_ranks.actor, args=(theirs, rank, 2, str(tmp_path / "store")), daemon=True
        )
        process.start()
        actors.append((ours, process))

    def answer(calls: Connection) -> Any:
        assert calls.poll(240), "a rank does not answer"
        found = calls.recv()
        assert not isinstance(found, Exception), found
        return found

    def call(name: str, *args: object) -> list[Any]:
        for calls, _ in actors:
            calls.send((name, args))
        return [answer(calls) for calls, _ in actors]

    def each(*wanted: tuple[Any, ...]) -> list[Any]:
        for (calls, _), (name, *args) in zip(actors, wanted, strict=True):
            calls.send((name, args))
        return [answer(calls) for calls, _ in actors]

    yield call, each
    for calls, process in actors:
        calls.send(("end", ()))
        ends(process)


def test_a_driver_calls_actors(directory: Path, engine: Engine, tmp_path: Path) -> None:
    with actors_of(tmp_path) as (call, _):
        call("Trainer", str(directory), 2)
        for label in ("a", "b"):
            first, second = call("refit", label)
            assert first == second and first.label == label
            assert digest(engine.model) == call("digest")[0]
            call("step")
        call("close")


def test_one_rank_is_interrupted(directory: Path, tmp_path: Path) -> None:
    """No engine is there, so the refit waits; what ends it on one rank ends it on both."""
    dcr.run.Run(directory).close()
    settings = directory / "settings.toml"
    settings.write_text(re.sub("prepare_ms = .*", "prepare_ms = 2000", settings.read_text()))
    with actors_of(tmp_path) as (call, each):
        call("Trainer", str(directory), 2)
        found = each(("interrupted_refit", "a", 1.0), ("refit_or_error", "a"))
        assert found[0] == "KeyboardInterrupt"
        assert found[1].startswith("Mismatch: owners ask for different refits")
        assert "interrupted by owner-0" in found[1]
        engine = Engine(dcr.run.Run(directory), "engine", Net(1))
        call("step")
        assert call("refit_or_error", "b") == ["committed", "committed"]
        engine.wait_for("b")
        assert digest(engine.model) == call("digest")[0]
        call("close")


def test_an_exchange_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C is seen while other ranks are waited for, and puts no rank out of step."""
    ranks = []
    for rank in range(2):
        ours, theirs = FORKSERVER.Pipe()
        process = FORKSERVER.Process(
            target=run_ranks.interrupted_exchange,
            args=(rank, str(tmp_path / "store"), theirs),
            daemon=True,
        )
        process.start()
        ranks.append((ours, process))
    (first, _), (second, _) = ranks
    assert first.poll(240), "Ctrl-C was not seen while the other rank was waited for"
    assert first.recv() < 5
    second.send("go on")
    both = [b"second 0", b"second 1"]
    assert first.poll(60) and second.poll(60), "the ranks are out of step"
    assert first.recv() == (None, both)
    assert second.recv() == ([b"first 0", b"first 1"], both)
    for _, process in ranks:
        ends(process)


def test_replicas_without_torch_distributed(directory: Path, engine: Engine) -> None:
    between = FORKSERVER.Pipe()
    ranks = []
    for rank in range(2):
        ours, theirs = FORKSERVER.Pipe(duplex=False)
        process = FORKSERVER.Process(
            target=run_ranks.replica,
            args=([between[rank]], theirs, str(directory), rank),
            daemon=True,
        )
        process.start()
        ranks.append((ours, process))
    for version in (1, 2):
        (first, owned, bits), (second, owned_too, _) = (ours.recv() for ours, _ in ranks)
        assert first == second and first.version == version
        # Each is owned once.
        assert owned + owned_too == sum(tensor.numel() for tensor in Net(4).state_dict().values())
        if version == 2:
            engine.wait_for("1")
            assert digest(engine.model) == bits
    first, second = (ours.recv() for ours, _ in ranks)
    assert first == second and '"second.weight" differ: rank 0 and rank 1' in first, first
    for _, process in ranks:
        ends(process)


def test_a_rank_without_a_run(directory: Path, tmp_path: Path) -> None:
    """What one rank is refused for, all raise; the run goes on without them."""
    elsewhere = tmp_path / "run.toml"
    elsewhere.write_text("[[owners]]")
    ranks, models = ThreadedRanks(2), [Net(1), Net(1)]

    def owner_of(rank: int) -> Any:
        with pytest.raises(dcr.Error) as raised:
            Owner(
                models[rank],
                run=elsewhere if rank else directory,
                exchange=ranks.exchange(rank),
                rank=rank,
                ranks=2,
            )
        return raised.value

    first, second = ranks.run(owner_of)
    assert type(first) is type(second), (first, second)
    assert str(first) == f"rank 1 cannot take part in the run: {second}"
    assert str(elsewhere) in str(second)
    engine = Engine(dcr.run.Run(directory), "engine", Net(1))
    owner = Owner(Net(1), run=directory)
    owner.refit("a")
    engine.wait_for("a")
