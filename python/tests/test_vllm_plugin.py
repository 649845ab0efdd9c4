"""vLLM's plugin where another backend is used, and what the backend `dcr` refuses by name."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_engines import VALUES, Child, execute, needs_vllm

needs_vllm()

import dcr  # noqa: E402
import torch  # noqa: E402
from dcr.vllm import gate, plugin  # noqa: E402
from dcr.vllm.backend import DcrWeightTransferEngine  # noqa: E402
from dcr.vllm.settings import Settings  # noqa: E402

HARMLESS = """
import sys
from vllm.plugins import load_plugins_by_group
before = set(sys.modules)
register = load_plugins_by_group("vllm.general_plugins")["dcr"]
assert {one for one in set(sys.modules) - before if one.startswith("dcr")} <= {
    "dcr", "dcr.errors", "dcr.vllm", "dcr.vllm.plugin"}, sys.modules
register()
import vllm.v1.engine.core as core
wrapped = core.EngineCoreProc.run_busy_loop
register()
assert core.EngineCoreProc.run_busy_loop is wrapped

from types import SimpleNamespace
from dcr.vllm import plugin
assert plugin.missing == []
nccl = SimpleNamespace(backend="nccl")
config = SimpleNamespace(weight_transfer_config=nccl, additional_config={})
assert not plugin.is_configured(config)

class Core:  # an engine's loop as vLLM has it
    vllm_config = config
    def _handle_shutdown(self): return False
try:
    wrapped(Core())
    raise AssertionError
except SystemExit:
    pass
for module in ("dcr._core", "dcr.torch", "dcr.vllm.gate", "dcr.vllm.backend", "dcr.vllm.settings"):
    assert module not in sys.modules, module
import dcr
assert dcr.format_version is not None and "dcr._core" in sys.modules
"""


def test_the_plugin_imports_neither_torch_nor_the_core() -> None:
    code = (
        "import sys, dcr.vllm.plugin\n"
        "assert not {'torch', 'numpy', 'vllm', 'dcr._core'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_backends_are_left_alone() -> None:
    Child(execute, HARMLESS, SCRIPTED="0").result()


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The configuration of an engine with the backend."""
    import transformers
    from vllm.engine.arg_utils import EngineArgs
    from vllm_ranks import register, write_config

    directory = tmp_path_factory.mktemp("model")
    write_config(directory, transformers.Qwen3Config(**VALUES), "Qwen3ForCausalLM")
    register("Qwen3ForCausalLM", "qwen3")
    return EngineArgs(
        model=str(directory),
        skip_tokenizer_init=True,
        enforce_eager=True,
        weight_transfer_config={"backend": "dcr"},
        additional_config={"dcr": {"run": "somewhere"}},
    ).create_engine_config()


@pytest.fixture
def config(configured: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("DCR_RUN", raising=False)
    yield configured


def made(config: Any) -> DcrWeightTransferEngine:
    return DcrWeightTransferEngine(
        config.weight_transfer_config, config, torch.device("cpu"), torch.nn.Linear(2, 2)
    )


def test_names(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.of(config) == Settings(
        "somewhere", f"engine-{config.instance_id}", "keep", "wait", False
    )
    settings = Settings.of(config)
    assert pickle.loads(pickle.dumps(settings)) == settings == Settings.of(config)
    assert 1 <= settings.engine_instance <= 2**62
    assert settings.engine_instance != Settings.of(config).engine_instance
    monkeypatch.setenv("DCR_RUN", "/elsewhere")
    monkeypatch.setattr(config, "additional_config", {"dcr": {"engine": "left", "pause": "wait"}})
    assert Settings.of(config) == Settings("/elsewhere", "left", "wait", "wait", False)
    monkeypatch.setattr(config, "additional_config", {"other": 1})
    assert Settings.of(config).run == "/elsewhere"
    # A rank of a dense model under data parallelism is an engine of its own, one of experts isn't.
    monkeypatch.setattr(config.parallel_config, "data_parallel_index", 3)
    monkeypatch.setattr(config, "additional_config", {"dcr": {"engine": "left"}})
    assert Settings.of(config).engine == "left-dp3"
    monkeypatch.setattr(config.parallel_config, "data_parallel_size", 4)
    assert Settings.of(config).engine == "left"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"run": "r", "pasue": "keep"}, "no key 'pasue': did you mean 'pause'?"),
        (
            {"run": "r", "zzz": 1},
            "no key 'zzz': It has run, engine, pause, drain_overdue, live_weights",
        ),
        ({"run": "r", "pause": "drop"}, "'drop', none of keep, wait, abort"),
        ({"run": "r", "drain_overdue": "keep"}, "'keep', none of wait, abort"),
        ({"run": "r", "live_weights": 1}, "is no boolean"),
        ({"run": "r", "engine": "a b"}, "'a b' must be 1 to 58 letters"),
        ({"run": "r", "engine": "a" * 59}, "must be 1 to 58 letters"),
        ({}, "DCR_RUN"),
        (["run"], "not a dictionary"),
    ],
)
def test_keys(config: Any, monkeypatch: pytest.MonkeyPatch, keys: Any, said: str) -> None:
    monkeypatch.setattr(config, "additional_config", {"dcr": keys})
    with pytest.raises(dcr.errors.InvalidArgument) as raised:
        made(config)
    assert said in str(raised.value)


