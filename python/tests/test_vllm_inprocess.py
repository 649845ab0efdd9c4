"""Engines in the user's own process: they start closed, `sync` opens them, and what they answer is
of the weights that they say, whatever a user does in between."""

import contextlib
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_run import tell
from vllm_engines import (
    Aside,
    Child,
    answers,
    generate,
    in_process,
    make_model,
    needs_vllm,
    sampling,
    spans,
    weights_of,
)

needs_vllm()

LONG = list(range(3, 103))  # three blocks of the prefix cache, and something
SHORT = [5, 7, 11, 13]


def fresh(model: Path) -> dict[str, Any]:
    """What an engine answers that never was refitted."""
    from dcr.vllm import cpu_live

    cpu_live.install()
    llm = in_process(model, None)
    return {
        "long": answers(generate(llm, LONG, 12)),
        "short": answers(generate(llm, SHORT, 12)),
    }


def refit(run: Path, model: Path, label: str) -> None:
    tell(run, "gate-engine", "close", False)
    tell(run, "engine.0", "load", weights_of(model))
    tell(run, "gate-engine", "open", label)


def refused(call: Any, *args: Any, **kwargs: Any) -> str:
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{call} was done")


def acted(llm: Any, call: Aside) -> Any:
    """The result of what a gate was told, which the user's thread does."""
    import dcr.vllm

    while not call.done:
        with contextlib.suppress(dcr.errors.Unavailable, dcr.errors.Unsupported):
            dcr.vllm.sync(llm, timeout=0.05)
    return call.result()


def closed(llm: Any, run: Path, fail_requests: bool = False) -> None:
    acted(llm, Aside(tell, run, "gate-engine", "close", fail_requests))


def opened(llm: Any, run: Path, label: str) -> None:
    acted(llm, Aside(tell, run, "gate-engine", "open", label))


def check_start(llm: Any, run: Path) -> None:
    import dcr.vllm

    said = refused(generate, llm, SHORT, 1)
    assert said.startswith("InvalidArgument: engine engine: the gate is closed (no refit yet); ")
    assert "dcr.vllm.sync(llm)" in said
    llm.wake_up()  # a user's own
    assert refused(generate, llm, SHORT, 1) == said
    assert "not open after 0.1 s" in refused(dcr.vllm.sync, llm, timeout=0.1)
    assert llm.get_weight_version() == "default"
    assert not llm.llm_engine.has_unfinished_requests()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        dcr.vllm.sync(llm)
    gate = tell(run, "gate-engine", "facts")
    assert gate["receivers"] == ["engine.0"]
    facts = tell(run, "engine.0", "facts")
    assert facts["engine_instance"] == gate["engine_instance"] > 0
    assert facts["never_loaded"] == ["*._?_scale", "*._prob_scale"]
    assert facts["base"] == str(run / "seed0")  # it is audited against what it was loaded from


def check_refusal(llm: Any, run: Path) -> None:
    """A worker's receiver takes no part: nothing waits for the gate."""
    import dcr.vllm

    why = "engine.0 takes no part: layer is packed"
    tell(run, "gate-engine", "refused", why)
    said = f"engine engine: the gate stays closed: {why}"
    assert refused(dcr.vllm.sync, llm, label="v0") == f"Unsupported: {said}"
    assert refused(generate, llm, SHORT, 1) == f"InvalidArgument: {said}"
    tell(run, "gate-engine", "refused", "")
    assert "the gate is closed" in refused(generate, llm, SHORT, 1)


def check_flight(llm: Any, run: Path, models: list[Path]) -> None:
    """A request is kept over a refit, and is computed again with the new weights."""
    import dcr.vllm

    engine = llm.llm_engine
    engine.add_request("kept", {"prompt_token_ids": LONG}, sampling(12))
    for _ in range(4):
        engine.step()
    call = Aside(refit, run, models[0], "v2")
    assert dcr.vllm.sync(llm, label="v2") == "v2"
    call.result()
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert spans(outputs[-1]) == [("v1", 0, 4), ("v2", 4, 12)]


