"""The processes of a run that nobody starts by hand: its coordinators and its node's agent."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

END_SECONDS = 20.0


def processes(run: Path) -> dict[str, int]:
    """By name, those that are alive."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_text().split("\0")
        except OSError:  # it has ended
            continue
        if len(words) > 5 and words[2:5] == ["--run", str(run), "--name"]:
            found[words[5]] = int(pid)
    return found


def kill_leader(run: Path) -> str:
    """Kills the coordinator that leads, whose name it returns. The other one takes over, and
    members start the one that is missing."""
    program = Path(sys.executable).with_name("dcr")
    said = subprocess.run(
        [program, "status", "--run", run, "--json"], capture_output=True, text=True, check=True
    )
    leader: str = json.loads(said.stdout)["leader"]
    os.kill(processes(run)[leader], signal.SIGKILL)
    return leader


def end(run: Path) -> None:
    """Ends them, when all members have left, rather than wait until they do by themselves; and
    removes the run."""
    until = time.monotonic() + END_SECONDS
    while alive := processes(run):
        for pid in alive.values():
            os.kill(pid, signal.SIGTERM if time.monotonic() < until else signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(run)
