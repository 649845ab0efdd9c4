"""Engines in the user's own process: nothing runs in them but on the user's thread."""

import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import wraps
from importlib import import_module
from typing import Any

from dcr.errors import Cancelled, InvalidArgument, Unavailable, Unsupported
from dcr.vllm.gate import EngineGate, _Job, start
from dcr.vllm.settings import Settings

_SLICE_S = 0.05  # between looks for signals


class InprocessGate(EngineGate):
    """The agent of an EngineCore without a busy loop: `sync` does what the run's gate asks for."""

    takes = ("step_fn", "batch_queue", "get_weight_version")

    def __init__(self, core: Any, settings: Settings) -> None:
        self._queue: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._unread: deque[tuple[Any, bool]] = deque()  # outputs that no step has returned yet
        super().__init__(core, settings)

    def refused(self, why: str) -> None:
        self._refused = why

    def _end_requests(self) -> None:
        """While it is closed, new ones are refused, and steps of others, and both say why."""

    @property
    def is_closed(self) -> bool:
        return self._closed

    def explain(self) -> str:
        """Why requests don't run."""
        if self.refusal:
            return f"engine {self.settings.engine}: the gate stays closed: {self.refusal}"
        reason = self.handle.status()[1] if self.handle is not None else ""
        return (
            f"engine {self.settings.engine}: the gate is closed{f' ({reason})' if reason else ''}; "
            "dcr.vllm.sync(llm) waits until a refit has opened it"
        )

    def sync(self, label: str | None, timeout: float | None) -> str:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._queue:
                # Ctrl-C between any two of these leaves the job where it is, or done.
                job = self._queue[0]
                if not job.future.done():
                    job()
                self._queue.popleft()
                self._raise_what_closing_raised(job)
            if self._ended:
                raise Cancelled(f"engine {self.settings.engine} has ended")
            if not self._closed and label in (None, self.label):
                assert self.label is not None
                return self.label
            if self._closed and self.refusal:
                raise Unsupported(self.explain())
            if until is not None and time.monotonic() >= until:
                raise Unavailable(
                    f"engine {self.settings.engine}: not open"
                    f"{'' if label is None else f' at {label!r}'} after {timeout} s: "
                    + (self.explain() if self._closed else f"it is open at {self.label!r}")
                )
            with self._changed:
                if not self._queue:
                    self._changed.wait(_SLICE_S)

    def _raise_what_closing_raised(self, job: _Job) -> None:
        """Only the user can do something about it: the gate would ask again and again."""
        if not job.closes or self._ended:
            return
        error = job.future.exception(0)
        if error is not None:
            raise error

    def _post(self, job: _Job) -> None:
        with self._changed:
            self._queue.append(job)
            self._changed.notify_all()

    def _take_over(self) -> None:
        self._step = self.core.step_fn
        self.core.step_fn = self._step_asked
        super()._take_over()

    def _step_asked(self) -> tuple[Any, bool]:
        if self._unread:
            return self._unread.popleft()
        if self._closed:
            raise InvalidArgument(self.explain())
        outputs: tuple[Any, bool] = self._step()
        return outputs

    def _pause(self, mode: str) -> "Future[None] | None":
        core = self.core
        if mode == "wait" and core.scheduler.has_unfinished_requests():
            raise Unavailable(
                f"engine {self.settings.engine}: requests are in flight, which pause='wait' lets "
                "finish: step the engine until they have, then call dcr.vllm.sync(llm)"
            )
        self._own = self._states.PAUSED_ALL
        self._apply_pause()
        if mode == "abort":
            self._abort()
        while core.batch_queue:  # what was scheduled is of the old weights, and is labelled so
            self._unread.append(self._step())
        core.model_executor.collective_rpc("synchronize_device")
        return None

    def _abort(self) -> None:
        engine: Any = import_module("vllm.v1.engine")
        status: Any = import_module("vllm.v1.request").RequestStatus
        aborted = self.core.scheduler.finish_requests(None, status.FINISHED_ABORTED)
        if not aborted:
            return
        outputs = engine.EngineCoreOutputs(
            finished_requests={request.request_id for request in aborted},
            outputs=[
                engine.EngineCoreOutput(
                    request.request_id, [], finish_reason=engine.FinishReason.ABORT
                )
                for request in aborted
            ],
            weight_version=self.core.get_weight_version(),
        )
        self._unread.append(({0: outputs}, False))


def attach(client: Any) -> None:
    """Gives the EngineCore of an in-process client its gate."""
    core = client.engine_core
    if core.vllm_config.parallel_config.data_parallel_size > 1:
        client.shutdown()
        raise Unsupported(
            "data parallelism (data_parallel_size) of engines in this process: their ranks would "
            "wait for each other; without VLLM_ENABLE_V1_MULTIPROCESSING=0 they can be refitted"
        )
    _refuse_requests_while_closed()
    try:
        start(InprocessGate(core, Settings.of(core.vllm_config)))
    except BaseException:
        client.shutdown()
        raise


def _refuse_requests_while_closed() -> None:
    """A request that nobody would answer is refused, before anything of vLLM's knows of it."""
    cls: Any = import_module("vllm.v1.engine.llm_engine").LLMEngine
    original = cls.add_request
    if hasattr(original, "_dcr"):
        return

    @wraps(original)
    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate = _gate_of(self)
        if gate is not None and gate.is_closed:
            raise InvalidArgument(gate.explain())
        return original(self, *args, **kwargs)

    add_request._dcr = True  # type: ignore[attr-defined]
    cls.add_request = add_request


def _gate_of(llm: Any) -> InprocessGate | None:
    engine = getattr(llm, "llm_engine", llm)
    core = getattr(getattr(engine, "engine_core", None), "engine_core", None)
    gate = getattr(core, "_dcr_gate", None)
    return gate if isinstance(gate, InprocessGate) else None


def sync_engine(llm: Any, label: str | None, timeout: float | None) -> str:
    gate = _gate_of(llm)
    if gate is None:
        raise InvalidArgument(
            "sync is for engines in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0) with the "
            "backend dcr: other engines' gates act by themselves"
        )
    return gate.sync(label, timeout)