def check_users(llm: Any, run: Path) -> None:
    """Pauses of a user's own, and what only commits may do."""
    import dcr.vllm

    llm.sleep(level=0)
    closed(llm, run)
    assert "while the gate is closed" in refused(llm.sleep, level=1)
    opened(llm, run, "v3")
    assert llm.llm_engine.is_sleeping()  # as the user said
    llm.wake_up()
    assert spans(generate(llm, SHORT, 3)) == [("v3", 0, 3)]
    assert "label of the refit" in refused(llm.update_weight_version, "mine")
    assert "use level 1" in refused(llm.sleep, level=2)
    assert "the trainer's refit()" in refused(llm.start_weight_update)
    llm.sleep(level=1)
    asleep = r"sleeps at level 1: wake_up\(\) first"
    call = Aside(tell, run, "gate-engine", "close", False)
    with pytest.raises(dcr.errors.Unsupported, match=asleep):
        dcr.vllm.sync(llm, label="never")
    with pytest.raises(RuntimeError, match=asleep):
        call.result()
    llm.wake_up()
    assert dcr.vllm.sync(llm) == "v3"


def waiting(run: Path, model: Path) -> None:
    """An engine whose requests are to finish before a refit."""
    import dcr.vllm

    llm = in_process(model, run, live_weights=True, pause="wait", drain_overdue="abort")
    assert tell(run, "gate-engine", "facts")["fail_overdue"]
    opened(llm, run, "v0")
    engine = llm.llm_engine
    engine.add_request("running", {"prompt_token_ids": SHORT}, sampling(6))
    engine.step()
    call = Aside(tell, run, "gate-engine", "close", False)
    with pytest.raises(dcr.errors.Unavailable, match="in flight.*step the engine until they have"):
        dcr.vllm.sync(llm, label="v1")
    with pytest.raises(RuntimeError, match="in flight"):
        call.result()  # the run asks again
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert spans(outputs[-1]) == [("v0", 0, 6)]
    closed(llm, run)
    opened(llm, run, "v1")
    assert spans(generate(llm, SHORT, 2)) == [("v1", 0, 2)]
    engine.add_request("overdue", {"prompt_token_ids": SHORT}, sampling(6))
    engine.step()
    closed(llm, run, fail_requests=True)
    (output,) = engine.step()
    assert output.finished and output.outputs[0].finish_reason == "abort"


def aborting(run: Path, model: Path) -> None:
    """An engine whose requests fail when a refit comes."""
    llm = in_process(model, run, live_weights=True, pause="abort")
    opened(llm, run, "v0")
    engine = llm.llm_engine
    engine.add_request("running", {"prompt_token_ids": SHORT}, sampling(6))
    engine.step()
    closed(llm, run)
    (output,) = engine.step()
    assert output.finished and output.outputs[0].finish_reason == "abort"
    assert spans(output) == [("v0", 0, 1)]
    opened(llm, run, "v1")
    assert spans(generate(llm, SHORT, 2)) == [("v1", 0, 2)]


