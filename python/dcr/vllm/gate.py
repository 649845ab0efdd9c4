"""The gate of an engine: nothing runs in it while weights change, and what runs is labelled right.

It acts on the engine's own thread, the busy loop that schedules and steps, where nothing else can
be going on. `InprocessGate` is for engines without one, `RanksGate` for those that have several.
"""

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dcr.errors import Cancelled, Conflict, Unavailable, Unsupported
from dcr.run import Gate, Run
from dcr.vllm.settings import Settings, check_has

if TYPE_CHECKING:
    from dcr.torch.placed import Uneven

# Below vLLM's own, so that it is seen where vLLM's is: requests that wait need an explanation.
_log = logging.getLogger("vllm.dcr")

_LOOK_SECONDS = 0.1  # between looks whether the run is being closed
_NAMES_MAX = 3  # of tensors in one line of the log

_TAKES = (
    *("scheduler", "model_executor", "pause_scheduler", "sleep", "set_weight_version"),
    *("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache", "collective_rpc"),
)

Work = Callable[[], "Future[None] | None"]


class _Job:
    """Work for the engine's thread. It may go on after the call, until the future that it returns
    is done."""

    def __init__(self, work: Work, closes: bool) -> None:
        self.closes = closes
        self._work = work
        self.future: Future[None] = Future()

    def __call__(self) -> None:
        try:
            later = self._work()
        except Exception as error:
            self.fail(error)
        except BaseException:  # Ctrl-C, on a user's own thread
            self.fail(Cancelled("interrupted"))
            raise
        else:
            if later is None:
                self._finish(None)
            else:
                later.add_done_callback(lambda done: self._finish(done.exception()))

    def fail(self, error: BaseException) -> None:
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        try:
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)
        except InvalidStateError:
            pass  # the engine ended meanwhile, which was said


