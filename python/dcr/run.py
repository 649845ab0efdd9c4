"""Taking part in a run: what trainer ranks and serving engines have in common.

A run directory is all that a run on one machine needs. Whoever opens it first makes it; its
coordinators and its node's agent are processes (`dcr coordinator`, `dcr node`) that are started
where they are missing and end some time after the last member has left. docs/RUN_DIRECTORY.md says
what lies in it.
"""

import atexit
import logging
import os
import shutil
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from dcr import _core
from dcr.errors import Cancelled, Conflict, Error, InvalidArgument, NotFound

__all__ = ["Gate", "GateAgent", "Receiver", "Run", "run_directory"]

Tensor = tuple[str, str, Sequence[int]]  # name, dtype, shape
Box = tuple[int, int, Sequence[int], Sequence[int]]  # tensor, offset, sizes, strides

_LOG_SECONDS = 0.1
_WAIT_SECONDS = 0.1
_CLOSE_SECONDS = 5.0

logger = logging.getLogger("dcr")


def run_directory(directory: str | os.PathLike[str] | None = None) -> str:
    """The run's directory: what is given, or `DCR_RUN`, by the path that is its own."""
    given = os.fspath(directory) if directory is not None else os.environ.get("DCR_RUN", "")
    if not given:
        raise InvalidArgument("no run was named: give its directory, or set DCR_RUN")
    return os.path.realpath(given)


def _program() -> str:
    """The command `dcr`, which is installed beside this package."""
    beside = Path(sysconfig.get_path("scripts")) / "dcr"
    if beside.exists():
        return str(beside)
    found = shutil.which("dcr")
    if found is None:
        raise NotFound(f"the command dcr is neither {beside} nor on PATH: install the package anew")
    return found


class _Session:
    """What this process has open of one run, and the thread that hands its log lines on."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.process = os.getpid()
        kill = os.environ.get("DCR_KILL", "")
        self.core = _core.RunSession(
            directory, program=_program(), kill_points=[one for one in kill.split() if one]
        )
        self.members: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closing = threading.Event()
        self._logs = threading.Thread(target=self._log, name="dcr-log", daemon=True)
        self._logs.start()

    def _log(self) -> None:
        while not self._closing.wait(_LOG_SECONDS):
            self._hand_on()

    def _hand_on(self) -> None:
        for problem, endpoint, text in self.core.take_logs():
            level = logging.WARNING if problem else logging.INFO
            logger.log(level, "%s: %s", endpoint, text, extra={"dcr_endpoint": endpoint})

    def close(self) -> None:
        if os.getpid() != self.process or self._closing.is_set():
            return
        for member in list(self.members):
            member.close()
        self._closing.set()
        self._logs.join(_CLOSE_SECONDS)
        self._hand_on()
        self.core.close()


_sessions: dict[str, _Session] = {}
_lock = threading.Lock()


def _session(directory: str) -> _Session:
    with _lock:
        session = _sessions.get(directory)
        if session is None or session.process != os.getpid():
            session = _sessions[directory] = _Session(directory)
        return session


@atexit.register
def _close_sessions() -> None:
    for session in _sessions.values():
        session.close()
    _sessions.clear()


class GateAgent(Protocol):
    """What admits requests to an engine. Called on one thread, one call at a time."""

    def close(self, fail_requests: bool) -> None:
        """Returns when no request is computed and none can be until `open`.

        `fail_requests`: end those that run rather than wait for them.
        """

    def open(self, label: str) -> None:
        """The label of the weights, caches of other weights dropped, then requests, in this order.

        Whatever it raises keeps the gate closed, with that reason.
        """


class Run:
    """A run, as this process sees it.

    `directory` is made if there is none; `DCR_RUN` is the default. All objects of one process and
    directory share what is open, until the process ends or `close`.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._session = _session(run_directory(directory))

    @property
    def directory(self) -> str:
        """Its absolute path."""
        return self._session.directory

    @property
    def core(self) -> _core.RunSession:
        """What the core has open."""
        return self._session.core

    def committed(self) -> tuple[int, str]:
        """Version and label of the weights that are committed now; (0, "") before the first."""
        return self.core.committed()

    def gate(self, engine: str, *, receivers: Sequence[str], agent: GateAgent) -> "Gate":
        """Joins as the request gate of an engine, which has these receivers."""
        return Gate(self, engine, receivers, agent)

    def receiver(
        self,
        name: str,
        *,
        engine: str,
        model: Any,
        load_weights: Callable[[Any], object] | None = None,
        never_loaded: Iterable[str] = (),
        base: str | os.PathLike[str] | None = None,
        before_prewarm: Callable[[], None] | None = None,
        after_apply: Callable[[], None] | None = None,
    ) -> "Receiver":
        """Joins as the receiver of one of an engine's ranks, whose parameters `model` has.

        `load_weights` and `never_loaded` are `dcr.torch.ModelReceiver`'s. `base`: the checkpoint's
        directory that the module was loaded from; before it takes part for the first time, its
        parameters are compared with what its loader makes of that. `before_prewarm` is
        called before the loader is traced, and may raise what makes this module no receiver.
        `after_apply` is called when the changes of an attempt are all applied.
        """
        never = tuple(never_loaded)
        loaded = [base] if base is not None else []

        def make(
            tensors: Sequence[Tensor], boxes: Sequence[Sequence[Box]]
        ) -> _core.EmbeddedReceiver:
            from dcr.torch.checkpoint import CheckpointTensors
            from dcr.torch.receiver import traced_receiver

            if before_prewarm is not None:
                before_prewarm()
            audited = CheckpointTensors(os.fspath(loaded[0])) if loaded else None
            traced = traced_receiver(model, tensors, load_weights, boxes, never, audited)
            loaded.clear()  # from now on it holds what refits bring
            return traced

        return Receiver(self, name, engine, make, after_apply)

    def join(self, member: Any) -> None:
        """Has `member.close()` called before the run is closed."""
        self._session.members.add(member)

    def close(self) -> None:
        """Leaves the run with all that has joined through it in this process."""
        with _lock:
            if _sessions.get(self.directory) is self._session:
                del _sessions[self.directory]
        self._session.close()


