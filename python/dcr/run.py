"""Taking part in a run: what trainer ranks and serving engines have in common.

A run directory is all that a run on one machine needs. Whoever opens it first makes it; its
coordinators and its node's agent are processes (`dcr coordinator`, `dcr node`) that are started
where they are missing and end some time after the last member has left. docs/RUN_DIRECTORY.md says
what lies in it. A run on several machines has a file that lists its endpoints, with their addresses
and keys (docs/CLI.md); its coordinators and nodes are started by whoever operates it.
"""

import atexit
import logging
import os
import shutil
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dcr import _core
from dcr._core import EngineStatus, MemberStatus, RunStatus
from dcr.errors import Cancelled, Conflict, Error, InvalidArgument, NotFound

if TYPE_CHECKING:
    from dcr.torch.placed import Placement

__all__ = [
    "Coordinator",
    "EngineStatus",
    "Gate",
    "GateAgent",
    "MemberStatus",
    "Receiver",
    "Run",
    "RunStatus",
    "run_path",
]

Tensor = tuple[str, str, Sequence[int]]  # name, dtype, shape
Box = tuple[int, int, Sequence[int], Sequence[int]]  # tensor, offset, sizes, strides
# A receiver that has traced, whether it was audited, and what makes its placements.
Traced = tuple[_core.EmbeddedReceiver, bool, Callable[[], "dict[str, Placement]"]]

T = TypeVar("T")
Logger = logging.LoggerAdapter[logging.Logger]

_LOG_SECONDS = 0.1
_WAIT_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
_REFUSAL_SECONDS = 0.5

logger = logging.getLogger("dcr")


def run_path(run: str | os.PathLike[str] | None = None) -> str:
    """The run's directory or file: what is given, or `DCR_RUN`, by the path that is its own."""
    given = os.fspath(run) if run is not None else os.environ.get("DCR_RUN", "")
    if not given:
        raise InvalidArgument("no run was named: give its directory or file, or set DCR_RUN")
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

    def __init__(self, path: str, create: bool) -> None:
        self.path = path
        self.process = os.getpid()
        kill = os.environ.get("DCR_KILL", "")
        self.core = _core.RunSession(
            path,
            program="" if os.path.isfile(path) else _program(),
            kill_points=[one for one in kill.split() if one],
            create=create,
        )
        self.members: weakref.WeakSet[Any] = weakref.WeakSet()
        self.endpoints: dict[str, tuple[str, int | None]] = {}  # what logs: role and rank
        self._closing = threading.Event()
        self._logs = threading.Thread(target=self._log, name="dcr-log", daemon=True)
        self._logs.start()

    def _log(self) -> None:
        while not self._closing.wait(_LOG_SECONDS):
            self._hand_on()

    def _hand_on(self) -> None:
        for problem, endpoint, text in self.core.take_logs():
            level = logging.WARNING if problem else logging.INFO
            self.logger_of(endpoint).log(level, "%s: %s", endpoint, text)

    def logger_of(self, endpoint: str) -> "Logger":
        role, rank = self.endpoints.get(endpoint, (None, None))
        which = {"dcr_endpoint": endpoint, "dcr_role": role, "dcr_rank": rank}
        return logging.LoggerAdapter(logger, which)

    def close(self) -> None:
        if os.getpid() != self.process or self._closing.is_set():
            return
        # All at once, and one deadline for all of their threads.
        members, until = list(self.members), time.monotonic() + _CLOSE_SECONDS
        threaded = [member for member in members if isinstance(member, Gate | Receiver)]
        for member in threaded:
            member._begin_close()
        for member in threaded:
            member._end_close(until)
        for member in members:
            member.close()
        self._closing.set()
        self._logs.join(_CLOSE_SECONDS)
        self._hand_on()
        self.core.close()


def _rank_of(receiver: str) -> int | None:
    """The number that a receiver's name ends with, as those of vLLM's workers do."""
    _, dot, rank = receiver.rpartition(".")
    return int(rank) if dot and rank.isdecimal() else None


def _join(thread: threading.Thread, until: float) -> None:
    if threading.current_thread() is not thread:
        thread.join(max(0.0, until - time.monotonic()))


_sessions: dict[str, _Session] = {}
_lock = threading.Lock()


def _session(path: str, create: bool) -> _Session:
    with _lock:
        session = _sessions.get(path)
        if session is None or session.process != os.getpid():
            session = _sessions[path] = _Session(path, create)
        return session


