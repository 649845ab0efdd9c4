"""An owner inside a trainer rank, without processes of DCR's own: payloads as bytes, to be carried
by whoever calls."""

import builtins
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dcr.errors
from dcr import _core
from dcr.errors import Error, InvalidArgument
from dcr.torch.conversion import Export
from dcr.torch.source import CanonicalDtype, SourceModel

__all__ = [
    "CanonicalBox",
    "CanonicalTensor",
    "Exchange",
    "GroupExchange",
    "ModelOwner",
    "OpenRefit",
    "PreparedRefit",
]

Exchange = Callable[[bytes], Sequence[bytes]]
"""Hands a rank's bytes to all ranks and returns those of all ranks, in order."""

CanonicalTensor = tuple[str, str, tuple[int, ...]]
"""Name, dtype in the safetensors spelling, shape."""

CanonicalBox = tuple[int, int, list[int], list[int]]
"""Index of the canonical tensor, offset, sizes and strides, in words of the tensor."""

_FAILED = b"failed: "
_LOOK_SECONDS = 0.05  # between looks for signals

_last_exchange = threading.Event()  # whether the last one over torch.distributed is over
_last_exchange.set()

logger = logging.getLogger("dcr")

Mode = Literal["mixed", "overwrite", "dense"]
EncodingName = Literal["overwrite", "xor", "add"]


class OpenRefit(RuntimeError):
    """An optimizer was to change parameters while a refit of them was open."""


@dataclass(frozen=True)
class PreparedRefit:
    """What one rank made of one attempt: `payloads` bring receivers from `base_version` to
    `target_version`, in their order; `result` has the numbers."""

    base_version: int
    target_version: int
    payloads: list[bytes]
    result: _core.Prepared

    def __str__(self) -> str:
        return f"the refit to version {self.target_version} is open: commit or abort it before"


class GroupExchange:
    """An exchange over a torch.distributed process group, the default one if none is given.

    Other ranks are waited for on a thread, so that Ctrl-C is seen meanwhile. What it interrupts
    goes on there, for the others need this rank's bytes, and other exchanges of this process begin
    when it is over. A trainer that goes on after Ctrl-C with collectives of its own in the same
    group could meet it: a group of its own for exchanges keeps them apart.

    Raises:
        dcr.errors.InvalidArgument: this rank is not of the group.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        if self.rank < 0:
            raise InvalidArgument("this rank is not of the process group that it is to talk in")

    @property
    def rank(self) -> int:
        """This one's, in the group."""
        return torch.distributed.get_rank(self._group)

    @property
    def ranks(self) -> int:
        """How many the group has."""
        return torch.distributed.get_world_size(self._group)

    def __call__(self, mine: bytes) -> Sequence[bytes]:
        global _last_exchange
        gathered: list[bytes] = [b""] * self.ranks
        failed: list[BaseException] = []
        before, over = _last_exchange, threading.Event()
        # A thread begins with its own current device, which is where NCCL gathers.
        used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        current = torch.cuda.current_device() if used else None

        def gather() -> None:
            try:
                before.wait()
                with nullcontext() if current is None else torch.cuda.device(current):
                    torch.distributed.all_gather_object(gathered, mine, group=self._group)
            except BaseException as error:
                failed.append(error)
                if interrupted:
                    logger.error("an exchange between ranks that was interrupted: %s", error)
            finally:
                over.set()

        interrupted = False
        thread = threading.Thread(target=gather, name="dcr-exchange", daemon=True)
        _last_exchange = over
        try:
            thread.start()
            # Not join(), after whose interruption the thread counts as ended.
            while not over.wait(_LOOK_SECONDS):
                pass
        except BaseException:
            interrupted = True
            if thread.ident is None:
                over.set()
            raise
        if failed:
            raise failed[0]
        return gathered


