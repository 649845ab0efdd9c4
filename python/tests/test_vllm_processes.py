"""Engines in processes of their own, as `LLM`, `AsyncLLM` and `vllm serve` have them: the gate acts
in the EngineCore, and requests wait for it."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import tell
from vllm_engines import (
    Child,
    arguments,
    make_model,
    needs_vllm,
    sampling,
    spans,
    weights_of,
)

needs_vllm()

PROMPT = list(range(3, 73))
GATE = "gate-engine"


def fork_engines() -> None:
    """vLLM's processes are forked, as where nothing forbids it: vLLM is imported already."""
    import multiprocessing

    import vllm.v1.engine.coordinator
    import vllm.v1.engine.utils
    import vllm.v1.executor.multiproc_executor

    for module in (
        vllm.v1.engine.coordinator,
        vllm.v1.engine.utils,
        vllm.v1.executor.multiproc_executor,
    ):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")


class Request:
    """A request of an `AsyncLLM`, read as it comes."""

    def __init__(self, engine: Any, name: str, tokens: int, rank: int | None = None) -> None:
        prompt = {"prompt_token_ids": PROMPT}
        self._stream: AsyncIterator[Any] = engine.generate(
            prompt, sampling(tokens), name, data_parallel_rank=rank
        )
        self.output: Any = None
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> Any:
        async for self.output in self._stream:
            pass
        return self.output

    @property
    def tokens(self) -> int:
        return 0 if self.output is None else len(self.output.outputs[0].token_ids)

    async def has(self, tokens: int) -> None:
        async with asyncio.timeout(60):
            while self.tokens < tokens:
                await asyncio.sleep(0.001)


async def told(run: Path, name: str, command: str, *args: Any) -> Any:
    return await asyncio.to_thread(tell, run, name, command, *args)


async def stands_still(request: Request) -> int:
    """How many tokens a request has, which do not become more."""
    before = request.tokens
    await asyncio.sleep(0.4)
    assert request.tokens == before
    return before


async def check_keep(engine: Any, run: Path, models: list[Path]) -> None:
    receivers = (await told(run, GATE, "facts"))["receivers"]
    assert len(set(receivers)) == 2
    first = Request(engine, "first", 4)
    await engine.resume_generation()
    assert await engine.wake_up()
    assert await stands_still(first) == 0 and await engine.is_paused()
    await told(run, GATE, "open", "v0")
    assert spans(await first.task) == [("v0", 0, 4)]
    kept = Request(engine, "kept", 300)
    await kept.has(5)
    await told(run, GATE, "close", False)
    await asyncio.sleep(0.1)  # what was on its way
    got = await stands_still(kept)
    await engine.resume_generation()
    assert await engine.wake_up()
    assert await stands_still(kept) == got
    for receiver in receivers:
        await told(run, receiver, "load", weights_of(models[1]))
    await told(run, GATE, "open", "v1")
    assert spans(await kept.task) == [("v0", 0, got), ("v1", got, 300)]
    # A user's own pause outlives a refit.
    await engine.pause_generation(mode="keep")
    await told(run, GATE, "close", False)
    await told(run, GATE, "open", "v2")
    paused = Request(engine, "paused", 4)
    assert await stands_still(paused) == 0 and await engine.is_paused()
    await engine.resume_generation()
    assert spans(await paused.task) == [("v2", 0, 4)]


async def check_error(*requests: Request) -> None:
    """They end without an answer."""
    for request in requests:
        async with asyncio.timeout(60):
            output = await request.task
        assert (output.outputs[0].finish_reason, request.tokens) == ("error", 0)


async def check_abort(engine: Any, run: Path) -> None:
    aborted = Request(engine, "aborted", 400)
    await aborted.has(3)
    await told(run, GATE, "close", True)
    output = await aborted.task
    assert output.outputs[0].finish_reason == "abort"
    await told(run, GATE, "close", False)  # again
    first, second = (await told(run, GATE, "facts"))["receivers"]
    await told(run, first, "place", {"cut": [(0, 4)], "whole": [(0, 8)]})
    await told(run, second, "place", {"cut": [(5, 3)], "whole": [(0, 8)]})
    waiting = Request(engine, "incomplete", 4)
    assert await stands_still(waiting) == 0
    with pytest.raises(RuntimeError, match="Unsupported: .*'cut': element 4 lies on no rank"):
        await told(run, GATE, "open", "v3")
    await check_error(waiting, Request(engine, "incomplete-late", 4))
    # What the run says beside it does not withdraw it.
    await told(run, GATE, "refused", "engine.0 takes no part: layer is packed")
    await told(run, GATE, "refused", "")
    await check_error(Request(engine, "incomplete-still", 4))
    await told(run, second, "place", {"cut": [(4, 4)], "whole": [(0, 8)]})
    await told(run, GATE, "open", "v3")
    assert spans(await Request(engine, "complete", 4).task) == [("v3", 0, 4)]
    with pytest.raises(RuntimeError, match="engine engine is open, at 'v3'"):
        await told(run, GATE, "open", "v4")


