"""Engines of vLLM for tests: tiny models, and processes that have vLLM imported already.

Importing vLLM takes half a minute. One process does it and is forked for each engine.
"""

import importlib.metadata
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
# One compute thread: more of them add up in another order for another batch.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
VALUES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    **VALUES,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}


OWN = ("dtype", "block_size", "load_format", "max_model_len", "worker_extension_cls")


def needs_vllm() -> None:
    for module in ("torch", "transformers", "vllm"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    if not importlib.metadata.entry_points(group="vllm.general_plugins", name="dcr"):
        pytest.skip("the package is not installed, so vLLM does not know of it")


def make_model(directory: Path, seeds: int, *, experts: bool = False) -> list[Path]:
    """A model directory for each seed. The architecture is the same, the weights are not."""
    import torch
    import transformers
    from vllm_ranks import write_config

    architecture = "Qwen3MoeForCausalLM" if experts else "Qwen3ForCausalLM"
    config = (
        transformers.Qwen3MoeConfig(**EXPERTS) if experts else transformers.Qwen3Config(**VALUES)
    )
    made = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        # Wider than a training's first weights: the tokens of two seeds have to differ.
        model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
        made.append(directory / f"seed{seed}")
        model.save_pretrained(made[-1])
        write_config(made[-1], config, architecture)
    return made


def weights_of(model: Path) -> str:
    return str(model / "model.safetensors")


@cache
def _server() -> Any:
    """Processes that have vLLM imported, and that know of the scripted run."""
    plugin = Path(tempfile.mkdtemp()) / "scripted_run-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted_run\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nscripted = scripted_run:register\n"
    )
    path = os.pathsep.join(
        [str(plugin.parent), str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    context = multiprocessing.get_context("forkserver")
    # A process has one server. One that other tests have started has neither vLLM nor these paths.
    server: Any = forkserver._forkserver
    server._stop()
    context.set_forkserver_preload(["vllm_preload"])
    with environment({**ENVIRONMENT, "PYTHONPATH": path}):
        forkserver.ensure_running()
    return context


@contextmanager
def environment(values: dict[str, str]) -> Any:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(function: Callable[..., Any], args: tuple[Any, ...], values: Any, answer: Any) -> None:
    os.environ.update(values)
    os.setpgid(0, 0)  # with all processes that vLLM starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)  # multiprocessing gave the parent's
    try:
        answer.send((True, function(*args)))
    except BaseException:
        answer.send((False, traceback.format_exc()))
    answer.close()
    os._exit(0)  # whatever of vLLM's is still there


def execute(code: str) -> None:
    """What a module of its own would do."""
    exec(code, {"__name__": "executed"})


class Child:
    """A function that runs in a process of its own, with vLLM imported."""

    def __init__(self, function: Callable[..., Any], *args: Any, **values: str) -> None:
        self._receive, send = multiprocessing.Pipe(duplex=False)
        self._process = _server().Process(
            target=_run, args=(function, args, values, send), daemon=False
        )
        self._process.start()
        send.close()

    @property
    def ended(self) -> bool:
        """Whether it has returned, or raised something."""
        return self._receive.poll()

    def end(self) -> None:
        """Asks it to end, and waits for that a little: for functions that serve until then."""
        self._process.terminate()
        self._process.join(10)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def result(self, timeout: float = 240) -> Any:
        """What it returned; what it raised fails the test."""
        try:
            if not self._receive.poll(timeout):
                pytest.fail("an engine did not end in time")
            done, value = self._receive.recv()
        except EOFError:
            pytest.fail("an engine's process died")
        finally:
            self._process.join(10)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if not done:
            pytest.fail(value)
        return value


def in_process(model: Path, run: Path | None, **more: Any) -> Any:
    """An engine in this process, with the backend if there is a run."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    return LLM(**arguments(model, run, **more))


def arguments(model: Path, run: Path | None, **dcr: Any) -> dict[str, Any]:
    """What an engine is made with. Those of `OWN` are its own, the rest the backend's."""
    values: dict[str, Any] = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 512,
        **{key: dcr.pop(key) for key in OWN if key in dcr},
    }
    if run is not None:
        values["weight_transfer_config"] = {"backend": "dcr"}
        values["additional_config"] = {"dcr": {"run": str(run), "engine": "engine", **dcr}}
    return values


def sampling(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=2)


def answers(output: Any) -> tuple[list[int], list[Any]]:
    """A request's tokens, and every log-probability's bits."""
    one = output.outputs[0]
    probabilities = [
        sorted((token, value.logprob.hex()) for token, value in position.items())
        for position in one.logprobs
    ]
    return list(one.token_ids), probabilities


def spans(output: Any) -> list[tuple[str, int, int]]:
    return [(span.version, span.start, span.end) for span in output.outputs[0].weight_versions]


def generate(llm: Any, prompt: list[int], tokens: int) -> Any:
    (output,) = llm.generate({"prompt_token_ids": prompt}, sampling(tokens), use_tqdm=False)
    return output


class Aside:
    """A call on a thread of its own, as a run's gate calls."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._call, args=(function, args), daemon=True)
        self._thread.start()

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._result = [True, function(*args)]
        except Exception as error:
            self._result = [False, error]

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(60)
        assert self._result, "a call to an endpoint did not end in time"
        done, value = self._result
        if not done:
            raise value
        return value