class ModelOwner:
    """Compares a model's weights with those of the last committed version and makes the payloads
    of what changed.

    Every trainer rank makes one, of its own part of the model, and all call the constructor
    together: ranks tell each other what they hold (`exchange`; over torch.distributed where it is
    initialised; `GroupExchange(group)` where the trainer is only a group of its ranks), agree on
    who owns what, and compare replicas (`replicas=False` leaves this out). The weights as they are
    become version `version`.

    `dtype` is that of the checkpoint, where it isn't the trainer's: FP32 masters are cast as they
    are compared, nothing is copied. `run` names the run in payloads (16 bytes; rank 0's counts).

    `export` makes the checkpoint of a state dict, where it isn't what the model saves: a function
    from tensors by name to tensors by name. It is tried on tensors that hold numbers of their
    elements, and on random bits: if it only moves them, it is not called again. Else it is called
    once for each refit, and what it makes is compared with what it made before, every bit. It gets
    what this rank holds, DTensors as they are, and may talk to other ranks, which all call it at
    the same times; what it makes is what this rank holds of the checkpoint: DTensors, tensors that
    other ranks make too (equal ones), or tensors that only this rank makes. It must make the same
    bits of the same weights, and write to none of them.

    Between `prepare` and `commit` or `abort` the parameters must not change: a step of an optimizer
    that has any of them raises `OpenRefit`, and whatever else changed them is found by `commit`,
    which raises `dcr.errors.Mismatch` naming the tensor; the next refit then sends everything.

    Not thread-safe. Memory: the baseline has the bytes of what this rank owns of the checkpoint.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        dtype: CanonicalDtype = None,
        export: Export | None = None,
        exchange: Exchange | None = None,
        rank: int | None = None,
        ranks: int | None = None,
        version: int = 0,
        run: bytes | None = None,
        replicas: bool = True,
        threads: int = 0,
        bucket_bytes: int = 512 << 20,
        memory_bytes_max: int = 1 << 30,
        baseline_file: str = "",
        progress: Callable[[_core.Progress], object] | None = None,
    ) -> None:
        exchange, rank, ranks = ranks_of(exchange, rank, ranks)
        self._exchange = exchange
        self._progress = progress
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
        self.run = bytes(exchange(run or os.urandom(16))[0])
        self._attempt = 0
        self._candidate = 0
        self._fresh = True  # the next prepare is about weights that no attempt has seen
        self._written = False  # receivers may hold other weights than any version's
        self._open: PreparedRefit | None = None
        self._steps = watch_steps(self)
        if replicas:
            self.check_replicas()
        self._set_storages()
        self._core.initialize(version, progress=progress)
        self._core.clear_storages()
        self._version = version

    @property
    def tensors(self) -> list[CanonicalTensor]:
        """The canonical tensors of all ranks, ascending by name."""
        return [(name, dtype, tuple(shape)) for name, dtype, shape in self._core.tensors]

    @property
    def boxes(self) -> list[list[CanonicalBox]]:
        """By rank: what its payloads may write. Receivers need it beside `tensors`."""
        return [
            [(tensor, offset, list(sizes), list(strides)) for tensor, offset, sizes, strides in of]
            for of in self._core.boxes
        ]

    @property
    def sizes(self) -> _core.OwnedSizes:
        """What this rank owns."""
        return self._core.sizes

    @property
    def attempt(self) -> int:
        """The number of the last attempt, by which its payloads name it."""
        return self._attempt

    @property
    def version(self) -> int:
        """The version that was committed last."""
        return self._version

    @property
    def open_refit(self) -> PreparedRefit | None:
        """What was prepared and is neither committed nor aborted."""
        return self._open

    def check_replicas(self) -> None:
        """Compares what ranks hold in common, by a digest of each tensor. All ranks call it.

        Raises `dcr.errors.Mismatch` naming the first tensor that differs, and the ranks.
        """
        self._set_storages()
        digests = self._core.replica_digests(self._progress)
        self._clear_storages()
        self._core.check_replicas(list(self._exchange(digests)))

    def prepare(
        self,
        target_version: int | None = None,
        *,
        mode: Mode | None = None,
        encoding: EncodingName | None = None,
        needs: Sequence[str] = (),
    ) -> PreparedRefit:
        """Makes the payloads that bring receivers from the committed version to the next.

        `mode`: "mixed", "overwrite" (new bits only) or "dense" (everything). By default what is
        exact on receivers that may have applied any part of what was prepared since the last
        commit: mixed; overwrite when it is called again for the same weights; dense after an
        `abort`. `encoding`: of a mixed attempt; by default what is smaller. `needs`: of each of
        `tensors` what receivers ask for: "any", "overwrite", "dense" or "skip".
        """
        if mode is None:
            mode = "dense" if self._written else "overwrite" if self._open else "mixed"
        target = self._version + 1 if target_version is None else target_version
        self._set_storages()
        self._attempt += 1
        if self._fresh:
            self._candidate += 1
        # An attempt that fails leaves nothing prepared, and the weights may change after it; what
        # it was to repeat may have been applied.
        written = self._written
        self._written = written or self._open is not None
        self._open, self._fresh = None, True
        try:
            result, payloads = self._core.prepare(
                run=self.run,
                attempt=self._attempt,
                candidate=self._candidate,
                base_version=self._version,
                target_version=target,
                mode=mode,
                encoding=encoding,
                needs=needs,
                progress=self._progress,
            )
        except BaseException:
            self._core.clear_storages()
            raise
        self._fresh, self._written = False, written
        self._open = PreparedRefit(self._version, target, payloads, result)
        self._clear_storages()
        return self._open

    def commit(self) -> None:
        """What was prepared last is what all receivers have: it becomes the baseline."""
        if self._open is None:
            raise InvalidArgument("there is no prepared refit to commit")
        target = self._open.target_version
        # The version is the receivers' now, whatever becomes of this owner's baseline.
        self._open, self._fresh, self._written = None, True, False
        self._version = target
        if not self.source.computed:
            self._set_storages()  # they may have moved meanwhile
        self._core.commit(target, progress=self._progress)
        self._core.clear_storages()

    def abort(self, *, applied: bool = True) -> None:
        """The prepared attempt won't be committed; the weights may change again.

        `applied=False` says that no receiver has applied any of it. Else the next attempt sends
        everything, since receivers may hold words that only this one changed.
        """
        self._core.drop_attempt()
        self._core.clear_storages()
        self._written = self._written or (applied and self._open is not None)
        self._open, self._fresh = None, True

    def restore(self) -> PreparedRefit:
        """The committed version whole, from the baseline, for receivers that join."""
        self._attempt += 1
        result, payloads = self._core.restore(
            run=self.run,
            attempt=self._attempt,
            version=self._version,
            progress=self._progress,
        )
        return PreparedRefit(self._version, self._version, payloads, result)

    def close(self) -> None:
        """Ends the watch over optimizers; a step is never refused again for this owner."""
        self._steps()

    def _set_storages(self) -> None:
        """Looks up where the weights are. What was computed for an open refit is what all of that
        is about."""
        if not self.source.computed or self._open is None:
            self._core.set_storages(self.source.storages())

    def _clear_storages(self) -> None:
        """Parameters may go elsewhere until they are needed again."""
        if not self.source.computed or self._open is None:
            self._core.clear_storages()


def ranks_of(
    exchange: Exchange | None, rank: int | None, ranks: int | None
) -> tuple[Exchange, int, int]:
    """The exchange, this rank and how many there are: a group's, the default one's where none are
    given."""
    if exchange is None and torch.distributed.is_available():
        if torch.distributed.is_initialized():
            exchange = GroupExchange()
    if isinstance(exchange, GroupExchange):
        rank = exchange.rank if rank is None else rank
        ranks = exchange.ranks if ranks is None else ranks
    rank, ranks = rank or 0, ranks or 1
    if exchange is None:
        if ranks != 1:
            raise InvalidArgument(f"{ranks} ranks without an exchange between them")
        exchange = _alone
    return exchange, rank, ranks


def _alone(mine: bytes) -> Sequence[bytes]:
    return [mine]


def said_of(error: Exception) -> str:
    """What other ranks are told of an error, so that they can raise the same."""
    kinds = type(error).__mro__
    kind = next(one for one in kinds if one.__module__ in ("builtins", "dcr.errors"))
    tensor = error.tensor if isinstance(error, Error) else ""
    return json.dumps({"failed": str(error), "kind": kind.__name__, "tensor": tensor})


def heard_from(said: str, who: str) -> Exception:
    """Another rank's error, of its own class: one of DCR's, or the nearest of Python's."""
    try:
        words = json.loads(said)
        text, kind, tensor = f"{who}: {words['failed']}", str(words["kind"]), str(words["tensor"])
    except (ValueError, TypeError, KeyError):  # a rank of another version
        return RuntimeError(f"{who}: {said}")
    ours = getattr(dcr.errors, kind, None)
    if isinstance(ours, type) and issubclass(ours, Error):
        return ours(text, tensor)
    # Some of Python's take more than their words (those of decoders), or mean something where they
    # are raised.
    builtin = getattr(builtins, kind, None)
    if isinstance(builtin, type) and issubclass(builtin, Exception):
        if not issubclass(builtin, StopIteration | StopAsyncIteration):
            with suppress(TypeError):
                return builtin(text)
    return RuntimeError(text)


