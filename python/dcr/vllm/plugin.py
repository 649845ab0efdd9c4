"""The entry point of vLLM's plugin: what every process of vLLM has to know of DCR.

It runs before any configuration is known, in engines that have nothing to do with DCR too. So it
only names the backend and wraps a few methods thinly: nothing of DCR's is imported, and nothing
changes, until an engine is configured for the backend `dcr`.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

BACKEND = "dcr"
Method = Callable[..., Any]

# Attributes of vLLM's that DCR wraps, or calls on the engine's own thread, and did not find.
missing: list[str] = []


def register() -> None:
    """Registers the backend and the gate. Calling it again does nothing."""
    try:
        factory: Any = import_module("vllm.distributed.weight_transfer.factory")
        known = factory.WeightTransferEngineFactory._registry
    except (ImportError, AttributeError):
        return  # a vLLM without backends: whoever names this one hears so from vLLM itself
    if BACKEND in known:
        return
    factory.WeightTransferEngineFactory.register_engine(
        BACKEND, "dcr.vllm.backend", "DcrWeightTransferEngine"
    )
    core = "vllm.v1.engine.core"
    _wrap(core, "EngineCoreProc", "run_busy_loop", _closed_at_start)
    _wrap(core, "DPEngineCoreProc", "run_busy_loop", _closed_at_start)
    _wrap(core, "EngineCoreProc", "_handle_client_request", _callables_too)
    _wrap(core, "EngineCore", "shutdown", _gate_ends_first)
    _need(core, "EngineCoreProc", "_send_error_outputs_to_client")
    for method in ("_pause_complete", "resume_scheduler", "_has_global_unfinished_reqs"):
        _need(core, "DPEngineCoreProc", method)
    _wrap("vllm.v1.engine.core_client", "InprocClient", "__init__", _closed_in_process)
    _need("vllm.v1.engine.llm_engine", "LLMEngine", "add_request")
    _need("vllm.v1.core.sched.interface", "PauseState", "PAUSED_ALL")
    _need("vllm.v1.engine", "EngineCoreRequestType", "WAKEUP")
    _wrap("vllm.v1.worker.worker_base", "WorkerWrapperBase", "init_device", _live_weights)


def is_configured(vllm_config: Any) -> bool:
    """Whether an engine uses the backend."""
    transfer = vllm_config.weight_transfer_config
    if transfer is not None and transfer.backend == BACKEND:
        return True
    additional = vllm_config.additional_config
    if isinstance(additional, dict) and "dcr" in additional:
        from dcr.errors import InvalidArgument

        raise InvalidArgument(
            'additional_config has "dcr", but weight_transfer_config={"backend": "dcr"} is missing'
        )
    return False


def _need(module: str, owner: str, name: str) -> None:
    try:
        getattr(getattr(import_module(module), owner), name)
    except (ImportError, AttributeError):
        missing.append(f"{module}.{owner}.{name}")


def _wrap(module: str, owner: str, name: str, wrapper: Callable[[Method], Method]) -> None:
    try:
        cls = getattr(import_module(module), owner)
        original = vars(cls)[name]
    except (ImportError, AttributeError, KeyError):
        missing.append(f"{module}.{owner}.{name}")
        return
    setattr(cls, name, wraps(original)(wrapper(original)))


def _closed_at_start(original: Method) -> Method:
    def run_busy_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_configured(self.vllm_config):
            from dcr.vllm.gate import attach

            attach(self)
        return original(self, *args, **kwargs)

    return run_busy_loop


def _callables_too(original: Method) -> Method:
    def handle(self: Any, request_type: Any, request: Any) -> Any:
        # A wake-up carries nothing of vLLM's own: with a callable it is work for this thread.
        if request_type.name == "WAKEUP" and callable(request):
            return request()
        gate = getattr(self, "_dcr_gate", None)
        if request_type.name == "ADD" and gate is not None and gate.refuses(request[0]):
            return None
        return original(self, request_type, request)

    return handle


def _gate_ends_first(original: Method) -> Method:
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate = getattr(self, "_dcr_gate", None)
        try:
            if gate is not None:
                gate.end()
        finally:
            ended = original(self, *args, **kwargs)
        return ended

    return shutdown


def _closed_in_process(original: Method) -> Method:
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        if is_configured(vllm_config):
            from dcr.vllm.inprocess import attach

            attach(self)

    return init


def _live_weights(original: Method) -> Method:
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_configured(self.vllm_config):
            from dcr.vllm.settings import Settings

            if Settings.of(self.vllm_config).live_weights:
                from dcr.vllm import cpu_live

                cpu_live.install()
        return original(self, *args, **kwargs)

    return init_device