async def check_refused(engine: Any, run: Path) -> None:
    """Nothing waits for an engine that can never open."""
    await told(run, GATE, "close", True)
    waiting = Request(engine, "waiting", 4)
    assert await stands_still(waiting) == 0
    await told(run, GATE, "refused", "engine.0 takes no part: layer is packed")
    await check_error(waiting, Request(engine, "late", 4))


def engine_of(run: Path | None, model: Path, parallel: dict[str, Any], **dcr: Any) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    values = {**arguments(model, run, **dcr), **parallel}
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**values))


def keeping(run: Path, models: list[Path]) -> None:
    """`AsyncLLM` of two ranks, keeping requests over refits."""
    fork_engines()
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

    async def check() -> None:
        engine = engine_of(run, models[0], {"tensor_parallel_size": 2}, live_weights=True)
        await check_keep(engine, run, models)
        await check_abort(engine, run)
        await check_refused(engine, run)
        engine.shutdown()

    asyncio.run(check())


def draining(run: Path, models: list[Path]) -> None:
    """`AsyncLLM`, letting requests finish before refits."""
    fork_engines()

    async def check() -> None:
        engine = engine_of(run, models[0], {}, live_weights=True, pause="wait")
        await told(run, GATE, "open", "v0")
        running = Request(engine, "running", 200)
        await running.has(3)
        closing = asyncio.create_task(told(run, GATE, "close", False))
        await asyncio.sleep(0.05)
        queued = Request(engine, "queued", 4)
        await closing
        assert spans(await running.task) == [("v0", 0, 200)]
        assert await stands_still(queued) == 0
        await told(run, GATE, "open", "v1")
        assert spans(await queued.task) == [("v1", 0, 4)]
        engine.shutdown()

    asyncio.run(check())


def parts(run: Path, models: list[Path], gates: list[str], **parallel: int) -> None:
    """An engine of several workers, or several engines: one request over a refit of all of them."""
    fork_engines()
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

    async def all_gates(*command: Any) -> None:
        await asyncio.gather(*(told(run, "gate-" + gate, *command) for gate in gates))

    async def check() -> None:
        engine = engine_of(run, models[0], parallel, live_weights=True)
        receivers, instances = [], set()
        for gate in gates:
            facts = await told(run, "gate-" + gate, "facts")
            receivers += facts["receivers"]
            instances.add(facts["engine_instance"])
            for receiver in facts["receivers"]:
                told_it = (await told(run, receiver, "facts"))["engine_instance"]
                assert told_it == facts["engine_instance"] > 0
        assert len(set(receivers)) == 2 and len(instances) == len(gates)
        request = Request(engine, "request", 300)
        assert await stands_still(request) == 0
        await all_gates("open", "v0")
        await request.has(5)
        await all_gates("close", False)
        await asyncio.sleep(0.1)
        got = await stands_still(request)
        for receiver in receivers:
            await told(run, receiver, "load", weights_of(models[1]))
        await all_gates("open", "v1")
        assert spans(await request.task) == [("v0", 0, got), ("v1", got, 300)]
        engine.shutdown()

    asyncio.run(check())


def stages(run: Path, models: list[Path]) -> None:
    parts(run, models, ["engine"], pipeline_parallel_size=2)


def dense_ranks(run: Path, models: list[Path]) -> None:
    parts(run, models, ["engine", "engine-dp1"], data_parallel_size=2)


def test_tensor_parallel_ranks_are_one_engine(tmp_path: Path) -> None:
    """Its requests are kept over refits, aborted, and fail where it can never open."""
    Child(keeping, tmp_path, make_model(tmp_path, 2)).result()


@pytest.mark.long
def test_pipeline_stages_are_one_engine(tmp_path: Path) -> None:
    Child(stages, tmp_path, make_model(tmp_path, 2)).result()


@pytest.mark.long
def test_dense_data_parallel_ranks_are_engines(tmp_path: Path) -> None:
    Child(dense_ranks, tmp_path, make_model(tmp_path, 2)).result()


@pytest.mark.long
def test_requests_are_drained(tmp_path: Path) -> None:
    Child(draining, tmp_path, make_model(tmp_path, 2)).result()