def declare(
    make: Callable[[Callable[[bool], bool]], SourceModel],
    exchange: Exchange,
    rank: int,
    ranks: int,
    **options: Any,
) -> tuple[SourceModel, _core.EmbeddedOwner]:
    """This rank's part of the model, and its owner in the core, made with these options.

    `make` is given what tells whether any rank says yes. A rank that can't have its part says so to
    the others, which would wait for it, and raise the same.
    """

    heard: list[Exception] = []

    def hear(mine: bytes) -> list[bytes]:
        of_all = list(exchange(mine))
        for other, said in enumerate(of_all):
            if said.startswith(_FAILED) and other != rank:
                words = said.removeprefix(_FAILED).decode(errors="replace")
                heard.append(heard_from(words, f"rank {other} has no owner"))
                raise heard[0]
        return of_all

    def agree(mine: bool) -> bool:
        return b"yes" in hear(b"yes" if mine else b"no")

    try:
        source = make(agree)
        core = _core.EmbeddedOwner(hear(source.declaration(rank, ranks)), rank, **options)
        hear(b"")
    except Exception as error:  # no memory, too
        if not any(error is one for one in heard):  # what all have heard need not be said again
            exchange(_FAILED + said_of(error).encode())
        raise
    return source, core


class WatchedOwner(Protocol):
    """An owner whose parameters must not change while a refit is open."""

    source: SourceModel

    @property
    def open_refit(self) -> object | None:
        """The refit, in words that say which; None while there is none."""


def watch_steps(owner: WatchedOwner) -> Callable[[], None]:
    """Refuses steps of optimizers that would change what an open refit is about."""
    reference = weakref.ref(owner)

    def before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        watched = reference()
        if watched is None or watched.open_refit is None:
            return
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if stepped & watched.source.identities():
            raise OpenRefit(f"{watched.open_refit} {type(optimizer).__name__} steps")

    handle = register_optimizer_step_pre_hook(before_step)
    remove: Callable[[], None] = handle.remove
    weakref.finalize(owner, remove)
    return remove
