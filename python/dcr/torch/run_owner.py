"""An owner inside a trainer rank that takes part in a run."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from dcr import _core
from dcr.errors import Error, InvalidArgument, Mismatch
from dcr.run import Run
from dcr.torch.conversion import Export
from dcr.torch.owner import Exchange, declare, heard_from, ranks_of, said_of, watch_steps
from dcr.torch.source import CanonicalDtype, SourceModel

__all__ = ["Owner", "RefitHandle", "RefitResult"]

_WAIT_SECONDS = 0.1
_SLOW_SECONDS = 10.0
_WITHDRAW_SECONDS = 10.0
_MODES = ["mixed", "overwrite", "dense"]


@dataclass(frozen=True)
class RefitResult:
    """A refit that was committed. All ranks have the same; numbers are those of all ranks."""

    version: int
    label: str
    attempts: int
    """How many it took; of the last one come the numbers below."""
    mode: str
    """ "mixed", "overwrite" or "dense": the most that any owner sent."""
    seconds: float
    """From the call to its return, of the rank that took longest."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage of construction, of the rank that took longest."""
    payloads: int = 0
    payload_bytes: int = 0
    changed_elements: int = 0
    """Of source tensors; 0 in a dense refit."""
    elements: int = 0
    without_baseline: tuple[str, ...] = ()
    """Owners that send everything next time."""
    gate_closed_early: str = ""
    """Why engines stopped serving before everything was staged; asynchronous refits only."""

    def metrics(self) -> dict[str, float]:
        """Numbers for a tracker, under `refit/delta/`."""
        numbers: dict[str, float] = {
            "version": self.version,
            "attempts": self.attempts,
            "seconds": self.seconds,
            "payloads": self.payloads,
            "payload_bytes": self.payload_bytes,
            "changed_elements": self.changed_elements,
            "change_rate": self.changed_elements / self.elements if self.elements else 0.0,
            "dense": float(self.mode == "dense"),
            **{f"seconds/{stage}": seconds for stage, seconds in self.stages.items()},
        }
        if self.changed_elements:
            numbers["bits_per_change"] = 8 * self.payload_bytes / self.changed_elements
        return {f"refit/delta/{name}": float(number) for name, number in numbers.items()}


class RefitHandle:
    """A refit that goes on. The parameters must not change until `result` has returned."""

    def __init__(self, owner: "Owner", label: str) -> None:
        self._owner = owner
        self._process = os.getpid()
        self.label = label
        self._outcome: RefitResult | BaseException | None = None

    def __reduce__(self) -> Any:
        raise TypeError("RefitHandle cannot be pickled or copied: it belongs to its process")

    def __str__(self) -> str:
        return f"the refit {self.label!r} is open: wait for its result before"

    def done(self) -> bool:
        """Whether `result` would return at once on this rank, but for other ranks."""
        self._check_process()
        return self._outcome is not None or self._owner._poll(0.0) is not None

    def result(self) -> RefitResult:
        """Waits for the outcome; every rank calls it.

        Ctrl-C and other exceptions of the waiting thread end the refit, unless all of it has been
        sent already, and are raised; other ranks raise an error that names this one.
        """
        self._check_process()
        if self._outcome is None:
            try:
                self._outcome = self._owner._finish()
            except BaseException as error:
                self._outcome = error
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "the handle of a refit was made in another process: it cannot be used after a fork"
            )


