"""Parts of a run for its tests: models, engines of one rank, here and in their own processes."""

import ctypes
import hashlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dcr.run
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

WAIT_SECONDS = 60.0
# To import PyTorch takes a process longer than most tests.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["torch.distributed.fsdp", "dcr.torch"])


class Net(torch.nn.Module):
    """Floats of two widths and a buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(96, 64, dtype=torch.bfloat16)
        self.second = torch.nn.Linear(64, 33, bias=False)
        self.register_buffer("steps", torch.tensor([seed, -seed]))


def step(model: torch.nn.Module, seed: int) -> None:
    """Changes a part of every tensor, and puts a NaN and a negative zero somewhere."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            flat = tensor.view(-1)
            chosen = torch.randperm(flat.numel(), generator=generator)[: flat.numel() // 20 + 1]
            flat[chosen] = (flat[chosen] * 1.01 + 1).to(flat.dtype)
            if tensor.is_floating_point():
                flat[chosen[0]] = float("nan") if seed % 2 else -0.0


def digest(model: torch.nn.Module) -> str:
    """Of all bits."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def wait_until(true: Callable[[], bool], state: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, state()
        time.sleep(0.01)


class LabelAgent:
    """An engine without requests: only its label."""

    def __init__(self) -> None:
        self.label: str | None = None
        self.opened: list[str] = []

    def close(self, fail_requests: bool) -> None:
        self.label = None

    def open(self, label: str) -> None:
        self.label = label
        self.opened.append(label)


class Engine:
    """A gate and a receiver over one module."""

    def __init__(self, run: dcr.run.Run, name: str, model: torch.nn.Module) -> None:
        self.model = model
        self.agent = LabelAgent()
        self.gate = run.gate(name, receivers=[f"{name}.0"], agent=self.agent)
        self.receiver = run.receiver(f"{name}.0", engine=name, model=model)

    def wait_for(self, label: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.agent.label != label:
            assert time.monotonic() < deadline, (self.gate.status(), self.receiver.status())
            time.sleep(0.01)

    def close(self) -> None:
        self.gate.close()
        self.receiver.close()


def processes(directory: Path, name: str = "") -> list[int]:
    """Those of the run, or that have this name, by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(directory).encode() in words and (not name or name.encode() in words):
            found.append(int(entry.name))
    return found


@contextmanager
def run_directory(path: Path) -> Iterator[Path]:
    """A run directory whose processes end with the test; their logs are shown if it fails."""
    try:
        yield path
    except BaseException:
        for log in sorted((path / "logs").glob("*")):
            print(f"== {log.name}\n{log.read_text()}", file=sys.stderr)
        raise
    finally:
        dcr.run.Run(path).close()
        for process in processes(path):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


class EngineProcess:
    """An engine in a process of its own, which can be killed at a point of the protocol.

    It says the digest of its weights whenever its gate opens.
    """

    def __init__(self, directory: Path, name: str, kill: str = "") -> None:
        self.process, self._said = forked(serve, str(directory), name, kill)

    def next_opened(self) -> tuple[str, str]:
        """Label and digest of what it opened with next."""
        try:
            label, opened = self._said.recv()
        except EOFError:
            self.process.join(WAIT_SECONDS)
            raise AssertionError(f"the engine ended with {self.process.exitcode}") from None
        return label, opened

    def wait_for(self, label: str) -> str:
        while True:
            found, opened = self.next_opened()
            if found == label:
                return opened

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def end(self) -> int | None:
        """Its exit code, when it has ended; it is asked to, if it still runs."""
        self.process.terminate()
        self.process.join(WAIT_SECONDS)
        code: int | None = self.process.exitcode
        return code


def forked(function: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
    """A process that calls the function with the arguments and a pipe's end; the pipe's other."""
    said, say = FORKSERVER.Pipe(duplex=False)
    process = FORKSERVER.Process(target=function, args=(*args, say), daemon=True)
    process.start()
    say.close()
    return process, said


def serve(directory: str, name: str, kill: str, said: Connection) -> None:
    """What an EngineProcess runs."""
    os.environ["DCR_KILL"] = kill
    torch.set_num_threads(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    model = Net(99)

    class Agent(LabelAgent):
        def open(self, label: str) -> None:
            super().open(label)
            said.send((label, digest(model)))

    run = dcr.run.Run(directory)
    agent = Agent()
    run.gate(name, receivers=[f"{name}.0"], agent=agent)
    run.receiver(f"{name}.0", engine=name, model=model)
    signal.sigwait([signal.SIGTERM])
    run.close()


def train_without_the_gil(directory: str, said: Connection) -> None:
    """A trainer whose second refit begins just before the GIL is held for good."""
    import dcr.torch

    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    owner.refit("a")
    step(model, 1)
    said.send(digest(model))
    owner.refit("b", wait=False)
    ctypes.PyDLL(None).sleep(600)  # a call that does not let it go
    said.send("let go")
