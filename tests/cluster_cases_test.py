#!/usr/bin/env python3
"""Clusters of real processes in unusual transitions, each a case of docs/TESTING.md.

    tests/cluster_cases_test.py PATH_OF_DCR [unittest arguments]

CLUSTER_SEED picks the random kills of one test, CLUSTER_REFITS says how many refits it has.
Every byte of every receiver is compared with a dense load after every refit, as `dcr local` does.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import WIDTH, write_checkpoint
from cluster_test import KILLS, ClusterHarness, children_of

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

    def flip(self, process, bits):
        """Flips a bit of whatever in the memory of its own begins with `bits`."""
        flipped = 0
        with open(f"/proc/{process}/maps") as file:
            parts = re.findall(r"(?m)^(\w+)-(\w+) rw-p \w+ 00:00 0 *$", file.read())
        with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
            for begin, end in ((int(begin, 16), int(end, 16)) for begin, end in parts):
                memory.seek(begin)
                for found in re.finditer(re.escape(bits), memory.read(end - begin)):
                    memory.seek(begin + found.start())
                    memory.write(bytes([bits[0] ^ 1]))
                    flipped += 1
        return flipped

    def test_an_engine_dies_with_what_its_requests_have_read(self):
        # A bit is another for as long as it takes a request to read it, which is none of what the
        # cluster compares; and then the engine is killed, which alone had counted it.
        directory, report = self.path("run"), self.path("report.json")
        arguments = ["--owners", "1", "--nodes", "1", "--receivers-per-node", "1"]
        cluster = subprocess.Popen(
            [cli_test.DCR, "local", "--from", self.versions[0], "--to", self.versions[1],
             "--to", self.versions[2], *arguments, "--directory", directory, "--report",
             report, "--mode", "async", "--kill", "pause:owner.0@build_complete:2,5"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        errors = ""
        for line in cluster.stderr:
            errors += line
            if "owner-0 was stopped" in line:
                break
        engine = children_of(cluster.pid)["engine-0"]
        bits = self.tensors[1]["model.norm"][2]
        try:
            self.assertGreater(self.flip(engine, bits), 0)
        except PermissionError as error:
            cluster.kill()
            cluster.communicate()
            self.skipTest(f"the memory of a process of this test's cannot be written: {error}")
        deadline = time.monotonic() + 60
        told = ""
        while "read differs: " not in told:
            self.assertLess(time.monotonic(), deadline, told)
            with open(os.path.join(directory, "engine-0.0.log")) as file:
                told = file.read()
        self.assertGreater(self.flip(engine, bytes([bits[0] ^ 1]) + bits[1:]), 0)
        os.kill(engine, signal.SIGKILL)
        _, rest = cluster.communicate()
        self.assertEqual(cluster.returncode, 1, errors + rest)
        with open(report) as file:
            told = json.load(file)
        self.assertEqual((told["bytes_differing"], told["reads_different"]), (0, 1))
        self.assertIn(f"0 bytes of receivers and 1 reads differ from a dense load of "
                      f"{self.versions[2]}: nothing more is refitted", rest)

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