class Owner:
    """Takes part in a run with a trainer rank's part of a model.

    Every trainer rank makes one, and all call the constructor together; ranks tell each other what
    they hold, as those of `dcr.torch.ModelOwner` do, whose `dtype`, `export`, `exchange`, `rank`,
    `ranks`, `replicas` and others are meant here. `run` is the run's directory, or the file
    of a run on several machines (`DCR_RUN` by default). The first `refit` sends everything.

        owner = dcr.torch.Owner(model, run=directory)
        ...
        optimizer.step()
        result = owner.refit(step)

    While a refit is open the parameters must not change: a step of an optimizer that has any of
    them raises `OpenRefit`, and whatever else changed them is found when the refit is committed;
    the next one sends everything then.

    Parameters on CUDA devices are read after all that the calling thread's current stream was given
    before `refit`.

    Replicas are compared when the owner is made, and at every `check_replicas_every`-th refit.

    Not thread-safe.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        run: str | os.PathLike[str] | None = None,
        dtype: CanonicalDtype = None,
        export: Export | None = None,
        exchange: Exchange | None = None,
        rank: int | None = None,
        ranks: int | None = None,
        replicas: bool = True,
        check_replicas_every: int = 0,
        threads: int = 0,
        bucket_bytes: int = 512 << 20,
        memory_bytes_max: int = 1 << 30,
        baseline_file: str = "",
    ) -> None:
        exchange, rank, ranks = ranks_of(exchange, rank, ranks)
        self._exchange = exchange
        self._replicas_every = check_replicas_every
        self.source, self._core = declare(
            lambda agree: SourceModel(model, dtype=dtype, export=export, agree=agree),
            exchange,
            rank,
            ranks,
            threads=threads,
            bucket_bytes=bucket_bytes,
            memory_bytes_max=memory_bytes_max,
            baseline_file=baseline_file,
        )
        self.open_refit: RefitHandle | None = None
        self._refits = 0
        self._closed = False
        self._left_open = False  # an interrupted refit, whose outcome nobody has taken
        self._began = 0.0
        self._told = ""  # what the refit that is open was last said to wait for
        self._tell_after = _SLOW_SECONDS
        self._begun = False  # this rank's part of a refit, before all ranks' has
        self._said = 0  # words that ranks have exchanged
        self._steps = watch_steps(self)
        self._joined: _core.RunOwner | None = None
        if replicas:
            self.check_replicas()
        try:
            with self._together("cannot take part in the run"):
                self._run = Run(run)
                self._run.join(self)
                self._joined = _core.RunOwner(self._run.core, self._core)
                self._log = self._run.has_endpoint(self._joined.name, "owner", rank)
        except BaseException:
            self.close()  # this rank may take part already
            raise

    def __reduce__(self) -> Any:
        raise TypeError("Owner cannot be pickled or copied: it belongs to the process that made it")

    @property
    def sizes(self) -> _core.OwnedSizes:
        """What this rank owns."""
        return self._core.sizes

    @property
    def version(self) -> int:
        """The version that is committed now; 0 before the first."""
        return self._run.committed()[0]

    def next_version(self) -> int:
        """The version that the next refit makes. Every rank calls it.

        Waits for the outcome of a refit that was interrupted, which may be committed after all.
        """
        if self.open_refit is not None:
            raise InvalidArgument(f"{self.open_refit} the next one is asked for")
        self._take_left_open()
        return self.version + 1

    def check_replicas(self) -> None:
        """Compares what ranks hold in common, by a digest of each tensor. All ranks call it.

        Raises `dcr.errors.Mismatch` naming the first tensor that differs, and the ranks.
        """
        if self.open_refit is not None:
            raise InvalidArgument(f"{self.open_refit} replicas are compared")
        self._take_left_open()
        digests = b""
        with self._together("cannot read its weights"):
            self._core.set_storages(self.source.storages())
            of = self._joined if self._joined is not None else self._core
            digests = of.replica_digests()
            self._core.clear_storages()
        self._core.check_replicas(list(self._exchange(digests)))

    def refit(
        self, label: str | int, *, asynchronous: bool = False, wait: bool = True
    ) -> "RefitResult | RefitHandle":
        """Has all engines take the weights as they are, under `label`. Every rank calls it.

        Returns when they are committed and this rank may change them, or raises what all ranks
        raise; with `wait=False` a handle at once. `asynchronous`: engines go on serving until
        everything that changed has come to them.

        A refit needs an engine: it waits for one, but not for one of which a receiver takes no
        part; where there is no other it raises, with that reason.
        """
        if self.open_refit is not None:
            raise InvalidArgument(f"{self.open_refit} another one begins")
        joined = self._taking_part()
        self._take_left_open()
        self._refits += 1
        if self._replicas_every and self._refits % self._replicas_every == 0:
            self.check_replicas()
        self._began = time.monotonic()
        self._told, self._tell_after = "", _SLOW_SECONDS
        self._begun = False
        with self._together("cannot begin the refit"):
            self._core.set_storages(self.source.storages())
            self._begun = True
            joined.begin_refit(str(label), asynchronous=asynchronous)
        self._begun = False
        handle = self.open_refit = RefitHandle(self, str(label))
        return handle.result() if wait else handle

    def close(self) -> None:
        """Leaves the run, and ends the watch over optimizers."""
        self._steps()
        self._closed = True
        self.open_refit = None
        if self._joined is not None:
            self._joined.close()

    def _taking_part(self) -> _core.RunOwner:
        if self._joined is None:
            raise InvalidArgument("this owner takes no part in a run")
        return self._joined

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """A step of all ranks or of none: what one raises, the others hear of and raise too."""
        try:
            try:
                yield
            except Exception as error:
                self._hear(said_of(error))
                raise
            for rank, said in enumerate(self._hear("")):
                if said:
                    raise heard_from(said, f"rank {rank} {what}")
        except BaseException:  # Ctrl-C, too, while other ranks are waited for
            self._undo()
            raise

    def _undo(self) -> None:
        """After a step that some rank could not take: a refit that began here is withdrawn."""
        if self._begun and self._joined is not None:
            self._left_open = self._joined.interrupt()

    def _hear(self, words: str) -> list[str]:
        """What all ranks say at this point, which has to be the same of all."""
        self._said += 1
        of_all = [one.decode() for one in self._exchange(f"{self._said} {words}".encode())]
        for rank, one in enumerate(of_all):
            number, _, _ = one.partition(" ")
            if number != str(self._said):
                raise Mismatch(
                    f"rank {rank} is at another call than this one: was one of them interrupted, "
                    "or not called on every rank?"
                )
        return [one.partition(" ")[2] for one in of_all]

    def _poll(self, seconds: float) -> tuple[Any, ...] | Error | None:
        """The outcome of the refit, once there is one; it stays until the next one begins."""
        joined = self._taking_part()
        try:
            return joined.wait(seconds)
        except Error as error:
            if self._closed:
                raise
            return error

    def _finish(self) -> RefitResult:
        try:
            found = self._wait()
        except BaseException:
            # Ctrl-C, or what a signal's handler raised.
            self._left_open = True
            self.open_refit = None
            if not self._closed:
                self._taking_part().interrupt()
            raise
        self._core.clear_storages()
        self.open_refit = None
        if isinstance(found, Error):
            raise found  # all ranks' owners have it
        return self._agree(found)

    def _wait(self) -> tuple[Any, ...] | Error:
        found = None
        while found is None:
            self._tell_what_it_waits_for()
            found = self._poll(_WAIT_SECONDS)
        return found

    def _tell_what_it_waits_for(self) -> None:
        waited = time.monotonic() - self._began
        if waited < self._tell_after:
            return
        self._tell_after += _SLOW_SECONDS
        waits_for = self._taking_part().waits_for()
        if waits_for == self._told:
            return
        self._told = waits_for
        self._log.warning(
            "the refit is still open after %d s: %s (dcr status %s says more)",
            waited,
            waits_for,
            self._run.option,
        )

    def _take_left_open(self) -> None:
        """Waits for the outcome of an interrupted refit, which nobody has asked for."""
        if not self._left_open:
            return
        began = time.monotonic()
        found = None
        while found is None:
            if time.monotonic() - began > _WITHDRAW_SECONDS:
                self._taking_part().interrupt()
                began = time.monotonic()
            found = self._poll(_WAIT_SECONDS)
        self._left_open = False
        self._core.clear_storages()
        if not isinstance(found, Error):
            self._agree(found)  # the other ranks have asked for it

    def _agree(self, found: tuple[Any, ...]) -> RefitResult:
        """The numbers of all ranks."""
        all_said = [json.loads(one) for one in self._hear(json.dumps(self._words_of(found)))]
        stages: dict[str, float] = {}
        for one in all_said:
            for stage, seconds in one["stages"].items():
                stages[stage] = max(stages.get(stage, 0.0), seconds)
        first = all_said[0]
        without = sorted({name for one in all_said for name in one["without_baseline"]})
        return RefitResult(
            version=first["version"],
            label=first["label"],
            attempts=max(one["attempts"] for one in all_said),
            mode=max((one["mode"] for one in all_said), key=_MODES.index),
            seconds=max(one["seconds"] for one in all_said),
            stages=stages,
            payloads=sum(one["payloads"] for one in all_said),
            payload_bytes=sum(one["payload_bytes"] for one in all_said),
            changed_elements=sum(one["changed_elements"] for one in all_said),
            elements=sum(one["elements"] for one in all_said),
            without_baseline=tuple(without),
            gate_closed_early=first["gate_closed_early"],
        )

    def _words_of(self, found: tuple[Any, ...]) -> dict[str, Any]:
        version, label, attempts, without_baseline, closed_early, sent = found
        return {
            "version": version,
            "label": label,
            "attempts": attempts,
            "mode": sent.mode,
            "seconds": time.monotonic() - self._began,
            "stages": sent.stages,
            "payloads": sent.payloads,
            "payload_bytes": sent.payload_bytes,
            "changed_elements": sent.changed_source_elements,
            "elements": self._core.sizes.source_elements,
            "without_baseline": without_baseline,
            "gate_closed_early": closed_early,
        }