@atexit.register
def _close_sessions() -> None:
    for session in _sessions.values():
        session.close()
    _sessions.clear()


class GateAgent(Protocol):
    """What admits requests to an engine. Called on threads of the gate's, one call at a time but
    for `close(True)`, which comes while a `close(False)` waits for requests.

    It may have `refused(reason)` too, which is called when the gate cannot open any more, for one
    of the engine's receivers takes no part; and with "" if it can again.
    """

    def close(self, fail_requests: bool) -> None:
        """Returns when no request is computed and none can be until `open`.

        `fail_requests`: end those that run rather than wait for them. It comes only to gates with
        `fail_overdue`.
        """

    def open(self, label: str) -> None:
        """The label of the weights, caches of other weights dropped, then requests, in this order.

        Whatever it raises keeps the gate closed, with that reason.
        """


class Run:
    """A run, as this process sees it.

    `run` is its directory, which is made if there is none, or the file of a run on several
    machines; `DCR_RUN` is the default. `create` makes what a file names, if it is not there: for
    who coordinates the run. All objects of one process and run share what is open, until the
    process ends or `close`.
    """

    def __init__(
        self, run: str | os.PathLike[str] | None = None, *, create: bool = False
    ) -> None:
        self._session = _session(run_path(run), create)

    @property
    def path(self) -> str:
        """Absolute, of its directory or file."""
        return self._session.path

    @property
    def option(self) -> str:
        """What names it to the command `dcr`: "--run DIR" or "--config FILE"."""
        return ("--config " if os.path.isfile(self.path) else "--run ") + self.path

    @property
    def core(self) -> _core.RunSession:
        """What the core has open."""
        return self._session.core

    def committed(self) -> tuple[int, str]:
        """Version and label of the weights that are committed now; (0, "") before the first."""
        return self.core.committed()

    def status(self, *, wait: float = 2.0) -> RunStatus:
        """What is committed, the last attempt, and how engines and members stand.

        Waits so many seconds at most for those that do not answer.
        """
        return self._as_operator(lambda operator: operator.look(wait))

    def abort(self) -> tuple[int, str]:
        """Ends the transition that is under way: owners that wait for it raise `Cancelled`.

        Returns what is committed then, which may be what was about to be. The next refit sends
        everything.
        """
        self._as_operator(lambda operator: operator.end_transition())
        return self.committed()

    def restore(self, *, wait: float = 2.0) -> list[str]:
        """Has each receiver that does not hold what is committed restore it; returns their names,
        and those of a file's receivers that take no part at present, which restore it when they
        come.

        Waits `wait` seconds at most for those that do not answer, and not until they have restored
        it, for engines of this process may need its thread for that: `status` says how they stand.

        Raises `Conflict` while an attempt is active.
        """
        return self._as_operator(lambda operator: operator.restore(wait))

    def _as_operator(self, call: "Callable[[_core.RunOperator], T]") -> "T":
        operator = _core.RunOperator(self.core)
        try:
            return call(operator)
        finally:
            operator.close()

    def coordinator(self, name: str) -> "Coordinator":
        """Runs a coordinator in this process, which leads or stands by until it is closed.

        A run directory has coordinators of its own; one of this process is another of them. Of a
        run with a file, it is one that the file lists.
        """
        return Coordinator(self, name)

    def gate(
        self,
        engine: str,
        *,
        receivers: Sequence[str],
        agent: GateAgent,
        fail_overdue: bool = False,
        engine_instance: int = 0,
    ) -> "Gate":
        """Joins as the request gate of an engine, which has these receivers.

        `fail_overdue`: requests that have not finished half of `drain_ms` (of the run's settings)
        after the gate began to close are failed; else it goes on waiting for them.
        `engine_instance`: a number from 1 to 2^62 that is drawn at random when the engine starts,
        the same for its gate and all its receivers. What receivers of another engine of this name
        say, which was taken for dead and is not, the gate does not hear. By default it is a number
        of this process's session: an engine of several processes draws one and hands it on, and so
        does one that takes another's place in its process before the other's receivers are closed.
        """
        return Gate(self, engine, receivers, agent, fail_overdue, engine_instance)

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
        engine_instance: int = 0,
    ) -> "Receiver":
        """Joins as the receiver of one of an engine's ranks, whose parameters `model` has.

        `load_weights` and `never_loaded` are `dcr.torch.ModelReceiver`'s. `base`: the checkpoint's
        directory that the module was loaded from; before it takes part for the first time, its
        parameters are compared with what its loader makes of that; where there is none, or it has
        other tensors, the first weights that come whole are compared with the parameters once
        they are written. `before_prewarm` is called before the loader is traced, and may raise what
        makes this module no receiver. `after_apply` is called when the changes of an attempt are
        all applied. `engine_instance`: as `gate` says.
        """
        never = tuple(never_loaded)
        loaded = [base] if base is not None else []

        def make(
            tensors: Sequence[Tensor], boxes: Sequence[Sequence[Box]]
        ) -> Traced:
            from dcr.torch.checkpoint import CheckpointTensors
            from dcr.torch.receiver import traced_receiver

            if before_prewarm is not None:
                before_prewarm()
            audited = CheckpointTensors(os.fspath(loaded[0])) if loaded else None
            made = traced_receiver(model, tensors, load_weights, boxes, never, audited)
            loaded.clear()  # from now on it holds what refits bring
            return made

        return Receiver(self, name, engine, make, after_apply, engine_instance)

    def join(self, member: Any) -> None:
        """Has `member.close()` called before the run is closed."""
        self._session.members.add(member)

    def has_endpoint(self, name: str, role: str, rank: int | None = None) -> "Logger":
        """What the core logs of this endpoint is logged with its role and rank, as what is logged
        through the logger that this returns."""
        self._session.endpoints[name] = role, rank
        return self._session.logger_of(name)

    def close(self) -> None:
        """Leaves the run with all that has joined through it in this process."""
        with _lock:
            if _sessions.get(self.path) is self._session:
                del _sessions[self.path]
        self._session.close()


