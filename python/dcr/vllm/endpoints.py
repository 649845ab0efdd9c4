"""The endpoints of a run, as vLLM's processes use them: what they are asked for, and where they
come from."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol


class GateAgent(Protocol):
    """What a run's gate makes of an engine. Calls come one at a time, from the gate's thread."""

    def close(self, fail_requests: bool) -> None:
        """Returns when no forward pass runs and none can begin."""

    def open(self, label: str) -> None:
        """Label, caches, gate. What it raises is why the gate stays closed."""


class Gate(Protocol):
    """An engine's gate in a run, with a thread of its own."""

    def status(self) -> tuple[bool, str]:
        """Whether it is open, and if not, why."""

    def close(self) -> None:
        """Ends it."""


class Receiver(Protocol):
    """A worker's receiver in a run, with a thread of its own."""

    def status(self) -> Any:
        """How it is."""

    def close(self) -> None:
        """Ends it."""


class Run(Protocol):
    """A run that this process belongs to."""

    def gate(self, engine: str, *, receivers: Sequence[str], agent: GateAgent) -> Gate:
        """Starts the gate of an engine, and does not wait for the agent."""

    def receiver(
        self,
        name: str,
        *,
        engine: str,
        model: Any,
        load_weights: Callable[[Any], object],
        never_loaded: Sequence[str],
        before_prewarm: Callable[[], None],
        after_apply: Callable[[], None] | None,
    ) -> Receiver:
        """Starts a receiver: it waits for the trainer, traces and joins."""


def open_run(path: str) -> Run:
    """Opens or creates the run's directory."""
    run: Run = import_module("dcr.run").Run(path)
    return run
