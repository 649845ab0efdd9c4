"""Engines that are several EngineCores: a model with experts under data parallelism."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_vllm_processes import GATE, Request, engine_of, fork_engines, stands_still, told
from vllm_engines import Child, make_model, needs_vllm, spans, weights_of

needs_vllm()

import cpu_experts  # noqa: E402
import dcr  # noqa: E402
import torch  # noqa: E402

RANKS: dict[str, Any] = {"data_parallel_size": 2}
EXPERT_RANKS = {
    **RANKS,
    "enable_expert_parallel": True,
    "worker_extension_cls": "cpu_experts.Extension",
}


def fork_ranks(directory: Path) -> None:
    """Ranks of experts can run in the processes that are forked from here on."""
    fork_engines()
    directory.mkdir(exist_ok=True)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    os.environ[cpu_experts.PASSES] = str(directory / "passes")
    cpu_experts.install()


def passes() -> int:
    """Forward passes that there were, of all ranks."""
    file = Path(os.environ[cpu_experts.PASSES])
    return file.stat().st_size if file.exists() else 0


class Requests:
    """One to each rank."""

    def __init__(self, engine: Any, name: str, tokens: int) -> None:
        self.all = [Request(engine, f"{name}-{rank}", tokens, rank) for rank in range(2)]

    async def have(self, tokens: int) -> None:
        await asyncio.gather(*(one.has(tokens) for one in self.all))

    async def stand_still(self) -> list[int]:
        """Nothing is computed, dummy batches included."""
        before = passes()
        found = await asyncio.gather(*(stands_still(one) for one in self.all))
        assert passes() == before
        return found

    async def outputs(self) -> list[Any]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(one.task for one in self.all))


async def check_keep(engine: Any, run: Path, models: list[Path]) -> None:
    """The same as of an engine with one EngineCore."""
    first = Requests(engine, "first", 4)
    await asyncio.sleep(0.3)
    await engine.resume_generation()
    assert await engine.wake_up()
    assert await first.stand_still() == [0, 0] and await engine.is_paused()
    await told(run, GATE, "open", "v0")
    assert [spans(one) for one in await first.outputs()] == [[("v0", 0, 4)]] * 2
    kept = Requests(engine, "kept", 100)
    await kept.have(5)
    await told(run, GATE, "close", False)
    await asyncio.sleep(0.1)  # what was on its way
    got = await kept.stand_still()
    late = Requests(engine, "late", 4)
    await engine.resume_generation()
    assert await engine.wake_up()
    await engine.pause_generation(mode="keep")
    await engine.resume_generation()
    assert await kept.stand_still() == got and await late.stand_still() == [0, 0]
    for rank in range(2):
        await told(run, f"engine.{rank}", "load", weights_of(models[1]))
    await told(run, GATE, "open", "v1")
    assert [spans(one) for one in await kept.outputs()] == [
        [("v0", 0, tokens), ("v1", tokens, 100)] for tokens in got
    ]
    assert [spans(one) for one in await late.outputs()] == [[("v1", 0, 4)]] * 2
    # A user's own pause outlives a refit.
    await engine.pause_generation(mode="keep")
    await told(run, GATE, "close", False)
    await told(run, GATE, "open", "v2")
    paused = Requests(engine, "paused", 4)
    await asyncio.sleep(0.1)
    assert await paused.stand_still() == [0, 0] and await engine.is_paused()
    await engine.resume_generation()
    assert [spans(one) for one in await paused.outputs()] == [[("v2", 0, 4)]] * 2
    # One that sleeps is not closed; it is once it has woken up.
    await engine.sleep(level=1)
    with pytest.raises(RuntimeError, match="sleeps at level 1: wake_up"):
        await told(run, GATE, "close", False)
    assert await engine.wake_up()
    await told(run, GATE, "close", False)
    with pytest.raises(Exception, match="while the gate is closed"):
        await engine.sleep(level=1)
    # One that is refused when only some ranks know of the gate leaves no pause behind.
    await told(run, GATE, "open", "v3")
    closing = asyncio.create_task(told(run, GATE, "close", False))
    await asyncio.sleep(0.05)
    with pytest.raises(Exception, match="while the gate is closed"):
        await engine.sleep(level=1)
    await closing
    await told(run, GATE, "open", "v3")
    awake = Requests(engine, "awake", 4)
    assert [spans(one) for one in await awake.outputs()] == [[("v3", 0, 4)]] * 2


async def check_meetings(engine: Any, run: Path) -> None:
    """A user's pauses and refits meet in every order."""
    chance = random.Random(7)

    async def user(mode: str) -> None:
        await asyncio.sleep(chance.random() * 0.06)
        await engine.pause_generation(mode=mode)
        await asyncio.sleep(chance.random() * 0.06)
        await engine.resume_generation()

    async def refit(label: str) -> None:
        await asyncio.sleep(chance.random() * 0.06)
        await told(run, GATE, "close", False)
        await asyncio.sleep(chance.random() * 0.06)
        await told(run, GATE, "open", label)

    for number in range(12):
        running = [
            Request(engine, f"met-{number}-{one}", 6, chance.randrange(2))
            for one in range(chance.randrange(3))
        ]
        async with asyncio.timeout(60):
            mode = chance.choice(["keep", "wait"])
            await asyncio.gather(user(mode), refit(f"m{number}"))
            for one in running:
                assert len((await one.task).outputs[0].token_ids) == 6
            after = await Request(engine, f"after-{number}", 2, number % 2).task
        assert spans(after) == [(f"m{number}", 0, 2)]


