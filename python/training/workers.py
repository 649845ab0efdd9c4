"""Processes that do what they are told over a pipe. They are forked from a server that has
everything imported, so that one starts in seconds."""

import os
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# One compute thread for each process: sums are then made in one order, whatever else is in a batch.
# vLLM's engine, worker and model live in the process itself.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_CI_ENV": "1",  # no runs to warm up
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


class Died(Exception):
    """A worker's process ended before it answered."""


class Failed(Exception):
    """What a worker was told to do raised."""


def prepare(log: Path) -> None:
    """Starts the server that workers are forked from. What it says goes to `log`, with what is said
    of semaphores that workers left which were killed."""
    os.environ.update(_ENVIRONMENT)
    here = str(Path(__file__).parent)
    path = os.environ.get("PYTHONPATH", "")
    if here not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, path)))
    get_context("forkserver").set_forkserver_preload(["preload"])
    errors = os.dup(2)
    with open(log, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
        try:
            forkserver.ensure_running()
        finally:
            os.dup2(errors, 2)
            os.close(errors)


class Worker:
    """One such process; `make(*arguments)`, in it, gives the object whose methods are called."""

    def __init__(
        self,
        name: str,
        log: Path,
        make: Callable[..., Any],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = get_context("forkserver")
        self.name, self.log = name, log
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_work, args=(other, log, dict(environment or {}), make, arguments), name=name
        )
        self._process.start()
        other.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: str, *arguments: Any) -> None:
        """Tells it to do something; answers come in the order of calls."""
        try:
            self._pipe.send((method, arguments))
        except OSError as error:
            raise Died(f"{self.name}: {self.log}") from error

    def answer(self) -> Any:
        """Waits for the answer to the first call that is open."""
        try:
            good, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise Died(f"{self.name}: {self.log}") from error
        if not good:
            raise Failed(f"{self.name}:\n{value}")
        return value

    def ask(self, method: str, *arguments: Any) -> Any:
        """A call and its answer."""
        self.call(method, *arguments)
        return self.answer()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()

    def hang_up(self) -> None:
        """There is nothing more to do: the process ends when it has noticed."""
        self._pipe.close()

    def close(self) -> None:
        """Waits for the process to end; for some seconds, then it is ended."""
        self.hang_up()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _work(
    pipe: Connection,
    log: Path,
    environment: dict[str, str],
    make: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(environment)
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        import_module("preload")  # at once, or it says why the server could not do it
        made = make(*arguments)
        while True:
            try:
                method, values = pipe.recv()
            except EOFError:
                break
            pipe.send((True, getattr(made, method)(*values)))
        if hasattr(made, "close"):
            made.close()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        raise