class Gate:
    """An engine's request gate: has its agent close and open as the run goes on.

    Starts closed, which the agent is told before anything else, by the thread that makes the gate.
    From then on a thread of the gate's own calls the agent.
    After `close` the engine goes on with what it has, and the run knows nothing of it.
    """

    def __init__(self, run: Run, engine: str, receivers: Sequence[str], agent: GateAgent) -> None:
        self.engine = engine
        self._failure = ""  # of the agent's last call
        self._agent = agent
        agent.close(False)  # receivers are told that it is closed as soon as there is a gate
        self._core = _core.RunGate(run.core, engine, list(receivers))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"dcr-gate-{engine}", daemon=True)
        self._thread.start()
        run.join(self)

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                work = self._core.next(_WAIT_SECONDS)
                if work is not None:
                    self._core.done(self._do(*work))
        except BaseException as error:
            if not self._closing.is_set():
                logger.error("%s: the gate stays as it is: %s", self.engine, error, exc_info=True)
                self._core.close()  # the engine's receivers write to nothing without it

    def _do(self, opens: bool, label: str, fail_requests: bool) -> str | None:
        """What went wrong."""
        try:
            if opens:
                self._agent.open(label)
            else:
                self._agent.close(fail_requests)
        except Exception as error:
            what = str(error) or type(error).__name__
            if what != self._failure:
                logger.error(
                    "%s: the gate %s: %s",
                    self.engine,
                    "stays closed" if opens else "cannot be closed",
                    what,
                    exc_info=not isinstance(error, Error),
                )
            self._failure = what
            return what
        self._failure = ""
        return None

    def status(self) -> tuple[bool, str]:
        """Whether it is open, and else why not."""
        reason = self._core.closed_because()
        return not reason, reason

    def close(self) -> None:
        """Leaves the run."""
        if self._closing.is_set():
            return
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        self._core.close()


class Receiver:
    """A serving rank's receiver: traces when owners are there, then takes part until it is closed.

    `make(tensors, boxes)` makes a receiver that has traced, for tensors (name, dtype, shape) that
    owners have published; it is called on the receiver's own thread, while the engine's gate has
    never been open. When owners with other tensors come later, the receiver ends. What is raised
    ends it, too, and is what `status` says. `after_apply` is called on another thread of its own.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        engine: str,
        make: Callable[[Sequence[Tensor], Sequence[Sequence[Box]]], _core.EmbeddedReceiver],
        after_apply: Callable[[], None] | None,
    ) -> None:
        self.name = name
        self._make = make
        self._after_apply = after_apply
        self._state = "waits for owners"
        self.failure: BaseException | None = None
        self._core = _core.RunReceiver(run.core, name, engine)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"dcr-{name}", daemon=True)
        self._thread.start()
        run.join(self)

    def _serve(self) -> None:
        try:
            self._serve_owners()
        except Cancelled:
            self._state = "was stopped"
        except BaseException as error:
            self.failure = error
            self._leave()
            self._state = f"failed: {error}"
            logger.error(
                "%s takes no part: %s", self.name, error, exc_info=not isinstance(error, Error)
            )

    def _serve_owners(self) -> None:
        while not self._closing.is_set():
            self._state = "waits for owners"
            if not self._core.find_owners(_WAIT_SECONDS):
                continue
            self._state = "traces the loader"
            receiver = self._make(self._core.tensors, self._core.boxes)
            self._state = ""
            if not self._core.serve(receiver, self._after_apply):
                return
            if self._core.has_applied:
                # Tracing tries things out on parameters, which requests may be using.
                raise Conflict(
                    "owners with other tensors, or another number of owners, have come: restart "
                    "this engine, which traces its loader for them then"
                )

    def status(self) -> str:
        """What it does or waits for, or why it takes no part."""
        try:
            return self._state or self._core.status()
        except InvalidArgument:
            return self._state or "is closed"

    def close(self) -> None:
        """Leaves the run."""
        if self._closing.is_set():
            return
        self._closing.set()
        with suppress(InvalidArgument):  # it has failed, and is closed
            self._core.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        self._leave()

    def _leave(self) -> None:
        """What still runs of the core's ends when its call returns."""
        self._core.close()
