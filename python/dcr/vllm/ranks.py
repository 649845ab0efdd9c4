"""The gate of an engine that is several EngineCores: data-parallel ranks of a model with experts.

They compute each step together, so nothing can run in one of them alone, and one that starts a step
waits until all others have. Each has a gate on its own thread. The run's gate is rank 0's, which
has the others do what it is asked for, and answers when all have done it.

vLLM stops such ranks in the step in which all of them know of a pause. It counts on being the only
one that pauses: a user's pause that meets the gate's could leave one rank in a step that others
have not been told of. So the two are counted apart, in the same exchange: the engine is closed when
all ranks have been asked to close, in one step for all of them; until it opens, what users ask for
is only noted, and when it opens, all ranks take a step, in which they hear of pauses again.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch

from dcr.errors import Cancelled, Corrupt, Error, TooLarge, Unavailable
from dcr.vllm.gate import EngineGate, Work
from dcr.vllm.settings import Settings, receiver_name

_log = logging.getLogger("vllm.dcr")

_POLL_SECONDS = 0.01  # while something is being done
_IDLE_SECONDS = 0.05  # between looks for something to do
_WATCH_SECONDS = 0.5  # between looks whether all ranks are there
_STORE_SECONDS = 10.0  # for one operation of the store
_SILENT_SECONDS = 60.0  # without a sign of life of a rank that has given one
_JOIN_SECONDS = 1.0
_MESSAGE_BYTES_MAX = 16384
_TEXT_MAX = 1000  # characters, of reasons and errors; each has twelve bytes in a message at most

Order = dict[str, Any]
_ORDERS: dict[str, dict[str, type]] = {
    "close": {"fail_requests": bool},
    "prepare": {"label": str},
    "admit": {},
    "refuse": {"why": str},
}
# Settings that are rank 0's.
_SHARED: dict[str, type] = {"engine": str, "engine_instance": int, "pause": str}


def _read(data: bytes) -> Order:
    if len(data) > _MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message between data-parallel ranks has {len(data)} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Corrupt("a message between data-parallel ranks is no JSON object")
    return found


def _check(found: Order, fields: dict[str, type]) -> Order:
    """Has these fields, and nothing else."""
    if {key: type(value) for key, value in found.items()} != fields:
        raise Corrupt(f"a message between data-parallel ranks has other fields than {list(fields)}")
    return found


def read_order(data: bytes) -> Order:
    """What rank 0 has another do."""
    found = _read(data)
    fields = _ORDERS.get(str(found.get("do")))
    if fields is None:
        raise Corrupt("a message between data-parallel ranks is no order that there is")
    return _check(found, {"do": str, **fields})


class Channel:
    """Rank 0's orders to the others, their answers and signs of life, in the store that vLLM's
    data-parallel ranks have in common. No operation waits for what isn't there."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        self.rank = rank
        self.others = range(1, ranks)
        self._store = store.clone()  # so that nobody of vLLM's waits for it
        self._store.set_timeout(timedelta(seconds=_STORE_SECONDS))
        self._lock = threading.Lock()
        self._orders = 0  # given, or taken
        self._done_with: list[int] = []  # given, and not answered by all
        self._lives = dict.fromkeys(self.others, (0, 0.0))

    def agree(self, settings: Settings, running: Callable[[], bool]) -> Settings:
        """The settings that rank 0 has, where all must have the same."""
        shared = {name: getattr(settings, name) for name in _SHARED}
        if self.rank == 0:
            self._store.set("dcr/settings", json.dumps(shared))
            return settings
        while not self._store.check(["dcr/settings"]):
            if not running():
                raise SystemExit  # as a busy loop does that is asked to end
            time.sleep(_IDLE_SECONDS)
        return replace(settings, **_check(_read(self._store.get("dcr/settings")), _SHARED))

    # Of rank 0.

    def give(self, order: Order) -> int:
        """Has all others do it; returns its number."""
        with self._lock:
            self._orders += 1
            self._store.set(f"dcr/order/{self._orders}", json.dumps(order))
            self._store.add("dcr/orders", 1)
            return self._orders

    def answers(self, number: int) -> dict[int, str]:
        """Of the ranks that have answered: what went wrong, or nothing."""
        if self._store.add(f"dcr/answers/{number}", 0) == 0:
            return {}
        return {
            rank: self._store.get(f"dcr/answer/{number}/{rank}").decode(errors="replace")
            for rank in self.others
            if self._store.check([f"dcr/answer/{number}/{rank}"])
        }

    def done_with(self, number: int) -> None:
        """Nobody asks for its answers any more: removed, as others before it, once all ranks have
        answered."""
        with self._lock:
            waiting = self._done_with = [*self._done_with, number]
            for number in waiting[:]:
                if self._store.add(f"dcr/answers/{number}", 0) < len(self.others):
                    continue
                waiting.remove(number)
                self._store.delete_key(f"dcr/order/{number}")
                self._store.delete_key(f"dcr/answers/{number}")
                for rank in self.others:
                    self._store.delete_key(f"dcr/answer/{number}/{rank}")

    def lost(self) -> str:
        """Which rank is there no more, or nothing."""
        now = time.monotonic()
        for rank, (lives, since) in self._lives.items():
            if self._store.check([f"dcr/left/{rank}"]):
                return f"data-parallel rank {rank} has ended"
            found = self._store.add(f"dcr/lives/{rank}", 0)
            if found != lives:
                self._lives[rank] = (found, now)
            elif lives and now - since > _SILENT_SECONDS:
                return f"data-parallel rank {rank} is silent for {_SILENT_SECONDS:.0f} s"
        return ""

    # Of the others.

    def orders(self) -> Iterator[tuple[int, bytes]]:
        """Those that are new, with their numbers. Shows rank 0 that this one is alive."""
        self._store.add(f"dcr/lives/{self.rank}", 1)
        for number in range(self._orders + 1, self._store.add("dcr/orders", 0) + 1):
            self._orders = number
            yield number, self._store.get(f"dcr/order/{number}")

    def answer(self, number: int, error: BaseException | None) -> None:
        text = "" if error is None else str(error)[:_TEXT_MAX] or type(error).__name__
        self._store.set(f"dcr/answer/{number}/{self.rank}", text)
        self._store.add(f"dcr/answers/{number}", 1)

    def leave(self) -> None:
        self._store.add(f"dcr/left/{self.rank}", 1)  # answered, which what is set is not


