"""Parts of a run for its tests: models, engines of one rank, here and in their own processes."""

import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dcr.run
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

WAIT_SECONDS = 60.0


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

    It prints the digest of its weights whenever its gate opens.
    """

    def __init__(self, directory: Path, name: str, kill: str = "") -> None:
        environment = {**os.environ, "DCR_KILL": kill, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(directory), name],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def next_opened(self) -> tuple[str, str]:
        """Label and digest of what it opened with next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the engine ended with {self.process.poll()}"
        label, opened = line.split()
        return label, opened

    def wait_for(self, label: str) -> str:
        while True:
            found, opened = self.next_opened()
            if found == label:
                return opened

    def end(self) -> int:
        """Its exit code, when it has ended; it is asked to, if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


def serve(directory: str, name: str) -> None:
    """What an EngineProcess runs."""
    model = Net(99)

    class Agent(LabelAgent):
        def open(self, label: str) -> None:
            super().open(label)
            print(label, digest(model), flush=True)

    run = dcr.run.Run(directory)
    agent = Agent()
    run.gate(name, receivers=[f"{name}.0"], agent=agent)
    run.receiver(f"{name}.0", engine=name, model=model)
    signal.sigwait([signal.SIGTERM])


def train_without_the_gil(directory: str) -> None:
    """A trainer whose second refit begins just before the GIL is held for good."""
    import dcr.torch

    model = Net(2)
    owner = dcr.torch.Owner(model, run=directory)
    owner.refit("a")
    step(model, 1)
    print(digest(model), flush=True)
    owner.refit("b", wait=False)
    ctypes.PyDLL(None).sleep(600)  # a call that does not let it go
    print("let go", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        train_without_the_gil(sys.argv[1])
        sys.exit()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    serve(sys.argv[1], sys.argv[2])
