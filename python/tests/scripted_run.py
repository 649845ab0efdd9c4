"""A stand-in for `dcr.run` that does what a test says, one step at a time, over sockets in the
run's directory: gates close and open, receivers load weights. It reaches all of vLLM's processes as
a plugin of its own; `SCRIPTED=0` leaves the run as it is."""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

Answer = Callable[..., Any]


class Endpoint:
    """Answers commands on a socket that is called as it is."""

    def __init__(self, path: Path, commands: dict[str, Answer], facts: dict[str, Any]) -> None:
        self.facts = facts
        self._left = path.with_suffix(".left")
        self._commands = {**commands, "facts": lambda: facts}
        self._listener = Listener(str(path), "AF_UNIX")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._listener.accept() as connection:
                name, args = connection.recv()
                if name == "stop":
                    return
                try:
                    connection.send((True, self._commands[name](*args)))
                except Exception as error:
                    connection.send((False, f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        self._left.touch()

    def status(self) -> Any:
        return self.facts.get("status", "scripted")


class Receiver(Endpoint):
    """Has traced one tensor, which lies where the test says."""

    def __init__(self, path: Path, commands: dict[str, Answer], facts: dict[str, Any]) -> None:
        self.traces = 0
        self._place({"tensor": [(0, 8)]})
        super().__init__(path, {**commands, "place": self._place}, facts)

    def _place(self, tensors: dict[str, list[tuple[int, int]]]) -> None:
        """Each has 8 elements, of which this rank takes so many, from these on."""
        self._tensors = tensors
        self.traces += 1

    def placements(self) -> dict[str, Any]:
        from dcr.torch.placed import PlacedPart, Placement

        return {
            name: Placement(
                "traced" if parts else "skip",
                "",
                2 * sum(size for _, size in parts),
                tuple(PlacedPart("p", at, 0, (size,), (1,), (1,)) for at, size in parts),
                elements=8,
            )
            for name, parts in self._tensors.items()
        }


class Gate(Endpoint):
    refusal = ""
    closing = False

    def status(self) -> tuple[bool, str]:
        return False, "no refit yet"


def addressed(directory: str | os.PathLike[str], name: str) -> Path:
    return Path(directory) / f"{name}.socket"


class Run:
    """What `dcr.run.Run` is to dcr.vllm."""

    def __init__(self, path: str) -> None:
        self._path = path

    def gate(
        self,
        engine: str,
        *,
        receivers: Sequence[str],
        agent: Any,
        fail_overdue: bool,
        engine_instance: int,
    ) -> Gate:
        commands = {"close": agent.close, "open": agent.open, "refused": agent.refused}
        facts = {
            "receivers": list(receivers),
            "fail_overdue": fail_overdue,
            "engine_instance": engine_instance,
            "pid": os.getpid(),
        }
        return Gate(addressed(self._path, "gate-" + engine), commands, facts)

    def receiver(
        self,
        name: str,
        *,
        engine: str,
        engine_instance: int,
        model: Any,
        load_weights: Answer,
        never_loaded: Sequence[str],
        base: str | None,
        before_prewarm: Answer,
        after_apply: Answer | None,
    ) -> Receiver:
        def load(file: str) -> None:
            from safetensors.torch import load_file

            load_weights(iter(load_file(file).items()))
            if after_apply is not None:
                after_apply()

        facts = {
            "engine": engine,
            "engine_instance": engine_instance,
            "never_loaded": list(never_loaded),
            "base": base,
        }
        commands = {"load": load, "prewarm": before_prewarm}
        return Receiver(addressed(self._path, name), commands, facts)


def _connected(path: Path) -> Any:
    until = time.monotonic() + 60
    while True:
        try:
            return Client(str(path), "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):  # it has no name yet, or only that
            assert time.monotonic() < until, f"there is no {path.name}"
            time.sleep(0.01)


def tell(directory: str | os.PathLike[str], name: str, command: str, *args: Any) -> Any:
    """Has an endpoint do something, once it is there; what it raises is a RuntimeError here."""
    with _connected(addressed(directory, name)) as connection:
        connection.send((command, args))
        done, answer = connection.recv()
    if not done:
        raise RuntimeError(answer)
    return answer


def register() -> None:
    """The plugin: `dcr.run` is this, and the tests' model class is known without a look at it."""
    from vllm_ranks import register as register_model

    if os.environ.get("SCRIPTED") != "0":
        sys.modules["dcr.run"] = sys.modules[__name__]
    register_model("Qwen3ForCausalLM", "qwen3")
    register_model("Qwen3MoeForCausalLM", "qwen3_moe")