class RanksGate(EngineGate):
    """The agent of one data-parallel rank."""

    takes = (
        *EngineGate.takes,
        *("dp_store", "dp_rank", "dp_size", "dp_group", "dp_sync_interval", "step_counter"),
        *("engines_running", "pending_pause", "ignore_start_dp_wave", "_idle_state_callbacks"),
        *("is_running", "has_work", "resume_scheduler"),
    )

    def __init__(self, core: Any, settings: Settings) -> None:
        self.check(core)
        self._channel = Channel(core.dp_store, core.dp_rank, core.dp_size)
        work = self._watch if core.dp_rank == 0 else self._follow
        self._thread = threading.Thread(target=work, name="dcr-gate-ranks", daemon=True)
        self._asked = False  # to close, which not all ranks have been, as far as is known
        self._agreed = True  # all have been asked to close, and to admit requests not since
        self._noted = False  # the pause under way is a user's of before the gate opened
        self._stands_closed = True  # on all ranks, as rank 0 knows
        super().__init__(core, self._channel.agree(settings, core.is_running))

    def join(self, receivers: list[str]) -> None:
        if self.core.dp_rank == 0:
            ranks = range(len(receivers) * self.core.dp_size)
            super().join([receiver_name(self.settings.engine, rank) for rank in ranks])
        self._thread.start()

    def end(self) -> None:
        super().end()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    # What the run's gate calls, of rank 0.

    def close(self, fail_requests: bool) -> None:
        if self._stands_closed and not fail_requests:
            return
        self._have_done({"do": "close", "fail_requests": fail_requests})
        self._stands_closed = True

    def _open_for(self, label: str) -> None:
        self._have_done({"do": "prepare", "label": label})
        self._stands_closed = False
        try:
            self._have_done({"do": "admit"})
        except BaseException:
            # Some ranks may admit requests, and the run would take the engine for closed.
            self.end()
            raise

    def refused(self, why: str) -> None:
        self._have_done({"do": "refuse", "why": why[:_TEXT_MAX]})

    def _have_done(self, order: Order) -> None:
        """Returns when all ranks have done it, raises what went wrong in one. Others may not have
        done it then, and may still: what closes or prepares is asked for again, which heals it."""
        job = self._begin(*self._work(order))
        number = None
        try:
            number = self._channel.give(order)
            while not (self._answered(number) and job.future.done()):
                if job.future.done():
                    job.future.result()
                if self._ended or (self.handle is not None and self.handle.closing):
                    raise Cancelled(f"engine {self.settings.engine} has left the run")
                time.sleep(_POLL_SECONDS)
            job.future.result()
        finally:
            self._forget(job)
            if number is not None:
                with suppress(Exception):  # which is no failure of what was done
                    self._channel.done_with(number)

    def _answered(self, number: int) -> bool:
        answers = self._channel.answers(number)
        for rank, error in answers.items():
            if error:
                raise Unavailable(f"data-parallel rank {rank}: {error}")
        return len(answers) == len(self._channel.others)

    def _watch(self) -> None:
        """Without all ranks there is no engine."""
        lost = ""
        try:
            while not self._ended and not lost:
                time.sleep(_WATCH_SECONDS)
                lost = self._channel.lost()
        except Exception as error:
            lost = f"the data-parallel ranks cannot be reached: {error}"
        if self._goes_on():
            _log.error("Engine %s leaves the run: %s", self.settings.engine, lost)
        self.end()

    def _goes_on(self) -> bool:
        """Nobody has asked the engine to end, as all ranks are asked, one after the other."""
        return not self._ended and self.core.is_running()

    # Of the other ranks.

    def _follow(self) -> None:
        try:
            self._follow_orders()
        except Exception as error:
            if self._goes_on():
                _log.error(
                    "Engine %s: data-parallel rank %d does not reach rank 0: %s",
                    self.settings.engine,
                    self._channel.rank,
                    error,
                )
        with suppress(Exception):
            self._channel.leave()

    def _follow_orders(self) -> None:
        under_way = {}
        while not self._ended:
            for number, data in self._channel.orders():
                try:
                    under_way[number] = self._begin(*self._work(read_order(data)))
                except Error as error:
                    self._channel.answer(number, error)
            for number, job in list(under_way.items()):
                if job.future.done():
                    del under_way[number]
                    self._forget(job)
                    self._channel.answer(number, job.future.exception())
            time.sleep(_POLL_SECONDS if under_way else _IDLE_SECONDS)

    # On the engine's thread, of all ranks.

    def _work(self, order: Order) -> tuple[Work, bool]:
        """What it has this rank do, and whether that closes the gate."""
        if order["do"] == "close":
            fail_requests: bool = order["fail_requests"]
            return lambda: self._begin_close(fail_requests), True
        if order["do"] == "prepare":
            label: str = order["label"]
            return lambda: self._prepare(label), False
        if order["do"] == "admit":
            return self._admit, False
        why: str = order["why"]
        return lambda: self._take_refusal(why), False

    def _take_over(self) -> None:
        core = self.core
        core.ignore_start_dp_wave = True
        self._resume = core.resume_scheduler
        core.resume_scheduler = self._resume_asked
        core._pause_complete = self._pause_begins
        core._has_global_unfinished_reqs = self._any_goes_on
        super()._take_over()

    def _begin_close(self, fail_requests: bool) -> "Future[None] | None":
        core = self.core
        if not self._agreed and not core.engines_running and core._idle_state_callbacks:
            # Others may have fallen asleep already; this one would wait for them in a step.
            raise Unavailable(f"engine {self.settings.engine} is about to be idle for a user")
        return super()._begin_close(fail_requests)

    def _pause_begins(self) -> bool:
        """In place of vLLM's `_pause_complete`: whether a pause is complete already."""
        core = self.core
        if self._agreed:
            return not core.has_work()
        if self._acting:
            self._asked = True
        elif self._own == self._states.UNPAUSED:
            core.pending_pause, self._noted = True, False
        core.engines_running = True
        return False

    def _resume_asked(self) -> None:
        """In place of vLLM's `resume_scheduler`, which would have ranks wait for each other here,
        while others may be in a step."""
        core = self.core
        if self._own == self._states.UNPAUSED:
            if core.pending_pause and self._noted:
                core.pending_pause = self._noted = False
            elif core.pending_pause or core.engines_running:
                self._resume()  # says so, or does nothing
                return
            elif core.ignore_start_dp_wave:  # all ranks stopped together, and start together
                core.ignore_start_dp_wave = False
                core.engines_running = True
        core.scheduler.set_pause_state(self._states.UNPAUSED)

    def _check_coverage(self) -> None:
        """The workers of one rank are not all that the engine has."""

    def _admit(self) -> None:
        super()._admit()
        core = self.core
        self._agreed = False
        core.ignore_start_dp_wave = False
        core.pending_pause = self._noted = self._users != self._states.UNPAUSED
        core.engines_running = True

    def _any_goes_on(self, local_unfinished: bool) -> bool:
        """In place of vLLM's `_has_global_unfinished_reqs`, at the end of a step of all ranks."""
        core = self.core
        core.step_counter += 1
        if core.step_counter != 1 and core.step_counter % core.dp_sync_interval != 0:
            return True
        flags = torch.tensor([local_unfinished, core.pending_pause, self._asked]).int()
        torch.distributed.all_reduce(flags, group=core.dp_group)  # adds them up
        unfinished, pauses, closes = flags.tolist()
        if closes == core.dp_size:
            self._asked, self._agreed = False, True
        if closes == core.dp_size or pauses == core.dp_size:
            core.pending_pause = self._noted = False
            core.ignore_start_dp_wave = True
            pauses = 0
        return bool(unfinished or pauses or closes % core.dp_size)