def test_keys_without_the_backend_are_an_error(config: Any) -> None:
    with pytest.raises(dcr.errors.InvalidArgument, match="weight_transfer_config=.* is missing"):
        plugin.is_configured(
            SimpleNamespace(weight_transfer_config=None, additional_config={"dcr": {"run": "r"}})
        )


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("lora_config", object(), "LoRA adapters (enable_lora)"),
        ("speculative_config", object(), "speculative decoding and draft models"),
        ("parallel_config.enable_eplb", True, "expert load balancing (enable_eplb)"),
        ("quant_config", object(), "quantisation"),
        ("offload_config.uva.cpu_offload_gb", 1.0, "weight offload (cpu_offload_gb"),
        ("offload_config.prefetch.offload_group_size", 2, "weight offload"),
        ("parallel_config.enable_elastic_ep", True, "elastic expert parallelism"),
        ("parallel_config.enable_fault_tolerance", True, "fault tolerance"),
        ("parallel_config.distributed_executor_backend", "external_launcher", "the external"),
    ],
)
def test_refused(
    config: Any, monkeypatch: pytest.MonkeyPatch, where: str, value: Any, said: str
) -> None:
    made(config)
    *parts, name = where.split(".")
    owner = config
    for part in parts:
        owner = getattr(owner, part)
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(dcr.errors.Unsupported) as raised:
        made(config)
    assert str(raised.value).startswith(said)
    assert "the backend dcr cannot refit an engine with it" in str(raised.value)


def test_data_parallelism_of_engines_in_process_is_refused(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dcr.vllm.inprocess import attach

    monkeypatch.setattr(config.parallel_config, "data_parallel_size", 2)
    ended = []
    client = SimpleNamespace(
        engine_core=SimpleNamespace(vllm_config=config), shutdown=lambda: ended.append(True)
    )
    with pytest.raises(dcr.errors.Unsupported, match=r"data parallelism \(data_parallel_size\)"):
        attach(client)
    assert ended == [True]


def test_another_vllm_is_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.version import __version__

    monkeypatch.setattr(plugin, "missing", [])
    plugin._wrap("vllm.v1.engine.core", "EngineCoreProc", "run_forever", lambda method: method)
    plugin._wrap("vllm.v1.engine.nowhere", "Engine", "run", lambda method: method)
    assert len(plugin.missing) == 2
    with pytest.raises(dcr.errors.Unsupported) as raised:
        made(config)
    assert str(raised.value) == (
        f"vLLM {__version__} has no vllm.v1.engine.core.EngineCoreProc.run_forever, which DCR "
        "wraps or needs; 0.32 has"
    )


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("", "reset_mm_cache"),
        ("", "input_queue"),
        ("scheduler", "set_pause_state"),
        ("model_executor", "is_sleeping"),
    ],
)
def test_an_engine_that_lacks_something_is_refused(where: str, name: str) -> None:
    def having(*names: str) -> SimpleNamespace:
        return SimpleNamespace(**dict.fromkeys(names))

    core = having(*gate._TAKES, *gate.EngineGate.takes)
    core.scheduler = having("pause_state", "set_pause_state", "finish_requests")
    core.model_executor = having("sleep", "is_sleeping")
    gate.EngineGate.check(core)
    delattr(getattr(core, where) if where else core, name)
    with pytest.raises(dcr.errors.Unsupported, match=f"has no types.SimpleNamespace.{name}, which"):
        gate.EngineGate.check(core)


def test_an_engine_in_process_that_is_refused_is_shut_down(config: Any) -> None:
    from dcr.vllm.inprocess import attach

    ended = []
    core = SimpleNamespace(vllm_config=config)
    client = SimpleNamespace(engine_core=core, shutdown=lambda: ended.append(True))
    with pytest.raises(dcr.errors.Unsupported, match=r"has no types.SimpleNamespace.scheduler"):
        attach(client)
    assert ended == [True]


def test_vllms_own_calls_for_weights_are_refused(config: Any) -> None:
    engine = made(config)
    for call in ("start_weight_update", "finish_weight_update"):
        with pytest.raises(dcr.errors.Unsupported, match=f"{call}: .* from the run somewhere"):
            getattr(engine, call)()
    with pytest.raises(dcr.errors.Unsupported, match="init_weight_transfer_engine"):
        engine.init_transfer_engine(engine.parse_init_info({}))
    engine.shutdown()