def check_abort(llm: Any, run: Path) -> None:
    """A gate that has to fail requests; and one whose caches can't be reset."""
    engine = llm.llm_engine
    engine.add_request("failed", {"prompt_token_ids": LONG}, sampling(12))
    for _ in range(3):
        engine.step()
    closed(llm, run, fail_requests=True)
    (output,) = engine.step()
    assert output.finished and output.outputs[0].finish_reason == "abort"
    assert spans(output) == [("v3", 0, 3)]
    core = engine.engine_core.engine_core
    reset = core.reset_prefix_cache
    without_connector = lambda **asked: "reset_connector" not in asked and reset(**asked)
    for cache, method, does, said in (
        ("encoder", "reset_encoder_cache", lambda: 1 / 0, "division by zero"),
        ("multimodal", "reset_mm_cache", lambda: False, "it is in use"),
        ("prefix", "reset_prefix_cache", lambda **_: False, "it is in use"),
        ("KV connector", "reset_prefix_cache", without_connector, "it is in use"),
    ):
        resets = getattr(core, method)
        setattr(core, method, does)
        with pytest.raises(RuntimeError, match=f"the {cache} cache could not be reset: {said}"):
            opened(llm, run, "v4")
        assert refused(generate, llm, SHORT, 1).startswith("InvalidArgument")
        setattr(core, method, resets)
    opened(llm, run, "v4")
    assert spans(generate(llm, SHORT, 2)) == [("v4", 0, 2)]


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def check_coverage(llm: Any, run: Path) -> None:
    """A tensor of which no worker takes the end; others that are only spoken of."""
    import dcr.vllm

    core = llm.llm_engine.engine_core.engine_core
    lines, calls, call = Lines(), [], core.collective_rpc
    core.collective_rpc = lambda method, *args: calls.append(method.__name__) or call(method, *args)
    logger = logging.getLogger("vllm.dcr")
    logger.addHandler(lines)
    logger.setLevel(logging.WARNING)
    closed(llm, run)
    opened(llm, run, "v5")
    assert calls == ["traces_of"]  # as it was
    closed(llm, run)
    tell(run, "engine.0", "place", {"whole": [(0, 8)], "head": [(0, 5)]})
    missing = (
        "tensor 'head': element 5 lies on no rank, though workers take others of it: the trainer's "
        "is larger than the engine's, or the engine's loader leaves a part of it out"
    )
    said = f"engine engine: the gate stays closed: {missing}"
    for _ in range(2):  # as often as the run asks
        with pytest.raises(RuntimeError, match=f"Unsupported: engine engine: {missing}"):
            opened(llm, run, "v6")
        assert refused(dcr.vllm.sync, llm, label="v6") == f"Unsupported: {said}"
        assert refused(generate, llm, SHORT, 1) == f"InvalidArgument: {said}"
    assert calls == ["traces_of", "traces_of", "placements_of", "traces_of"]
    assert llm.get_weight_version() == "v5"
    tell(run, "engine.0", "place", {})
    untraced = "the worker of receiver engine.0 has not traced its loader, or has left the run"
    with pytest.raises(RuntimeError, match=f"Unavailable: engine engine: {untraced}"):
        opened(llm, run, "v6")
    assert refused(generate, llm, SHORT, 1) == f"InvalidArgument: {said}"
    stays = "Engine engine stays closed: engine engine: "
    assert lines.said == [stays + missing, stays + untraced]
    tell(run, "engine.0", "place", {"whole": [(0, 8)], **dict.fromkeys("abcd", [])})
    lines.said.clear()
    opened(llm, run, "v6")
    skipped = "(every rank's loader skips it)"
    assert lines.said == [
        "Engine engine: 4 of the trainer's tensors do not lie evenly on its workers, which may be "
        f"meant: 'a' {skipped}, 'b' {skipped}, 'c' {skipped}, …"
    ]
    assert spans(generate(llm, SHORT, 2)) == [("v6", 0, 2)]
    core.collective_rpc = call


def engine(run: Path, models: list[Path]) -> dict[str, Any]:
    import dcr.vllm

    llm = in_process(models[0], run, live_weights=True, pause="keep", block_size=32)
    check_start(llm, run)
    check_refusal(llm, run)
    call = Aside(tell, run, "gate-engine", "open", "v0")
    assert dcr.vllm.sync(llm) == "v0"
    call.result()
    assert dcr.vllm.sync(llm, label="v0") == llm.get_weight_version() == "v0"
    found = {"v0": {"long": answers(generate(llm, LONG, 12))}}
    tell(run, "engine.0", "prewarm")  # live: nothing to refuse
    call = Aside(refit, run, models[1], "v1")
    assert dcr.vllm.sync(llm, label="v1") == "v1"
    call.result()
    output = generate(llm, LONG, 12)
    assert spans(output) == [("v1", 0, 12)]
    found["v1"] = {"long": answers(output), "short": answers(generate(llm, SHORT, 12))}
    check_flight(llm, run, models)
    output = generate(llm, LONG, 12)
    assert spans(output) == [("v2", 0, 12)]
    found["v2"] = {"long": answers(output), "short": answers(generate(llm, SHORT, 12))}
    check_users(llm, run)
    check_abort(llm, run)
    check_coverage(llm, run)
    call = Aside(tell, run, "gate-engine", "close", False)  # which nobody lets it do
    time.sleep(0.2)
    llm.llm_engine.engine_core.shutdown()
    with pytest.raises(RuntimeError, match="Cancelled: engine engine has ended"):
        call.result()
    assert "has ended" in refused(dcr.vllm.sync, llm, label="v7")
    return found


def test_engine_answers_with_the_weights_that_it_says(tmp_path: Path) -> None:
    models = make_model(tmp_path, 2)
    child = Child(engine, tmp_path, models)
    others = [Child(fresh, model) for model in models]
    found = child.result()
    expected = [other.result() for other in others]
    assert expected[0] != expected[1]
    assert found["v0"]["long"] == expected[0]["long"]
    assert found["v1"] == expected[1]  # the long prompt's blocks were cached under v0
    assert found["v2"] == expected[0]


def test_requests_fail_for_a_refit(tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1)
    Child(aborting, tmp_path, model).result()


def test_requests_finish_before_a_refit(tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1)
    Child(waiting, tmp_path, model).result()
