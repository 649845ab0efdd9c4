"""The training run: every arm, compared bit for bit, with a report and a picture of it.

    build/venv/bin/python python/training/run.py full

docs/TRAINING_RUN.md says what it shows. Exit code 0 only if nothing diverged and, where a run is
judged, the model learned.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import workers
from arm import Arm, Divergence, Run
from determinism import check
from faults import Kills
from plot import draw
from report import arm_as_data, arm_line, report_of, write
from run_processes import end
from settings import SIZES, Settings
from warm_start import make
from weights import DenseWeights
from weights_dcr import RefitWeights

KINDS = {False: "synchronous", True: "asynchronous"}


def run_seed(settings: Settings, seed: int, start: Path, directory: Path) -> dict[str, Any]:
    """All arms of a seed, as the report has them.

    Raises:
        Divergence: an arm is not as its dense one, or an engine not as the others.
    """
    arms = []
    for asynchronous in settings.asynchronous:
        dense = Arm(asynchronous, refits=False)
        place = _new(directory / f"{seed}-dense-{KINDS[asynchronous]}")
        Run(settings, seed, start, place, DenseWeights(place), dense).run()
        place = _new(directory / f"{seed}-dcr-{KINDS[asynchronous]}")
        # Its sockets want a short path.
        run = Path(tempfile.mkdtemp(prefix="dcr-training-"))
        way = RefitWeights(run, _new(place / "applied"), asynchronous)
        kills = Kills(settings, f"{seed}, {KINDS[asynchronous]}", way.run, way.applied)
        refits = Arm(asynchronous, refits=True, faults=kills)
        try:
            Run(settings, seed, start, place, way, refits, dense).run()
        except BaseException:
            print(f"kept: {place}, {run}", file=sys.stderr)
            raise
        end(run)
        for arm in (dense, refits):
            arms.append(arm_as_data(arm, settings.epoch))
            print(arm_line(arms[-1]), flush=True)
    return {"seed": seed, "arms": arms}


def _new(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def picture_of(report: dict[str, Any]) -> str:
    """Of the first seed."""
    arms = report["seeds"][0]["arms"]
    columns = []
    for asynchronous, name in KINDS.items():
        of_kind = [arm for arm in arms if arm["asynchronous"] == asynchronous]
        if of_kind:
            columns.append((name, of_kind))
    title = (
        f"GRPO, {report['settings']['steps']} steps: what a step changes, what it earns, "
        "and how far the policies are apart"
    )
    return draw(columns, title)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run.py")
    parser.add_argument("size", choices=sorted(SIZES))
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 1 on")
    parser.add_argument("--directory", type=Path, default=Path("build/training"))
    parser.add_argument("--report", type=Path, help="by default in the directory")
    parser.add_argument("--picture", type=Path, help="by default in the directory")
    options = parser.parse_args(arguments)
    settings = SIZES[options.size]
    directory = options.directory.resolve()
    report_file = options.report or directory / f"{options.size}.json"
    directory.mkdir(parents=True, exist_ok=True)
    workers.prepare(directory / "server.log")
    start = make(settings.start, directory)
    seeds: list[dict[str, Any]] = []
    divergence = ""
    try:
        for seed in range(1, options.seeds + 1):
            compared = check(settings, seed, start, _new(directory / f"{seed}-check"))
            print(f"seed {seed}: {compared} responses, equal in any batch and engine", flush=True)
            seeds.append(run_seed(settings, seed, start, directory))
    except Divergence as error:
        divergence = str(error)
    report = report_of(settings, start, seeds, divergence)
    write(report, report_file)
    if seeds:
        picture = options.picture or directory / f"{options.size}.svg"
        picture.write_text(picture_of(report))
    for line in report["wrong"]:
        print(f"failed: {line}", file=sys.stderr)
    print(f"{report_file}: {'failed' if report['wrong'] else 'all equal'}")
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