async def check_ends(engine: Any, run: Path) -> None:
    """Requests are failed on all ranks; the engine leaves the run without one of them."""
    aborted = Requests(engine, "aborted", 400)
    await aborted.have(3)
    await told(run, GATE, "close", True)
    assert {one.outputs[0].finish_reason for one in await aborted.outputs()} == {"abort"}
    await told(run, GATE, "open", "v4")
    with pytest.raises(RuntimeError, match="engine engine is open, at 'v4'"):
        await told(run, GATE, "open", "v5")
    await told(run, GATE, "close", False)
    waiting = Requests(engine, "waiting", 4)
    assert await waiting.stand_still() == [0, 0]
    await told(run, GATE, "refused", "engine.1 takes no part: layer is packed")
    late = Requests(engine, "late", 4)
    for one in await waiting.outputs() + await late.outputs():
        assert (one.outputs[0].finish_reason, one.outputs[0].token_ids) == ("error", [])
    processes = engine.engine_core.resources.engine_manager.processes
    os.kill(processes[1].pid, signal.SIGSTOP)
    until = time.monotonic() + 60
    while not (run / "gate-engine.left").exists():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    assert processes[0].is_alive()  # and has seen it itself
    os.kill(processes[1].pid, signal.SIGKILL)


def late_rank() -> None:
    """Rank 1 hears late of what is asked of the gate: after whatever users ask for meanwhile."""
    import scripted_run

    scripted_run.register()
    from dcr.vllm import ranks

    ranks._IDLE_SECONDS = 0.15
    ranks._SILENT_SECONDS = 5.0


def scripted(run: Path, models: list[Path]) -> None:
    fork_ranks(run.parent)
    late_rank()

    async def check() -> None:
        engine = engine_of(run, models[0], RANKS, live_weights=True)
        gate = await told(run, GATE, "facts")
        assert gate["receivers"] == ["engine.0", "engine.1"]
        for rank in range(2):
            facts = await told(run, f"engine.{rank}", "facts")
            assert facts["engine"] == "engine"
            assert facts["engine_instance"] == gate["engine_instance"] > 0
        await check_keep(engine, run, models)
        await check_meetings(engine, run)
        await check_ends(engine, run)
        engine.shutdown()

    asyncio.run(check())


@pytest.mark.long
def test_ranks_are_one_engine(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    Child(scripted, run, make_model(tmp_path, 2, experts=True)).result()


@pytest.fixture
def channels() -> Iterator[Any]:
    """The store, and the channels of rank 0 and rank 1."""
    from datetime import timedelta

    from dcr.vllm.ranks import Channel

    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, None, True, timedelta(seconds=10), wait_for_workers=False
    )
    yield store, Channel(store, 0, 2), Channel(store, 1, 2)


