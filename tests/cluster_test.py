#!/usr/bin/env python3
"""Runs whole clusters of real processes by `dcr local`, and kills and stops parts of them.

    tests/cluster_test.py PATH_OF_DCR [unittest arguments]

CLUSTER_SEED picks the random kills of one test, CLUSTER_REFITS says how many refits it has; a
failure prints the seed. `make cluster` runs it long, with a seed of its own.
"""

import json
import os
import random
import subprocess
import sys
import unittest

import cli_test
from cli_test import DcrTest, run, some_tensors, step, write_checkpoint
from refit_cli_test import documented_keys

KILLS = {
    "coordinator": ["prepare", "open_apply", "flush", "commit", "stop_and_wait", "cleanup"],
    "owner": ["build_complete", "bitdiff", "encode", "send", "commit"],
    "node": ["receive", "decode", "hand_over"],
    "receiver": ["prepare", "ingest", "apply", "flush", "commit"],
}


class ClusterHarness(DcrTest):
    def setUp(self):
        super().setUp()
        self.versions = []
        self.tensors = []
        tensors = some_tensors(self.rng)
        for number in range(4):
            path = self.path(f"step{number}")
            write_checkpoint(path, tensors, 2, {"config.json": b"{}"})
            self.versions.append(path)
            self.tensors.append(tensors)
            tensors = step(self.rng, tensors)

    def local(self, versions, *options):
        arguments = ["local", "--from", versions[0]]
        for version in versions[1:]:
            arguments += ["--to", version]
        directory = self.path(f"run{len(self.listing())}")
        ran = run(*arguments, "--directory", directory, "--json", *options)
        if ran.returncode != 0:
            logs = [name for name in sorted(os.listdir(directory)) if name.endswith(".log")]
            for name in logs:
                with open(os.path.join(directory, name)) as file:
                    print(f"== {name}\n{file.read()}", file=sys.stderr)
        self.assertEqual(ran.returncode, 0, f"{ran.args}\n{ran.stdout}{ran.stderr}")
        told = json.loads(ran.stdout)
        self.assertEqual(told["committed_version"], len(versions) - 1)
        self.assertEqual(told["refits"], len(versions) - 1)
        self.assertGreater(told["bytes_compared"], 0)
        self.assertEqual(told["bytes_differing"], 0)
        self.assertGreater(told["reads"], 0)
        self.assertEqual(told["reads_different"], 0)
        self.assertEqual(told["not_reached"], [])
        return told


class ClusterTest(ClusterHarness):
    def test_refits_through_versions(self):
        for mode in ("sync", "async"):
            with self.subTest(mode=mode):
                told = self.local(self.versions, "--owners", "2", "--nodes", "2", "--mode", mode)
                self.assertEqual((told["attempts"], told["kills"], told["receivers"]), (3, 0, 4))
                self.assertEqual(set(told), documented_keys("local"))
                stages = {span["stage"] for span in told["spans"]}
                self.assertLessEqual({"scan", "submit", "receive", "decode", "apply"}, stages)

    def test_kills_of_every_role(self):
        for point in ("receiver@apply", "coordinator@commit", "owner@send", "node@receive"):
            with self.subTest(point=point):
                told = self.local(self.versions[:3], "--owners", "2", "--nodes", "2",
                                  "--kill", point)
                self.assertEqual(told["kills"], 1)

    def test_a_stopped_process(self):
        told = self.local(self.versions[:2], "--owners", "2", "--nodes", "2",
                          "--kill", "pause:receiver.1@apply,1")
        self.assertEqual(told["pauses"], 1)

    def test_no_change(self):
        same = [self.versions[0], self.versions[0]]
        self.assertEqual(self.local(same, "--owners", "2", "--nodes", "1")["payload_bytes"], 0)

    def test_random_kills(self):
        seed = int(os.environ.get("CLUSTER_SEED", "1"))
        refits = int(os.environ.get("CLUSTER_REFITS", "6"))
        chosen = random.Random(seed)
        versions = [self.versions[i % len(self.versions)] for i in range(refits + 1)]
        kills = []
        for role, operations in KILLS.items():
            for _ in range(refits // 3):
                point = f"{role}@{chosen.choice(operations)}:{chosen.randint(1, 3)}"
                kills += ["--kill", ("pause:" if chosen.random() < 0.3 else "") + point]
        arguments = ["local", "--from", versions[0], "--owners", "2", "--nodes", "2", "--json"]
        for version in versions[1:]:
            arguments += ["--to", version]
        ran = subprocess.run(
            [cli_test.DCR, *arguments, *kills],
            capture_output=True,
            text=True,
            timeout=120 + 60 * refits,
            check=False,
        )
        self.assertEqual(ran.returncode, 0, f"CLUSTER_SEED={seed} {kills}\n{ran.stderr}")
        told = json.loads(ran.stdout)
        # One more where an engine had nowhere to restore from before.
        self.assertEqual(told["committed_version"], told["refits"])
        self.assertGreaterEqual(told["refits"], refits)
        self.assertEqual((told["bytes_differing"], told["reads_different"]), (0, 0), seed)

    def test_errors(self):
        bad = run("local", "--from", self.versions[0], "--to", self.versions[1],
                  "--kill", "receiver@aply")
        self.assertEqual(bad.returncode, 2)
        self.assertIn("did you mean apply?", bad.stderr)
        none = run("status", "--config", self.path("none.toml"))
        self.assertEqual(none.returncode, 3)
        self.assertIn("none.toml", none.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} PATH_OF_DCR [unittest arguments]")
    cli_test.DCR = os.path.abspath(sys.argv.pop(1))
    unittest.main()
