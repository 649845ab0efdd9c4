#!/usr/bin/env python3
"""Clusters of real processes in unusual transitions, each a case of docs/TESTING.md.

    tests/cluster_cases_test.py PATH_OF_DCR [unittest arguments]

CLUSTER_SEED picks the random kills of one test, CLUSTER_REFITS says how many refits it has.
Every byte of every receiver is compared with a dense load after every refit, as `dcr local` does.
"""

import json
import os
import random
import subprocess
import sys
import unittest

import cli_test
from cli_test import WIDTH, write_checkpoint
from cluster_test import KILLS, ClusterHarness

MEBIBYTE = 1 << 20


class ClusterCasesTest(ClusterHarness):
    def checkpoint(self, name, tensors):
        path = self.path(name)
        write_checkpoint(path, tensors, 2, {"config.json": b"{}"})
        return path

    def change(self, tensors, words):
        """`tensors` with other bits in the words that `words` counts of each tensor."""
        changed = {}
        for name, (dtype, shape, data) in tensors.items():
            width = WIDTH[dtype]
            bits = bytearray(data)
            for word in words(name, len(data) // width):
                bits[word * width] ^= 0x5A
            changed[name] = (dtype, shape, bytes(bits))
        return changed

    def both(self, versions):
        """The refit in both modes, which send the same."""
        told = [self.local(versions, "--owners", "2", "--nodes", "1", "--mode", mode)
                for mode in ("sync", "async")]
        self.assertEqual(told[0]["payload_bytes"], told[1]["payload_bytes"])
        return told[0]

    def test_nothing_changed(self):
        # The same weights under another label: no payload, and yet another version everywhere.
        again = self.checkpoint("again", self.tensors[0])
        told = self.both([self.versions[0], again])
        self.assertEqual(told["payload_bytes"], 0)
        self.assertEqual(told["committed_version"], 1)

    def test_everything_changed(self):
        all_words = self.change(self.tensors[0], lambda name, words: range(words))
        self.both([self.versions[0], self.checkpoint("all", all_words)])

    def test_one_element_changed(self):
        one = self.change(self.tensors[0],
                          lambda name, words: [words - 1] if name == "model.layers.1.w" else [])
        told = self.both([self.versions[0], self.checkpoint("one", one)])
        self.assertLess(told["payload_bytes"], 400)  # one payload of one item

    def test_a_trainer_restarts_without_its_baseline(self):
        # All owners die in the midst of the second attempt, when version 1 is committed.
        kills = [f"owner.{owner}@send:2" for owner in range(2)]
        told = self.local(self.versions[:3], "--owners", "2", "--nodes", "1",
                          "--kill", kills[0], "--kill", kills[1])
        self.assertEqual(told["kills"], 2)

    def test_a_run_resumed_from_an_older_checkpoint(self):
        # All owners start again with the base's weights before they are asked for version 2.
        kills = [f"owner.{owner}@cleanup.after:1" for owner in range(2)]
        told = self.local(self.versions[:3], "--owners", "2", "--nodes", "1",
                          "--kill", kills[0], "--kill", kills[1])
        self.assertEqual(told["kills"], 2)

    def test_residual_tasks(self):
        for mode in ("sync", "async"):
            with self.subTest(mode=mode):
                told = self.local(self.versions, "--owners", "3", "--nodes", "1", "--convert",
                                  "--mode", mode)
                self.assertEqual(told["attempts"], 3)
                stages = {span["stage"] for span in told["spans"]}
                self.assertLessEqual({"flags", "convert", "assemble"}, stages)

    def test_an_owner_is_killed_in_the_collective(self):
        # Owners meet three times for first baselines, in each attempt and in each update of the
        # baseline: these are the first of each, of the second attempt, and parts on their way.
        for point in ("all_reduce_flags:1", "all_reduce_flags:2", "all_reduce_flags:4",
                      "all_reduce_flags:7", "all_reduce_flags:10", "convert:8"):
            with self.subTest(point=point):
                told = self.local(self.versions[:3], "--owners", "3", "--nodes", "1", "--convert",
                                  "--kill", f"owner.1@{point}")
                self.assertEqual(told["kills"], 1)

    def test_an_owner_is_stopped_in_the_collective(self):
        told = self.local(self.versions[:2], "--owners", "2", "--nodes", "1", "--convert",
                          "--kill", "pause:owner.1@all_reduce_flags:4,1")
        self.assertEqual((told["pauses"], told["attempts"]), (1, 1))

    def test_random_kills_of_owners_that_convert(self):
        seed = int(os.environ.get("CLUSTER_SEED", "1"))
        refits = int(os.environ.get("CLUSTER_REFITS", "6"))
        chosen = random.Random(seed)
        arguments = ["local", "--from", self.versions[0], "--owners", "2", "--nodes", "2",
                     "--convert", "--mode", "async", "--json"]
        for i in range(refits):
            arguments += ["--to", self.versions[(i + 1) % len(self.versions)]]
        for role, operations in KILLS.items():
            for _ in range(refits // 3):
                if role == "owner":
                    operations = ["all_reduce_flags", "convert", "send", "commit"]
                nth = chosen.randint(1, 2 * refits if role == "owner" else 3)
                point = f"{role}@{chosen.choice(operations)}:{nth}"
                arguments += ["--kill", ("pause:" if chosen.random() < 0.3 else "") + point]
        ran = subprocess.run([cli_test.DCR, *arguments], capture_output=True, text=True,
                             timeout=120 + 60 * refits, check=False)
        self.assertEqual(ran.returncode, 0, f"CLUSTER_SEED={seed} {ran.args}\n{ran.stderr}")
        told = json.loads(ran.stdout)
        self.assertGreaterEqual(told["committed_version"], refits)
        self.assertEqual((told["bytes_differing"], told["reads_different"]), (0, 0), seed)

    def test_staging_overflows(self):
        told = self.local(self.versions[:2], "--owners", "2", "--nodes", "2", "--mode", "async",
                          "--staging", "1")
        self.assertEqual(told["attempts"], 1)
        (early,) = told["gate_closed_early"]
        self.assertEqual(early["version"], 1)
        self.assertRegex(early["reason"], "node-[01]")

    def test_a_delta_larger_than_memory(self):
        # 288 MB of changes through owners, nodes and receivers of 256 MiB each.
        words = 48 * MEBIBYTE
        old = {f"w{i}": ("U8", [words], bytes([i]) * words) for i in range(6)}
        new = {name: ("U8", [words], self.rng.randbytes(words)) for name in old}
        told = self.local([self.checkpoint("old", old), self.checkpoint("new", new)],
                          "--owners", "1", "--nodes", "1", "--receivers-per-node", "1",
                          "--memory", "256M", reads=False)
        self.assertGreater(told["payload_bytes"], 256 * MEBIBYTE)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} PATH_OF_DCR [unittest arguments]")
    cli_test.DCR = os.path.abspath(sys.argv.pop(1))
    unittest.main()
