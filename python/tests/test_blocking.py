"""Calls that take long: signals, progress, threads, forks."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dcr
import numpy as np
import pytest
from interrupts import interrupted_after


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Whatever starts the tests may ignore SIGINT, as shells do for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def long_state() -> dict[str, Any]:
    """Tensors that take a minute to read and no memory: all are the same zeros."""
    zeros = np.zeros(1 << 28, np.uint8)
    return {f"tensor.{number:04}": zeros for number in range(800)}


def test_ctrl_c_ends_a_call_at_once(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    state = long_state()
    seen: list[dcr.Progress] = []
    calls: dict[str, Callable[[], object]] = {
        "verify": lambda: dcr.verify(state, state, progress=seen.append),
        "diff": lambda: dcr.diff(state, state, tmp_path / "d", progress=seen.append),
    }
    for name, call in calls.items():
        seen.clear()
        latency = interrupted_after(0.3, call, lambda: seen)
        print(f"{name}: {latency * 1000:.0f} ms")
        # Far from its end, however slow the machine is.
        assert seen[-1].stage == name and seen[-1].bytes_done < seen[-1].bytes_total / 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert list(tmp_path.iterdir()) == []
    assert dcr.verify({"a": state["tensor.0000"][:9]}, {"a": np.zeros(9, np.uint8)}).differing == 0


def test_ctrl_c_leaves_arrays_as_they_are(tmp_path: Path) -> None:
    """The base is checked, for long, before the first write."""
    old = {f"t{number:04}": np.zeros(4, np.uint8) for number in range(3)}
    new = {**old, "t0000": np.ones(4, np.uint8)}
    dcr.diff(old, new, tmp_path / "d")

    def interrupt(progress: dcr.Progress) -> None:
        if progress.stage == "apply":
            signal.raise_signal(signal.SIGINT)

    # Raised in the callback, so in the middle of the call; whether the work was at its end already
    # is chance, and the arrays are whole either way.
    with pytest.raises(KeyboardInterrupt):
        dcr.apply_in_place(tmp_path / "d", old, progress=interrupt)
    assert old["t0000"].tolist() in ([0, 0, 0, 0], [1, 1, 1, 1])
    assert old["t0001"].tolist() == [0, 0, 0, 0]


def test_a_process_ends_by_ctrl_c() -> None:
    code = (
        "import signal\n"
        "import numpy as np, dcr\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "zeros = np.zeros(1 << 28, np.uint8)\n"
        "state = {str(n): zeros for n in range(800)}\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    dcr.verify(state, state)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60)[0] == "interrupted\n"
        assert child.returncode == 0


def test_progress_comes_on_the_calling_thread() -> None:
    state = {"a": np.zeros(1 << 26, np.uint8), "b": np.zeros(5, np.uint8)}
    seen: list[dcr.Progress] = []
    threads = set()

    def progress(report: dcr.Progress) -> None:
        seen.append(report)
        threads.add(threading.get_ident())

    total = dcr.verify(state, state, progress=progress).bytes
    assert threads == {threading.get_ident()}
    assert {report.stage for report in seen} == {"verify"}
    done = [report.bytes_done for report in seen]
    assert done == sorted(done) and done[-1] == total == seen[-1].bytes_total
    assert repr(seen[-1]) == f"Progress(stage='verify', bytes_done={total}, bytes_total={total})"


def test_what_progress_raises_ends_the_call(tmp_path: Path) -> None:
    state = long_state()

    def progress(report: dcr.Progress) -> None:
        raise LookupError(report.stage)

    with pytest.raises(LookupError, match="diff"):
        dcr.diff(state, state, tmp_path / "d", progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_other_threads_run_meanwhile() -> None:
    """The GIL is free: a thread counts while the call, which is long, holds this one."""
    state = {name: np.zeros(1 << 28, np.uint8) for name in "ab"}
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted[0]
        dcr.verify(state, state, threads=1)
        assert counted[0] > before + 100
    finally:
        stop.set()
        thread.join()


def test_import_starts_no_thread_and_no_handler() -> None:
    code = (
        "import signal\n"
        "before = [signal.getsignal(s) for s in signal.valid_signals()]\n"
        "import dcr, dcr.run, dcr._core\n"
        "assert before == [signal.getsignal(s) for s in signal.valid_signals()]\n"
        "status = open('/proc/self/status').read()\n"
        "print(status[status.index('Threads:'):].split()[1])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"


def test_imports_of_adapters_start_no_thread_and_no_handler() -> None:
    """What PyTorch starts is PyTorch's: it is imported in between."""
    code = (
        "import os, signal, sys\n"
        "def state():\n"
        "    handlers = [signal.getsignal(s) for s in signal.valid_signals()]\n"
        "    return handlers, os.listdir('/proc/self/task')\n"
        "before = state()\n"
        "import dcr.vllm, dcr.vllm.plugin\n"
        "assert state() == before\n"
        "try:\n"
        "    import torch, torch.distributed.tensor\n"
        "except ImportError:\n"
        "    sys.exit()\n"
        "before = state()\n"
        "import dcr.torch, dcr.sglang, dcr.vllm.gate, dcr.vllm.inprocess, dcr.vllm.cpu_live\n"
        "assert state() == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_calls_leave_no_thread_and_work_in_a_forked_child(tmp_path: Path) -> None:
    state = {"a": np.arange(1000)}

    def threads() -> int:
        """Those that stay: one that has ended may be seen for a moment."""
        counts = []
        for _ in range(20):
            counts.append(len(os.listdir("/proc/self/task")))
            time.sleep(0.01)
        return min(counts)

    before = threads()
    dcr.verify(state, state, threads=3)
    assert threads() == before
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dcr.diff(state, {"a": np.zeros(1000, np.int64)}, tmp_path / "d", threads=3)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not dcr.apply(tmp_path / "d", state)["a"].any()
