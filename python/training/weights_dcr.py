"""Refits: what changed goes to engines, and nothing else. `publish` is a refit of the trainer's
owners; `adopt` lets an engine's gate act until it is open at a version."""

import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from faults import applied_file
from settings import ENGINES
from weights import WAIT_SECONDS, EngineWeights, TrainerWeights

DIE_SECONDS = 30.0  # that an engine which is to die waits for another to have applied


@dataclass(frozen=True)
class RefitWeights:
    """A run's directory, and where engines note what they have applied."""

    run: Path
    applied: Path
    asynchronous: bool

    def trainer(self, model: torch.nn.Module, rank: int) -> TrainerWeights:
        return _Owner(self, model)

    def engine(self, place: int) -> EngineWeights:
        return _Receiver(self, place)


def _log() -> None:
    """What the run's endpoints do, into the worker's log."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("dcr").setLevel(logging.INFO)


class _Owner:
    def __init__(self, way: RefitWeights, model: torch.nn.Module) -> None:
        from dcr.torch import Owner

        _log()
        self._asynchronous = way.asynchronous
        self._owner: Any = Owner(model, run=way.run, dtype=torch.bfloat16)

    def publish(self, label: str) -> Mapping[str, Any]:
        result = self._owner.refit(label, asynchronous=self._asynchronous)
        return {
            "attempts": result.attempts,
            "mode": result.mode,
            "changed": result.changed_elements,
            "payload_bytes": result.payload_bytes,
            "refit_seconds": round(result.seconds, 4),
        }

    def close(self) -> None:
        self._owner.close()


class _Receiver:
    def __init__(self, way: RefitWeights, place: int) -> None:
        self._way = way
        self._place = place
        self._label = ""
        self._times = 0  # that payloads of it have been applied
        self._doomed = False

    def prepare(self) -> Mapping[str, Any]:
        from dcr.vllm import cpu_live

        _log()
        # What the adapter does on the receiver's thread when payloads are all applied.
        self._repack = cpu_live.repack
        cpu_live.repack = self._applied
        dcr = {"run": str(self._way.run), "live_weights": True, "engine": f"engine-{self._place}"}
        return {
            "weight_transfer_config": {"backend": "dcr"},
            "additional_config": {"dcr": dcr},
        }

    def adopt(self, llm: Any, label: str) -> None:
        import dcr.vllm

        self._label, self._times = label, 0
        dcr.vllm.sync(llm, label=label, timeout=WAIT_SECONDS)

    def doom(self) -> None:
        """The next version kills the process once it, and another engine, have applied it."""
        self._doomed = True

    def close(self) -> None:
        pass

    def _applied(self, model: torch.nn.Module) -> None:
        self._repack(model)
        self._times += 1
        applied_file(self._way.applied, self._label, self._place, self._times).touch()
        if self._doomed:
            others = [place for place in range(ENGINES) if place != self._place]
            until = time.monotonic() + DIE_SECONDS
            while not any(
                applied_file(self._way.applied, self._label, place, 1).exists() for place in others
            ):
                if time.monotonic() > until:
                    raise RuntimeError("no other engine applied what this one has")
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
