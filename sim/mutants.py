#!/usr/bin/env python3
"""Runs dcr-sim under its mutants, each a fault that is built in on purpose. Standard library only.

    sim/mutants.py PROGRAM [--seeds N] [NAME…]

PROGRAM is dcr-sim of preset sim. Each mutant of these names, or every one, runs seed by seed until
something wrong is seen, N seeds at most (20,000 unless said otherwise). One line for each: after
how many seeds it was caught, and what was seen. Exits 1 if one is not caught, if the same seeds
show something wrong where no mutant is chosen, or if the table of docs/TESTING.md is not what the
program lists.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "TESTING.md")
JOBS = os.cpu_count() or 1
SECONDS_MAX = 1200
SEEDS = 20_000


def mutants_of(program):
    """What the program lists: {name: what it breaks}."""
    listed = subprocess.run([program, "--mutants"], check=True, capture_output=True, text=True)
    return dict(line.split("\t") for line in listed.stdout.splitlines())


def check_document(mutants):
    """What the document's table says otherwise."""
    with open(DOCUMENT, encoding="utf-8") as document:
        section = document.read().partition("### Mutants")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    for name in sorted(set(mutants) | set(rows)):
        if mutants.get(name) != rows.get(name):
            yield f"docs/TESTING.md: mutant {name}: the table has {rows.get(name)}, " \
                  f"mutant_list.h has {mutants.get(name)}"


def run(program, name, seeds):
    """Runs under a mutant, or none: the seed and what was seen there, or None."""
    environment = dict(os.environ, DCR_MUTANT=name)
    command = [program, "--runs", str(seeds), "--jobs", "1", "--stop", "--trace", "0"]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True,
                          timeout=SECONDS_MAX, check=False)
    seconds = time.monotonic() - began
    seen = re.search(r"^dcr-sim: seed (\d+): (.*)$", done.stderr, re.MULTILINE)
    # An assertion of ours that fails has seen it too.
    died = re.search(r"^dcr-sim: in the run of seed (\d+)$", done.stderr, re.MULTILINE)
    if seen:
        return int(seen[1]), seen[2], seconds
    if died:
        return int(died[1]), done.stderr.splitlines()[0], seconds
    if done.returncode != 0:
        return None, f"exit status {done.returncode}: {done.stderr.strip()}", seconds
    return None, "nothing was seen", seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_intermixed_args()
    mutants = mutants_of(arguments.program)
    unknown = set(arguments.names) - set(mutants)
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    faults = list(check_document(mutants))
    names = arguments.names or list(mutants)
    most = 1
    with concurrent.futures.ThreadPoolExecutor(JOBS) as executor:
        runs = [executor.submit(run, arguments.program, name, arguments.seeds) for name in names]
        for name, future in zip(names, runs):
            seed, what, seconds = future.result()
            after = f"after {seed:6} seeds" if seed else "NOT caught        "
            print(f"{name:32} {after} {seconds:6.1f} s  {what[:120]}", flush=True)
            if seed is None:
                faults.append(f"mutant {name} is not caught: {what}")
            most = max(most, seed or arguments.seeds)
    seed, what, seconds = run(arguments.program, "", most)
    print(f"{'without a mutant':32} {most:12} seeds {seconds:6.1f} s  {what[:120]}")
    if seed is not None or what != "nothing was seen":
        faults.append(f"without a mutant: seed {seed}: {what}")
    for fault in faults:
        print(fault, file=sys.stderr)
    caught = len(names) - sum(1 for fault in faults if fault.startswith("mutant "))
    print(f"{caught} of {len(names)} mutants are caught")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