class EngineGate:
    """The agent of one EngineCore. It starts closed."""

    takes: tuple[str, ...] = ("input_queue",)
    """What of its EngineCore's it needs beside what all gates do."""

    def __init__(self, core: Any, settings: Settings) -> None:
        self.check(core)
        self.settings = settings
        self.label: str | None = None  # of the last opening
        self.handle: Gate | None = None
        self.core = core
        self._states: Any = import_module("vllm.v1.core.sched.interface").PauseState
        self._own = self._states.PAUSED_ALL
        self._users = self._before_sleep = core.scheduler.pause_state
        self._closed = True
        self._acting = False
        self._failure = ""  # of the last opening
        self._refused = ""  # which receiver takes no part, and why, as the run says
        self._receivers: list[str] = []  # of the workers
        self._traces: list[int] = []  # theirs, when it was last looked where tensors lie
        self._missing = ""  # of which tensor workers leave a part out, as was found then
        self._jobs: set[_Job] = set()
        self._lock = threading.Lock()
        self._ended = False
        self._take_over()

    @classmethod
    def check(cls, core: Any) -> None:
        """Refuses another vLLM's, by what it lacks."""
        check_has(core, *_TAKES, *cls.takes)
        check_has(core.scheduler, "pause_state", "set_pause_state", "finish_requests")
        check_has(core.model_executor, "sleep", "is_sleeping")

    # What the run's gate calls, from its thread.

    def close(self, fail_requests: bool) -> None:
        """Returns when no forward pass runs and none can begin. The second time does nothing,
        unless the requests that were kept are to fail now."""
        if self._closed and not fail_requests:
            return  # an in-process engine needn't be called for this
        self._run(lambda: self._begin_close(fail_requests), closes=True)

    def open(self, label: str) -> None:
        """Shows the label, forgets what was computed with other weights, and lets requests run."""
        try:
            self._open_for(str(label))
        except Exception as error:
            if str(error) != self._failure:  # the run asks again and again
                self._failure = str(error)
                _log.warning("Engine %s stays closed: %s", self.settings.engine, error)
            raise
        self._failure = ""
        _log.info("Engine %s is open at %r", self.settings.engine, label)

    def refused(self, why: str) -> None:
        """The engine can never open, and why; or it may again (""). Requests that would wait for it
        end with an error."""
        self._run(lambda: self._take_refusal(why), closes=False)

    def _open_for(self, label: str) -> None:
        def work() -> None:
            self._prepare(label)
            self._admit()

        self._run(work, closes=False)

    def _run(self, work: Work, *, closes: bool) -> None:
        job = self._begin(work, closes)
        try:
            self._await(job)
        finally:
            self._forget(job)

    def _begin(self, work: Work, closes: bool) -> _Job:
        job = _Job(work, closes)
        with self._lock:
            if self._ended:
                raise Cancelled(f"engine {self.settings.engine} has ended")
            self._jobs.add(job)
        self._post(job)
        return job

    def _forget(self, job: _Job) -> None:
        with self._lock:
            self._jobs.discard(job)

    def _await(self, job: _Job) -> None:
        """Nobody waits for it any more when the run is closed here, which the thread that would do
        it may be doing."""
        while not wait([job.future], _LOOK_SECONDS).done:
            if self.handle is not None and self.handle.closing:
                job.fail(Cancelled(f"engine {self.settings.engine} has left the run"))
        job.future.result()

    def join(self, receivers: list[str]) -> None:
        """Joins the run as the gate over the receivers of the workers."""
        self._receivers = receivers
        settings = self.settings
        run = Run(settings.run)
        _log.info("Engine %s is closed until a refit of %s opens it", settings.engine, settings.run)
        self.handle = run.gate(
            settings.engine,
            receivers=receivers,
            agent=self,
            fail_overdue=settings.drain_overdue == "abort",
            engine_instance=settings.engine_instance,
        )

    def end(self) -> None:
        """The engine ends: nobody waits for it any more."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            jobs = list(self._jobs)
        for job in jobs:
            job.fail(Cancelled(f"engine {self.settings.engine} has ended"))
        if self.handle is not None:
            self.handle.close()

    # On the engine's thread.

    @property
    def refusal(self) -> str:
        """Why it can never open, as far as is known."""
        return self._refused or self._missing

    def refuses(self, request: Any) -> bool:
        """Whether a request was ended with an error, for it would wait for ever."""
        if not self.refusal:
            return False
        _log.error("Request %s ends: %s", request.request_id, self.refusal)
        self.core._send_error_outputs_to_client([request.request_id], request.client_index)
        return True

    def _take_refusal(self, why: str) -> None:
        self._refused = why
        if why:
            _log.error("Engine %s stays closed: %s", self.settings.engine, why)
            self._end_requests()

    def _end_requests(self) -> None:
        """They would wait for ever."""
        status: Any = import_module("vllm.v1.request").RequestStatus
        for request in self.core.scheduler.finish_requests(None, status.FINISHED_ERROR):
            self.refuses(request)

    def _post(self, job: _Job) -> None:
        types: Any = import_module("vllm.v1.engine").EngineCoreRequestType
        self.core.input_queue.put_nowait((types.WAKEUP, job))

    def _take_over(self) -> None:
        """From here on a user's own pauses and the gate's are told apart, and either one holds."""
        core = self.core
        self._set_pause_state = core.scheduler.set_pause_state
        self._set_weight_version = core.set_weight_version
        self._sleep = core.sleep
        self._suspend = core.model_executor.sleep
        core.scheduler.set_pause_state = self._pause_state_asked
        core.set_weight_version = self._refuse_version
        core.sleep = self._sleep_asked
        core.model_executor.sleep = self._suspend_asked
        core._dcr_gate = self
        self._apply_pause()

    def _apply_pause(self) -> None:
        self._set_pause_state(max(self._own, self._users))

    def _pause_state_asked(self, pause_state: Any) -> None:
        if self._acting:
            self._own = max(self._own, pause_state)
        else:
            self._users = pause_state
        self._apply_pause()

    def _refuse_version(self, weight_version: str) -> None:
        raise Unsupported(
            f"weight version {weight_version!r}: with the backend dcr it is the label of the refit "
            "that was committed"
        )

    def _sleep_asked(self, level: int = 1, mode: str = "abort") -> Any:
        self._check_sleep(level)
        self._before_sleep = self._users
        return self._sleep(level, mode)

    def _suspend_asked(self, level: int = 1) -> Any:
        try:
            # Again: requests may have been drained since the first check.
            self._check_sleep(level)
        except Unsupported:
            # Whoever is told that it does not sleep does not know of the pause that began it.
            self._users = self._before_sleep
            self._apply_pause()
            raise
        return self._suspend(level)

    def _check_sleep(self, level: int) -> None:
        if level >= 2:
            raise Unsupported(
                f"sleep(level={level}) discards weights, which the backend dcr keeps: use level 1"
            )
        if level == 1 and self._own != self._states.UNPAUSED:
            raise Unsupported(
                "sleep(level=1) while the gate is closed: weights may be written at any time; "
                "sleep(level=0) pauses requests alone"
            )

    def _check_awake(self) -> None:
        if self.core.model_executor.is_sleeping:
            raise Unsupported(
                f"engine {self.settings.engine} sleeps at level 1: wake_up() first"
            )

    def _begin_close(self, fail_requests: bool) -> "Future[None] | None":
        self._check_awake()
        pending = self._pause("abort" if fail_requests else self.settings.pause)
        if pending is None:
            self._closed_now()
            return None
        done: Future[None] = Future()

        def finish(paused: "Future[None]") -> None:
            error = paused.exception()
            if error is not None:
                done.set_exception(error)
                return
            self._closed_now()
            done.set_result(None)

        pending.add_done_callback(finish)
        return done

    def _pause(self, mode: str) -> "Future[None] | None":
        """Pauses as a user would. Done when the engine has nothing to step and devices are idle."""
        self._acting = True
        try:
            pending: Future[None] | None = self.core.pause_scheduler(mode=mode, clear_cache=False)
        finally:
            self._acting = False
        return pending

    def _closed_now(self) -> None:
        self._closed = True
        # A pause that drains would let go on what is queued with a cache of its own.
        self._own = self._states.PAUSED_ALL
        self._apply_pause()

    def _prepare(self, label: str) -> None:
        """All of opening but that requests run."""
        self._check_awake()
        if not self._closed:
            raise Conflict(f"engine {self.settings.engine} is open, at {self.label!r}")
        self._check_coverage()
        self._set_weight_version(label)
        self._reset_caches()
        self.label = label

    def _check_coverage(self) -> None:
        """All workers together have every element of what they take: no worker sees that alone."""
        from dcr.vllm.backend import traces_of

        traces = self.core.collective_rpc(traces_of)
        if traces != self._traces:
            uneven = self._find_uneven()
            self._traces = traces
            self._missing = _missing_part(uneven)
            if self._missing:
                self._end_requests()
            elif uneven:
                self._log_uneven(uneven)
        if self._missing:
            raise Unsupported(f"engine {self.settings.engine}: {self._missing}")

    def _find_uneven(self) -> "dict[str, Uneven]":
        from dcr.torch.placed import uneven_by_name
        from dcr.vllm.backend import placements_of

        workers = self.core.collective_rpc(placements_of)
        for receiver, found in zip(self._receivers, workers, strict=True):
            if not found:
                raise Unavailable(
                    f"engine {self.settings.engine}: the worker of receiver {receiver} has not "
                    "traced its loader, or has left the run"
                )
        return uneven_by_name(workers)

    def _log_uneven(self, uneven: "dict[str, Uneven]") -> None:
        some = [f"{name!r} ({one.reason})" for name, one in list(uneven.items())[:_NAMES_MAX]]
        _log.warning(
            "Engine %s: %d of the trainer's tensors do not lie evenly on its workers, which may be "
            "meant: %s%s",
            self.settings.engine,
            len(uneven),
            ", ".join(some),
            ", …" if len(uneven) > len(some) else "",
        )

    def _admit(self) -> None:
        try:
            self._closed = False
            self._own = self._states.UNPAUSED
            self._apply_pause()
        except BaseException:  # Ctrl-C on a user's own thread: the run will not take it for open
            self._closed_now()
            raise

    def _reset_caches(self) -> None:
        core = self.core
        # Running requests are computed again from their tokens, with the new weights.
        resets: dict[str, Callable[[], Any]] = {
            "prefix": lambda: core.reset_prefix_cache(reset_running_requests=True),
            "KV connector": lambda: core.reset_prefix_cache(reset_connector=True),
            "multimodal": core.reset_mm_cache,
            "encoder": core.reset_encoder_cache,
        }
        for name, reset in resets.items():
            try:
                done = reset() is not False
                reason = "it is in use"
            except Exception as error:
                done, reason = False, str(error)
            if not done:
                raise Unavailable(
                    f"engine {self.settings.engine}: the {name} cache could not be reset: {reason}"
                )


def _missing_part(uneven: "dict[str, Uneven]") -> str:
    """Of which tensor workers take a part and none takes the rest; empty: of none."""
    for name, one in uneven.items():
        if one.missing:
            return (
                f"tensor {name!r}: {one.reason}, though workers take others of it: the trainer's "
                "is larger than the engine's, or the engine's loader leaves a part of it out"
            )
    return ""


_gates: "weakref.WeakSet[EngineGate]" = weakref.WeakSet()


@atexit.register  # after `dcr.run` has registered what closes runs, so it is called before that
def _end_gates() -> None:
    for gate in list(_gates):
        gate.end()


def start(gate: EngineGate) -> None:
    """Starts the workers' receivers, and the engine's gate over them."""
    from dcr.vllm.backend import start_receiver

    _gates.add(gate)
    engine = gate.settings.engine, gate.settings.engine_instance
    gate.join(gate.core.collective_rpc(start_receiver, args=engine))


def attach(core: Any) -> None:
    """Gives an EngineCore with a busy loop its gate, on that loop's thread, before it steps."""
    settings = Settings.of(core.vllm_config)
    if core.vllm_config.parallel_config.data_parallel_size > 1:
        from dcr.vllm.ranks import RanksGate

        start(RanksGate(core, settings))
    else:
        start(EngineGate(core, settings))
