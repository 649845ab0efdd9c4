#!/usr/bin/env python3
"""Searches the models of the protocol with SPIN (README.md). Standard library only.

    spec/run.py            every search; exits 1 unless each ends as expected
    spec/run.py --tiny     those that take a second each
    spec/run.py NAME…      those whose name starts with one of these

Needs spin and gcc (tools/setup.sh spec). One line for each search: what was searched, with how many
of what, the states that were stored, seconds, and what was found.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
JOBS = 2
# Of each of JOBS searches at once. What does not fit is an incomplete search, which fails.
MEMORY_MIB = 2900
SECONDS_MAX = 900
DEPTH = 100_000

# What --tiny searches.
TINY = ["tiny", "MIXED_RETRY", "staging-full", "NO_SLOT_FOR_NEXT"]

HOLDS = "holds"
VIOLATED = "violated"  # an assertion
ENDLESS = "endless"    # the formula: something that must come does not

# Sizes of refit.pml: faults are counted, and strike at any moment.
REFIT = {
    "tiny": "ATTEMPTS=2 VERSIONS=1 RESTARTS=1",
    "engines": "ENGINES=2 ATTEMPTS=2 VERSIONS=2 RESTARTS=1 SUSPICIONS=1 CLAIMS=1",
    "retries": "ENGINES=2 ATTEMPTS=3 VERSIONS=2 RESTARTS=1 CLAIMS=1",
    "ranks": "PER_ENGINE=2 ATTEMPTS=3 VERSIONS=2 RESTARTS=1 SUSPICIONS=1 CLAIMS=1",
    "torn": "OWNERS=2 ATTEMPTS=3 VERSIONS=2 RESTARTS=1 SUSPICIONS=1 CLAIMS=1",
    "threads": "OWNERS=2 ATTEMPTS=3 VERSIONS=2 SLOW_WRITES RESTARTS=1 CLAIMS=1",
    "takeovers": "ATTEMPTS=3 VERSIONS=2 RESTARTS=1 SUSPICIONS=1 CLAIMS=2",
    "owners": "OWNERS=2 ATTEMPTS=3 VERSIONS=2 RESTARTS=1 CHANGES=1 OWNER_RESTARTS=1",
    "lost": "ENGINES=2 ATTEMPTS=3 VERSIONS=2 RESTARTS=1 OWNER_RESTARTS=1",
    "changes": "ATTEMPTS=3 VERSIONS=2 CHANGES=1 RESTARTS=1",
    "candidates": "ATTEMPTS=4 VERSIONS=1 CHANGES=2 ABORTS=1",
}
REFIT_LIVENESS = {
    "ends": "LIVENESS ATTEMPTS=4 VERSIONS=2 RESTARTS=1 FAILURES=1",
    "ends-takeover": "LIVENESS ATTEMPTS=4 VERSIONS=2 CLAIMS=1 SUSPICIONS=1 FAILURES=1",
    "ends-engines": "LIVENESS ENGINES=2 ATTEMPTS=3 VERSIONS=1 RESTARTS=1 FAILURES=1",
    "ends-owners": "LIVENESS ATTEMPTS=4 VERSIONS=2 RESTARTS=1 OWNER_RESTARTS=1",
}
# Each drops one rule of the protocol; where it shows.
REFIT_MUTANTS = {
    "MIXED_RETRY": "torn",
    "OPEN_UNNOTED": "torn",
    "OTHER_CANDIDATE_NOT_DENSE": "changes",
    "WRITTEN_FORGOTTEN": "changes",
    "CANDIDATE_UNDECLARED": "owners",
    "BASELINE_UNCHECKED": "owners",
    "BASELINE_BEFORE_COMMIT": "owners",
    "COMMIT_OBSOLETE": "engines",
    "READ_WITHOUT_OBSOLETE": "engines",
    "ONE_ACKNOWLEDGMENT": "engines",
    "QUEUEING_ACKNOWLEDGED": "engines",
    "KEEP_INCARNATION": "engines",
    "PREPARE_AT_FENCE": "engines",
    "STOP_WITHOUT_FENCE": "engines",
    "OLD_PAYLOAD": "torn",
    "APPLIED_TWICE": "torn",
    "UNDRAINED": "threads",
    "SUCCESSOR_DOES_NOT_WAIT": "threads",
    "KEEP_PROOF_OVER_PREPARE": "torn",
    "KEEP_PROOF_OVER_RESTART": "engines",
    "WRITE_UNGATED": "engines",
    "OPEN_ON_COMMIT_REQUEST": "engines",
    "LABEL_BEFORE_COMMIT": "engines",
    "ONE_RECEIVER_OPENS": "ranks",
    "JOIN_WHILE_ACTIVE": "engines",
    "JOIN_ANY_VERSION": "engines",
    "ADMIT_ANY_VERSION": "engines",
    "RESTORE_FROM_CANDIDATE": "engines",
    "MIXED_FOR_NO_VERSION": "owners",
}
# Nothing goes wrong, but something never comes.
REFIT_ENDLESS_MUTANTS = {
    "CLAIM_LEAVES_ACTIVE": "ends-takeover",
    "GATE_WAITS_FOR_COORDINATOR": "ends-takeover",
    "BARRED_NEVER_LOOKS": "ends-takeover",
    "NEVER_WITHOUT_VERSION": "ends-owners",
}
# Each drops a check behind which another stands; with both gone it shows.
REFIT_PAIRS = {
    "ADDRESSEE_CHECK RESTART_FENCE": "engines",
}
REFIT_VARIANTS = {
    "BASE_CHECK": "engines",
    "RESTART_FENCE": "engines",
    "TOKEN": "engines",
    "STOP": "engines",
    "TOKEN ACTIVE_CHECK": "engines",  # with the token nobody would try
    "ADDRESSEE_CHECK": "engines",
    "RESTORE_INCARNATION": "engines",
    "RESTORE_REFUSAL": "engines",
}


STAGING = {
    "staging": "NODES=2 ATTEMPTS=2 NODE_RESTARTS=1",
    "staging-full": "NODES=2 PAYLOADS=2 SLOTS=2 ATTEMPTS=1",
    "staging-shared": "NODES=1 PER_NODE=2 PAYLOADS=2 SLOTS=3 DECODED=2",
}
STAGING_MUTANTS = {
    "STAGED_BEFORE_ENDS": "staging",
    "OPENS_BEFORE_ALL_NODES": "staging",
    "CLOSES_WITH_PREPARE": "staging",
    "REOPENS_AFTER_FAILURE": "staging",
    "NODE_KEEPS_OLD": "staging",
    "NODE_KEEPS_INCARNATION": "staging",
    "PAYLOAD_OF_ANY_ATTEMPT": "staging",
    "DONE_BEFORE_ENDS": "staging-full",
    "NO_SLOT_FOR_NEXT": "staging-full",
    "FULL_UNHEEDED": "staging-full",
    "DECODED_FOR_EACH": "staging-shared",
    "RELEASED_AFTER_FIRST": "staging-shared",
    "ORDER_OF_ARRIVAL": "staging-shared",
}


def without(checks):
    return " ".join(f"WITHOUT_{check}" for check in checks.split())


def searches():
    """All of them: name, model, macros, what is expected."""
    result = []
    for name, size in REFIT.items():
        result.append((name, "refit.pml", size, HOLDS))
    for name, size in REFIT_LIVENESS.items():
        result.append((name, "refit.pml", size, HOLDS))
    for name, size in REFIT_MUTANTS.items():
        result.append((name, "refit.pml", f"{REFIT[size]} MUTANT_{name}", VIOLATED))
    for name, size in REFIT_VARIANTS.items():
        result.append((without(name).replace(" ", "+"), "refit.pml",
                       f"{REFIT[size]} {without(name)}", HOLDS))
    for name, size in REFIT_ENDLESS_MUTANTS.items():
        result.append((name, "refit.pml", f"{REFIT_LIVENESS[size]} MUTANT_{name}", ENDLESS))
    for name, size in REFIT_PAIRS.items():
        result.append((without(name).replace(" ", "+"), "refit.pml",
                       f"{REFIT[size]} {without(name)}", VIOLATED))
    for name, size in STAGING.items():
        result.append((name, "staging.pml", size, HOLDS))
    for name, size in STAGING_MUTANTS.items():
        result.append((name, "staging.pml", f"{STAGING[size]} MUTANT_{name}", VIOLATED))
    return result


def output_of(command, folder, seconds):
    """What a program prints, and whether it ended well."""
    try:
        done = subprocess.run(command, cwd=folder, timeout=seconds, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
    except subprocess.TimeoutExpired:
        return f"more than {seconds} s", False
    return done.stdout, done.returncode == 0


def found(text):
    """What the verifier says: HOLDS, VIOLATED or ENDLESS and the detail; None: neither."""
    errors = re.search(r"errors: (\d+)", text)
    detail = re.search(r"pan:\d+: (.*?) \(at depth", text)
    detail = detail.group(1) if detail else ""
    if errors is None or "Search not completed" in text and not detail:
        return None, "the search did not end: " + " ".join(text.split())[-200:]
    if "max search depth too small" in text:
        return None, "the search was cut off: raise DEPTH"
    if errors.group(1) == "0":
        return HOLDS, ""
    if detail.startswith("assertion violated"):
        return VIOLATED, detail
    if detail.startswith("acceptance cycle"):
        return ENDLESS, detail
    return None, detail or "an error without a name"


def search(model, macros):
    """Runs one search: (found, detail, states, seconds)."""
    liveness = "LIVENESS" in macros.split()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dcr-spec-") as folder:
        shutil.copy(os.path.join(FOLDER, model), os.path.join(folder, "model.pml"))
        text, good = output_of(["spin", "-a"] + [f"-D{m}" for m in macros.split()] + ["model.pml"],
                               folder, SECONDS_MAX)
        # The generated verifier of a model with an error may compile all the same.
        if not good or re.search(r"\berror\b", text, re.IGNORECASE):
            return None, "spin: " + " ".join(text.split()), 0, 0.0
        # Liveness without fairness: of every run, and what cannot go on is a run that ends there.
        kind = [] if liveness else ["-DSAFETY"]
        text, good = output_of(["gcc", "-w", "-O2", f"-DMEMLIM={MEMORY_MIB}", "-DVECTORSZ=2048",
                                *kind, "-o", "pan", "pan.c"], folder, SECONDS_MAX)
        if not good:
            return None, "gcc: " + " ".join(text.split()), 0, 0.0
        text, good = output_of(["./pan", f"-m{DEPTH}", "-w23", "-n", *(["-a"] if liveness else [])],
                               folder, SECONDS_MAX)
    states = re.search(r"(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored", text)
    count = int(float(states.group(1))) if states else 0
    result, detail = found(text)
    return result, detail, count, time.monotonic() - begin


def size_of(macros):
    """Without what the search's name says."""
    return " ".join(m for m in macros.split() if not m.startswith(("MUTANT_", "WITHOUT_")))


def main(arguments):
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        print("spec: spin and gcc are needed: run tools/setup.sh spec", file=sys.stderr)
        return 1
    names = TINY if arguments == ["--tiny"] else arguments
    chosen = [s for s in searches() if not names or any(s[0].startswith(n) for n in names)]
    failed = 0
    print(f"{'search':<45} {'size':<76} {'states':>10} {'seconds':>8}  result")
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        runs = [(s, pool.submit(search, s[1], s[2])) for s in chosen]
        for (name, _, macros, expected), run in runs:
            result, detail, states, seconds = run.result()
            good = result == expected
            failed += not good
            outcome = result if good else f"{result or 'error'} {detail}  EXPECTED {expected}"
            print(f"{name:<45} {size_of(macros):<76} {states:>10,} {seconds:>8.1f}  {outcome}",
                  flush=True)
    print(f"spec: {len(chosen)} searches, {failed} not as expected")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
