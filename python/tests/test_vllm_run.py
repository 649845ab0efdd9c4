"""From a trainer to vLLM's engines through a run: what a user writes, and nothing else."""

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_parts import run_directory
from test_vllm_data_parallel import EXPERT_RANKS, fork_ranks
from test_vllm_processes import Request, engine_of, fork_engines, stands_still
from vllm_engines import (
    Aside,
    Child,
    answers,
    arguments,
    generate,
    in_process,
    make_model,
    needs_vllm,
    spans,
)

needs_vllm()

REAL = {"SCRIPTED": "0"}
EXTENSION = {"worker_extension_cls": "dcr.vllm.WorkerExtension"}
PROMPT = list(range(3, 103))
LONG = 900  # tokens: longer than gates may take to close


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


def trainer(model: Path, run: Path) -> tuple[Any, Any]:
    """A model that is trained, and its owner."""
    import dcr.torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model)
    return loaded, dcr.torch.Owner(loaded, run=run, threads=1)


def step(model: Any, seed: int) -> None:
    """What training does to weights: a few of them move a little."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            chosen = torch.rand(parameter.shape, generator=generator) < 0.05
            parameter[chosen] += parameter[chosen] / 2


def digest(model: Any) -> str:
    """Of all parameters' and buffers' bytes."""
    from torch_loaders import all_bytes

    found = hashlib.sha256()
    for name, content in sorted(all_bytes(model).items()):
        found.update(name.encode() + content)
    return found.hexdigest()


def state(llm: Any) -> Any:
    """What an engine answers and holds."""
    answered = answers(generate(llm, PROMPT, 12))  # first: some buffers are made by it
    (held,) = llm.apply_model(digest)
    return held, answered


def check_placements(llm: Any) -> None:
    """Every element of what owners send lies on some worker."""
    import dcr.vllm
    from dcr.torch import uneven_tensors

    (worker,) = ranks = dcr.vllm.placements(llm)
    # Some classes have other names for it, on both sides.
    norms = {"model.norm.weight", "model.norm_f.weight", "backbone.norm_f.weight"}
    (norm,) = worker.keys() & norms
    (part,) = worker[norm].parts
    assert part.parameter.split(".")[1:] == norm.split(".")[1:]
    assert worker[norm].path == "traced" and uneven_tensors(ranks) == {}


def fresh(model: Path) -> Any:
    from dcr.vllm import cpu_live

    cpu_live.install()
    return state(in_process(model, None))


def refit_that_a_user_disturbs(llm: Any, owner: Any, label: str) -> None:
    """While new weights lie there and are not committed, a user wakes the engine up and resumes
    it: nothing runs."""
    import dcr.vllm
    from dcr.vllm import cpu_live

    core = llm.llm_engine.engine_core.engine_core
    applied, go_on, repack = threading.Event(), threading.Event(), cpu_live.repack

    def hold(module: Any) -> None:
        repack(module)
        applied.set()
        assert go_on.wait(60)

    cpu_live.repack = hold
    handle = owner.refit(label, wait=False)
    while not applied.is_set():
        with contextlib.suppress(dcr.errors.Unavailable):
            dcr.vllm.sync(llm, label=label, timeout=0.01)
    for resume in (llm.wake_up, core.resume_scheduler):  # which resume_generation() calls
        resume()
        with pytest.raises(dcr.errors.InvalidArgument, match="the gate is closed"):
            generate(llm, PROMPT, 1)
        assert core.is_scheduler_paused() and llm.get_weight_version() != label
    assert not handle.done()
    go_on.set()
    assert dcr.vllm.sync(llm, label=label, timeout=60) == label
    cpu_live.repack = repack
    assert handle.result().label == label


def same_process(run: Path, model: Path, saved: list[Path]) -> list[Any]:
    """An engine and a trainer in one process."""
    import dcr.run
    import dcr.vllm

    llm = in_process(model, run, live_weights=True, **EXTENSION)
    assert dcr.vllm.placements(llm) == [{}]  # no owners have come
    trained, owner = trainer(model, run)
    found = []
    for number, directory in enumerate(saved):
        step(trained, number)
        if number == 1:
            refit_that_a_user_disturbs(llm, owner, str(number))
        else:
            handle = owner.refit(number, wait=False)
            assert dcr.vllm.sync(llm, label=str(number), timeout=60) == str(number)
            assert handle.result().version == number + 1
        assert llm.get_weight_version() == str(number)
        assert spans(generate(llm, PROMPT, 3)) == [(str(number), 0, 3)]
        found.append(state(llm))
        trained.save_pretrained(directory)
    check_placements(llm)
    # The gate waits for this thread, which closes the run instead.
    step(trained, len(saved))
    owner.refit("nobody syncs", wait=False)
    gate = llm.llm_engine.engine_core.engine_core._dcr_gate
    while not gate._queue:
        time.sleep(0.01)
    began = time.monotonic()
    dcr.run.Run(run).close()
    assert time.monotonic() - began < dcr.run._CLOSE_SECONDS
    return found


def on_a_device(run: Path, model: Path, saved: list[Path], library: Path) -> list[Any]:
    """The same, where all parameters lie on a device."""
    from dcr import _core
    from dcr.vllm.backend import DcrWeightTransferEngine
    from late_device import Everywhere, reaching

    made = []
    start = DcrWeightTransferEngine.start

    def starts(self: Any, *args: Any) -> str:
        made.append(self._staged)  # the constructor's, before vLLM has measured its memory
        return start(self, *args)

    DcrWeightTransferEngine.start = starts
    with reaching(Everywhere(library)):
        found = same_process(run, model, saved)
        assert isinstance(made[0], _core.StagedDevice)
    return found


def dummy(run: Path, model: Path, saved: Path) -> Any:
    """An engine that is loaded with dummy weights, in which something goes wrong at first."""
    import dcr.vllm
    from dcr.vllm import cpu_live

    repack = cpu_live.repack

    def damage(module: Any) -> None:
        repack(module)
        module.lm_head.weight.data[5, 7] += 1

    cpu_live.repack = damage
    llm = in_process(model, run, live_weights=True, load_format="dummy")
    trained, owner = trainer(model, run)
    handle = owner.refit("first", wait=False)
    until, said = time.monotonic() + 60, ""
    while 'tensor "lm_head.weight": an audit of what came found 1 of' not in said:
        assert time.monotonic() < until, said
        with pytest.raises(dcr.errors.Unavailable) as raised:
            dcr.vllm.sync(llm, timeout=0.2)
        said = str(raised.value)
    cpu_live.repack = repack
    assert dcr.vllm.sync(llm, timeout=60) == "first"
    assert handle.result().version == 1
    trained.save_pretrained(saved)
    owner.close()
    return state(llm)


def llm(run: Path, model: Path) -> None:
    """`LLM`, with its processes started as it starts them."""
    from vllm import LLM

    engine = LLM(**arguments(model, run, live_weights=True, **EXTENSION))
    call = Aside(generate, engine, PROMPT, 6)
    time.sleep(0.5)
    assert not call.done  # nothing was refitted yet
    trained, owner = trainer(model, run)
    assert owner.refit("first").version == 1
    assert spans(call.result()) == [("first", 0, 6)]
    (status,) = engine.collective_rpc("dcr_status")
    assert status["receiver"] == "engine.0"
    before = answers(generate(engine, PROMPT, 6))
    step(trained, 1)
    result = owner.refit("second")
    assert (result.version, result.mode) == (2, "mixed")
    output = generate(engine, PROMPT, 6)
    assert spans(output) == [("second", 0, 6)] and answers(output) != before
    assert engine.get_weight_version() == "second"
    check_placements(engine)
    with pytest.raises(Exception, match="label of the refit"):
        engine.update_weight_version("mine")
    # An engine that sleeps is not refitted until it wakes up.
    with pytest.raises(Exception, match="discards weights"):
        engine.sleep(level=2)
    engine.sleep(level=1)
    step(trained, 2)
    handle = owner.refit("third", wait=False)
    time.sleep(1.0)
    assert not handle.done() and engine.get_weight_version() == "second"
    engine.wake_up()
    assert handle.result().version == 3
    assert spans(generate(engine, PROMPT, 3)) == [("third", 0, 3)]
    owner.close()


def draining(run: Path, model: Path, overdue: str) -> None:
    """`AsyncLLM` with a request that takes longer than gates may take to close."""
    fork_engines()

    async def check() -> None:
        dcr = {"live_weights": True, "pause": "wait", "drain_overdue": overdue}
        engine = engine_of(run, model, {}, max_model_len=1024, **dcr)
        trained, owner = trainer(model, run)
        await asyncio.to_thread(owner.refit, "first")
        request = Request(engine, "request", LONG)
        await request.has(3)
        step(trained, 1)
        result = await asyncio.to_thread(owner.refit, "second")
        assert result.version == 2
        one = (await request.task).outputs[0]
        if overdue == "abort":
            assert one.finish_reason == "abort", one.finish_reason
            assert 3 <= len(one.token_ids) < LONG
        else:
            assert one.finish_reason == "length" and len(one.token_ids) == LONG
        assert spans(request.output) == [("first", 0, len(one.token_ids))]
        assert spans(await Request(engine, "next", 4).task) == [("second", 0, 4)]
        owner.close()
        engine.shutdown()

    asyncio.run(check())


async def state_of_ranks(engine: Any, name: str, directory: Path) -> Any:
    """What each data-parallel rank answers and holds."""
    answered = []
    for rank in range(2):
        request = Request(engine, f"{name}-{rank}", 8, rank)
        answered.append(answers(await request.task))
    directory.mkdir(exist_ok=True)
    await engine.collective_rpc("write_digest", args=(str(directory),))
    return answered, [(directory / f"digest-{rank}").read_text() for rank in range(2)]


def expert_ranks(run: Path, model: Path, saved: list[Path]) -> list[Any]:
    """`AsyncLLM` of a model with experts, whose data-parallel ranks are one engine."""
    fork_ranks(run.parent)

    async def check() -> list[Any]:
        engine = engine_of(run, model, EXPERT_RANKS, live_weights=True)
        early = Request(engine, "early", 8, 1)
        assert await stands_still(early) == 0  # nothing was refitted yet
        trained, owner = trainer(model, run)
        found = []
        for number, directory in enumerate(saved):
            step(trained, number)
            handle = owner.refit(number, wait=False)
            while not handle.done():
                await engine.resume_generation()
                await asyncio.sleep(0.01)
            assert handle.result().version == number + 1
            found.append(await state_of_ranks(engine, str(number), run.parent / "held"))
            assert spans(await Request(engine, f"{number}", 3).task) == [(str(number), 0, 3)]
            trained.save_pretrained(directory)
        assert spans(early.output) == [("0", 0, 8)]
        owner.close()
        engine.shutdown()
        return [answers(early.output), *found]

    return asyncio.run(check())


def fresh_ranks(model: Path, directory: Path) -> Any:
    from dcr.vllm import cpu_live

    fork_ranks(directory)
    cpu_live.install()

    async def check() -> Any:
        engine = engine_of(None, model, EXPERT_RANKS)
        found = await state_of_ranks(engine, "fresh", directory)
        engine.shutdown()
        return found

    return asyncio.run(check())


@pytest.mark.long
def test_data_parallel_ranks_of_experts(run: Path, tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1, experts=True)
    saved = [tmp_path / f"step{number}" for number in range(2)]
    early, *found = Child(expert_ranks, run, model, saved, **REAL).result()
    assert found[1] == Child(fresh_ranks, saved[1], tmp_path / "fresh").result()
    assert early == found[0][0][1] and found[0] != found[1]


@pytest.mark.long
@pytest.mark.parametrize("overdue", ["abort", "wait"])
def test_requests_that_do_not_drain(run: Path, tmp_path: Path, overdue: str) -> None:
    run.mkdir(mode=0o700)
    drain_ms = 2000 if overdue == "abort" else 300
    (run / "settings.toml").write_text(f"[waits]\ndrain_ms = {drain_ms}\n")
    (model,) = make_model(tmp_path, 1)
    Child(draining, run, model, overdue, **REAL).result()


def test_in_process(run: Path, tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1, experts=True)
    saved = [tmp_path / f"step{number}" for number in range(3)]
    found = Child(same_process, run, model, saved, **REAL).result()
    expected = [Child(fresh, directory) for directory in saved[1:]]
    assert found[1:] == [one.result() for one in expected]
    assert found[0] != found[1] != found[2]


def test_in_process_on_a_device(run: Path, tmp_path: Path) -> None:
    from late_device import build_late_device

    (model,) = make_model(tmp_path, 1)
    saved = [tmp_path / f"step{number}" for number in range(2)]
    library = build_late_device(tmp_path)
    found = Child(on_a_device, run, model, saved, library, **REAL).result()
    assert found[1] == Child(fresh, saved[1]).result()
    assert found[0] != found[1]


def test_dummy_weights_are_audited_once_they_are_replaced(run: Path, tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1)
    found = Child(dummy, run, model, tmp_path / "saved", **REAL).result()
    assert found == Child(fresh, tmp_path / "saved").result()


@pytest.mark.long
def test_llm(run: Path, tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1)
    Child(llm, run, model, **REAL).result()