def test_orders_are_passed_on_and_forgotten(channels: Any) -> None:
    from dcr.vllm.ranks import read_order

    store, first, second = channels
    orders = [
        {"do": "close", "fail_requests": False},
        {"do": "prepare", "label": "v\u00e4"},
        {"do": "admit"},
        {"do": "refuse", "why": "\U0001f512" * 1000},
    ]
    assert [first.give(order) for order in orders] == [1, 2, 3, 4]
    assert [(number, read_order(data)) for number, data in second.orders()] == [
        (number + 1, order) for number, order in enumerate(orders)
    ]
    assert list(second.orders()) == []
    assert first.answers(1) == {}
    second.answer(1, None)
    second.answer(3, dcr.errors.Unavailable("asleep"))
    second.answer(2, ValueError())
    assert [first.answers(number) for number in (1, 2, 3, 4)] == [
        {1: ""},
        {1: "ValueError"},
        {1: "asleep"},
        {},
    ]
    # Answers of one order are there until nobody asks for them, whatever becomes of another.
    for number in (3, 1, 4):
        first.done_with(number)
    assert first.answers(2) == {1: "ValueError"}
    second.answer(4, None)
    first.done_with(2)
    left = {key for key in store.list_keys() if "order/" in key or "answer" in key}
    assert left == set()


def test_requests_that_some_ranks_may_admit_end_the_gate() -> None:
    from dcr.vllm.ranks import RanksGate

    class Gate(RanksGate):
        def __init__(self) -> None:
            self.done: list[str] = []

        def _have_done(self, order: dict[str, Any]) -> None:
            self.done.append(order["do"])
            if order["do"] == "admit":
                raise dcr.errors.Unavailable("rank 1 does not answer")

        def end(self) -> None:
            self.done.append("end")

    gate = Gate()
    with pytest.raises(dcr.errors.Unavailable, match="rank 1"):
        gate._open_for("v1")
    assert gate.done == ["prepare", "admit", "end"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"do": "open"}',
        b'{"do": ["close"]}',
        b'{"do": "close"}',
        b'{"do": "close", "fail_requests": 1}',
        b'{"do": "close", "fail_requests": true, "more": 1}',
        b'{"do": "prepare", "label": null}',
        b'{"do": "admit"',
        b"[" * 16384,
    ],
)
def test_damaged_orders_are_refused(data: bytes) -> None:
    from dcr.vllm.ranks import read_order

    with pytest.raises(dcr.errors.Corrupt, match="a message between data-parallel ranks"):
        read_order(data)


def test_orders_are_bounded() -> None:
    from dcr.vllm.ranks import read_order

    with pytest.raises(dcr.errors.TooLarge, match="has 20000 bytes"):
        read_order(b" " * 20000)


def test_settings_are_those_of_rank_0(channels: Any) -> None:
    from dcr.vllm.settings import Settings

    store, first, second = channels
    with pytest.raises(SystemExit):
        second.agree(Settings("here", "mine"), lambda: False)
    given = Settings("there", "engine", "wait", "abort", True)
    assert first.agree(given, lambda: True) is given
    agreed = second.agree(Settings("here", "mine"), lambda: True)
    assert agreed == Settings("here", "engine", "wait", "wait", False)
    assert agreed.engine_instance == given.engine_instance
    store.set("dcr/settings", json.dumps({"engine": "engine"}))
    store.get("dcr/settings")  # which is answered: it is there for others too
    with pytest.raises(dcr.errors.Corrupt):
        second.agree(Settings("here", "mine"), lambda: True)


def test_lost_ranks_are_named(channels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dcr.vllm import ranks

    _, first, second = channels
    monkeypatch.setattr(ranks, "_SILENT_SECONDS", 0.2)
    assert first.lost() == ""
    time.sleep(0.3)
    assert first.lost() == ""  # it may take long to start
    list(second.orders())
    assert first.lost() == ""
    time.sleep(0.3)
    assert first.lost() == "data-parallel rank 1 is silent for 0 s"
    list(second.orders())
    assert first.lost() == ""
    second.leave()
    assert first.lost() == "data-parallel rank 1 has ended"