class Coordinator:
    """A coordinator in this process. What it does is logged."""

    def __init__(self, run: Run, name: str) -> None:
        self.name = name
        run.has_endpoint(name, "coordinator")
        self._core = _core.RunCoordinator(run.core, name)
        run.join(self)

    @property
    def failure(self) -> str:
        """What it has ended with, for somebody to see to; empty: it goes on."""
        return self._core.failure()

    def close(self) -> None:
        """Leaves the run; another coordinator takes over what it was at."""
        self._core.close()


class Gate:
    """An engine's request gate: has its agent close and open as the run goes on.

    Starts closed, which the agent is told before anything else, by the thread that makes the gate.
    From then on threads of the gate's own call the agent.
    After `close` the engine goes on with what it has, and the run knows nothing of it.
    """

    def __init__(
        self,
        run: Run,
        engine: str,
        receivers: Sequence[str],
        agent: GateAgent,
        fail_overdue: bool = False,
        engine_instance: int = 0,
    ) -> None:
        self.engine = engine
        self._failure = ""  # of the agent's last call
        self.refusal = ""
        """Which of its receivers takes no part, and why: it cannot open then."""
        self._look_at = 0.0
        self._agent = agent
        self._log = run.has_endpoint(engine, "gate")
        agent.close(False)  # receivers are told that it is closed as soon as there is a gate
        self._core = _core.RunGate(
            run.core,
            engine,
            list(receivers),
            fail_overdue=fail_overdue,
            engine_instance=engine_instance,
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"dcr-gate-{engine}", daemon=True)
        self._thread.start()
        run.join(self)

    def _serve(self) -> None:
        with self._ends_if_it_fails():
            while not self._closing.is_set():
                work = self._core.next(_WAIT_SECONDS)
                if work is not None:
                    self._begin(*work)
                self._tell_refusal()

    def _begin(self, number: int, opens: bool, label: str, fail_requests: bool) -> None:
        if opens or fail_requests:
            return self._answer(number, opens, label, fail_requests)
        # It may take long, and what fails the requests comes meanwhile.
        threading.Thread(
            target=self._answer_aside,
            args=(number, opens, label, fail_requests),
            name=f"dcr-gate-{self.engine}-closes",
            daemon=True,
        ).start()

    def _answer(self, number: int, opens: bool, label: str, fail_requests: bool) -> None:
        self._core.done(number, self._do(opens, label, fail_requests))

    def _answer_aside(self, *work: Any) -> None:
        with self._ends_if_it_fails():
            self._answer(*work)

    @contextmanager
    def _ends_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not self._closing.is_set():
                self._log.exception("%s: the gate stays as it is: %s", self.engine, error)
                self._core.close()  # the engine's receivers write to nothing without it

    def _tell_refusal(self) -> None:
        """Requests that wait for ever need an explanation, where they wait."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _REFUSAL_SECONDS
        refusal = self._core.refusal()
        if refusal is None or refusal == self.refusal:
            return
        self.refusal = refusal
        if refusal:
            self._log.error("%s stays closed: %s", self.engine, refusal)
        tell = getattr(self._agent, "refused", None)
        if tell is None:
            return
        try:
            tell(refusal)
        except Exception as error:
            if not self._closing.is_set():
                self._log.error("%s: requests go on waiting: %s", self.engine, error)

    def _do(self, opens: bool, label: str, fail_requests: bool) -> str | None:
        """What went wrong."""
        try:
            if opens:
                self._agent.open(label)
            else:
                self._agent.close(fail_requests)
        except Exception as error:
            what = str(error) or type(error).__name__
            if what != self._failure and not self._closing.is_set():
                self._log.error(
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

    @property
    def closing(self) -> bool:
        """Whether it leaves the run, or has left: the agent's last call needs no longer be waited
        for."""
        return self._closing.is_set()

    def status(self) -> tuple[bool, str]:
        """Whether it is open, and else why not."""
        reason = self._core.closed_because()
        return not reason, reason

    def close(self) -> None:
        """Leaves the run."""
        if not self._closing.is_set():
            self._begin_close()
            self._end_close(time.monotonic() + _CLOSE_SECONDS)

    def _begin_close(self) -> None:
        self._closing.set()

    def _end_close(self, until: float) -> None:
        _join(self._thread, until)
        self._core.close()


class Receiver:
    """A serving rank's receiver: traces when owners are there, then takes part until it is closed.

    `make(tensors, boxes)` makes a receiver that has traced, for tensors (name, dtype, shape) that
    owners have published, says whether it was audited, and what makes its placements; it is called
    on the receiver's own thread, while the engine's gate has never been open. When owners with
    other tensors come later, the receiver ends. What is raised ends it, too, and is what `status`
    says. `after_apply` is called on another thread of its own.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        engine: str,
        make: Callable[[Sequence[Tensor], Sequence[Sequence[Box]]], Traced],
        after_apply: Callable[[], None] | None,
        engine_instance: int = 0,
    ) -> None:
        self.name = name
        self._make = make
        self._after_apply = after_apply
        self._state = "waits for owners"
        self.failure: BaseException | None = None
        self.traces = 0
        """How often it has traced: `placements` are others when this is another number."""
        self._placements: Callable[[], dict[str, Placement]] = dict
        self._log = run.has_endpoint(name, "receiver", _rank_of(name))
        self._core = _core.RunReceiver(run.core, name, engine, engine_instance=engine_instance)
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
            self._state = f"failed: {error}"
            self._log.error(
                "%s takes no part: %s", self.name, error, exc_info=not isinstance(error, Error)
            )
            self._refuse(str(error) or type(error).__name__)

    def _refuse(self, why: str) -> None:
        """Has the engine's gate and the run know why, until this receiver is closed."""
        try:
            self._core.refuse(why)
        except BaseException as error:
            if not self._closing.is_set():
                self._log.error("%s cannot say why it takes no part: %s", self.name, error)
        self._leave()

    def _serve_owners(self) -> None:
        while not self._closing.is_set():
            self._state = "waits for owners"
            if not self._core.find_owners(_WAIT_SECONDS):
                continue
            self._state = "traces the loader"
            self._placements = dict
            receiver, audited, self._placements = self._make(self._core.tensors, self._core.boxes)
            self.traces += 1
            self._state = ""
            if not self._core.serve(receiver, self._after_apply, audit=not audited):
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

    def placements(self) -> "dict[str, Placement]":
        """By canonical name, where its elements are; of nothing unless it has traced for the
        owners that are there."""
        return self._placements()

    def close(self) -> None:
        """Leaves the run."""
        if not self._closing.is_set():
            self._begin_close()
            self._end_close(time.monotonic() + _CLOSE_SECONDS)

    def _begin_close(self) -> None:
        self._closing.set()
        with suppress(InvalidArgument):  # it has failed, and is closed
            self._core.stop()

    def _end_close(self, until: float) -> None:
        _join(self._thread, until)
        self._leave()

    def _leave(self) -> None:
        """What still runs of the core's ends when its call returns."""
        self._placements = dict
        self._core.close()
