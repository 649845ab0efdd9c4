#!/usr/bin/env python3
"""Runs whole clusters of real processes by `dcr local`, and kills and stops parts of them.

    tests/cluster_test.py PATH_OF_DCR [unittest arguments]

CLUSTER_SEED picks the random kills of one test, CLUSTER_REFITS says how many refits it has; a
failure prints the seed. CLUSTER_TRANSITIONS says how many another has, through which memory stays
as it is. `make cluster` runs both long, with a seed of its own.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import unittest

import cli_test
from cli_test import DcrTest, run, some_tensors, step, write_checkpoint
from refit_cli_test import documented_keys

# By how much what a process has for itself may grow from one window of many transitions to the
# next: an allocator may happen to touch pages late, but not three times as many as one message of
# each of 500 transitions takes.
GROWTH_BYTES_MAX = 64 << 10

KILLS = {
    "coordinator": ["prepare", "open_apply", "flush", "commit", "stop_and_wait", "cleanup"],
    "owner": ["build_complete", "bitdiff", "encode", "send", "commit"],
    "node": ["receive", "decode", "hand_over"],
    "receiver": ["prepare", "ingest", "apply", "flush", "commit"],
}


def children_of(parent):
    """The processes of a cluster: their ids, by name."""
    found = {}
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        children = file.read().split()
    for child in children:
        with open(f"/proc/{child}/cmdline", "rb") as file:
            arguments = file.read().decode().split("\0")
        found[arguments[arguments.index("--name") + 1]] = int(child)
    return found


def private_bytes(parent):
    """What the processes of a cluster have for themselves alone, by name."""
    found = {}
    for name, child in children_of(parent).items():
        with open(f"/proc/{child}/smaps_rollup") as file:
            sizes = re.findall(r"(?m)^Private_(?:Clean|Dirty): +(\d+) kB$", file.read())
        found[name] = 1024 * sum(map(int, sizes))
    return found


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

    def local(self, versions, *options, reads=True):
        """`reads`: engines must have read their weights, which a short run over large ones need
        not leave them the time for."""
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
        if reads:
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
                self.assertLessEqual(
                    {"project", "compare", "encode", "compress", "submit_to_queued", "receive",
                     "decode", "stage", "apply", "synchronise", "acknowledge", "commit",
                     "baseline", "gate", "refit"}, stages)
                self.assertEqual([w["version"] for w in told["windows"]], [1, 2, 3])
                self.assertEqual(told["windows"][0]["begin"], 0)
                for window, after in zip(told["windows"], told["windows"][1:]):
                    self.assertLess(window["begin"], window["end"])
                    self.assertLess(window["end"], after["begin"])
                self.assertEqual(told["gate_closed_early"], [])
                receivers = {s["endpoint"] for s in told["spans"] if s["stage"] == "apply"}
                self.assertEqual(receivers, {f"receiver-{i}" for i in range(4)})

    def test_kills_of_every_role(self):
        for point in ("receiver@apply", "coordinator@commit", "owner@send", "node@receive"):
            with self.subTest(point=point):
                told = self.local(self.versions[:3], "--owners", "2", "--nodes", "2",
                                  "--kill", point)
                self.assertEqual(told["kills"], 1)

    def test_kills_at_both_ends_of_operations(self):
        # Of those that no message of the protocol begins or ends.
        for points in (("owner.0@refit", "owner.1@prepare.after", "node@hand_over.after"),
                       ("owner.0@encode", "owner.1@refit.after:2")):
            with self.subTest(points=points):
                kills = [part for point in points for part in ("--kill", point)]
                told = self.local(self.versions[:3], "--owners", "2", "--nodes", "2", *kills)
                self.assertEqual(told["kills"], len(points))

    def test_a_stopped_process(self):
        told = self.local(self.versions[:2], "--owners", "2", "--nodes", "2",
                          "--kill", "pause:receiver.1@apply,1")
        self.assertEqual(told["pauses"], 1)

    def test_receivers_that_differ(self):
        # The checkpoint is not what it was: it changes while an engine is about to open for it.
        report = self.path("report.json")
        cluster = subprocess.Popen(
            [cli_test.DCR, "local", "--from", self.versions[0], "--to", self.versions[1],
             "--to", self.versions[2], "--owners", "1", "--nodes", "1", "--receivers-per-node", "1",
             "--kill", "pause:receiver.0@commit:2,2", "--report", report],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for line in cluster.stderr:
            if "engine-0 was stopped" in line:
                break
        changed = os.path.join(self.versions[1], "model-00001-of-00002.safetensors")
        with open(changed, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        text, errors = cluster.communicate()
        self.assertEqual(cluster.returncode, 1, errors)
        self.assertIn(f"differ from a dense load of {self.versions[1]}: nothing more is refitted",
                      errors)
        with open(report) as file:
            told = json.load(file)
        self.assertEqual((told["refits"], told["committed_version"]), (1, 1))
        self.assertEqual(told["bytes_differing"], 1)
        self.assertIn("1 byte differ", text)

    def test_an_engine_that_ends_by_itself(self):
        # What it starts from is gone when it comes back: it would end again and again.
        cluster = subprocess.Popen(
            [cli_test.DCR, "local", "--from", self.versions[0], "--to", self.versions[1],
             "--to", self.versions[2], "--owners", "1", "--nodes", "1", "--kill",
             "receiver.0@commit:2"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        lines = []
        for line in cluster.stderr:
            lines.append(line)
            if "version 1 is committed" in line:
                os.rename(self.versions[0], self.path("gone"))
        out, _ = cluster.communicate()
        errors = "".join(lines)
        self.assertEqual((cluster.returncode, out), (4, ""), errors)
        self.assertIn("engine-0 was killed, code 9; it is started again", errors)
        ended = f"engine-0 ended, code 3: dcr receiver: .*{self.versions[0]}.*"
        again = re.findall(f"(?m)^{ended}; it is started again$", errors)
        # The operator may hear of the commit when it has ended already.
        self.assertIn(len(again), (2, 3, 4), errors)
        third = "for the third time since the last commit"
        self.assertRegex(lines[-1], f"^dcr local: {ended}, {third}")

    def test_no_change(self):
        same = [self.versions[0], self.versions[0]]
        self.assertEqual(self.local(same, "--owners", "2", "--nodes", "1")["payload_bytes"], 0)

    def test_random_kills(self):
        seed = int(os.environ.get("CLUSTER_SEED", "1"))
        refits = int(os.environ.get("CLUSTER_REFITS", "6"))
        chosen = random.Random(seed)
        versions = [self.versions[i % len(self.versions)] for i in range(refits + 1)]
        kills = []
        # Counted anew in each life, so that they are spread over all refits.
        for role, operations in KILLS.items():
            for _ in range(refits // 3):
                pause = chosen.random() < 0.3
                index = chosen.randrange(4 if role == "receiver" else 2)
                place = f"{role}.{index}@{chosen.choice(operations)}"
                point = f"{place}:{chosen.randint(1, 12)}"
                kills += ["--kill", ("pause:" if pause else "") + point]
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
        self.assertGreater(told["reads"], 0, seed)
        # Whatever died or was stopped was so at a point, and most points are reached.
        points = len(kills) // 2
        self.assertEqual(told["kills"] + told["pauses"] + len(told["not_reached"]), points, seed)
        self.assertGreater(told["kills"] + told["pauses"], points // 2, f"{seed} {told}")

    def test_loss_of_every_engine_and_a_baseline(self):
        # Nobody has what receivers could restore: the refit that goes on sends everything.
        kills = []
        for point in ("receiver.0@prepare:3", "receiver.2@prepare:3", "owner.0@build_complete:2"):
            kills += ["--kill", point]
        before = set(self.listing())
        told = self.local(self.versions, "--owners", "2", "--nodes", "2", *kills)
        self.assertEqual((told["kills"], told["attempts"]), (3, 4))
        (directory,) = set(self.listing()) - before
        log = ""
        for number in range(2):
            with open(self.path(f"{directory}/coordinator-{number}.0.log")) as file:
                log += file.read()
        self.assertIn("attempt 3 of version 2 is prepared: dense", log)

    def watch(self, *arguments):
        """The first line of the first two statuses that `dcr status --watch` shows."""
        watching = subprocess.Popen([cli_test.DCR, "status", *arguments, "--watch"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = []
        for line in watching.stdout:
            if line.startswith(("committed: ", "{")):
                lines.append(line)
            if len(lines) == 2:
                break
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate()
        # It listens: a member may have hung up while it still shook hands.
        ended = r"observer: a connection ended before its handshake at tcp://127\.0\.0\.1:\d+\n"
        self.assertEqual((watching.returncode, re.sub(ended, "", errors)), (0, ""))
        return lines

    def test_status_of_a_running_cluster(self):
        directory = self.path("run")
        arguments = ["local", "--from", self.versions[0], "--owners", "2", "--nodes", "2"]
        for i in range(12):
            arguments += ["--to", self.versions[1 + i % 3]]
        cluster = subprocess.Popen(
            [cli_test.DCR, *arguments, "--directory", directory],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        try:
            for line in cluster.stderr:
                if "version 2 is committed" in line:
                    break
            observed = ("--config", os.path.join(directory, "run.toml"), "--name", "observer")
            ran = run("status", *observed, "--json")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            told = json.loads(ran.stdout)
            text = run("status", *observed)
            watched = [self.watch(*observed), self.watch(*observed, "--json")]
        finally:
            rest = cluster.stderr.read()
            code = cluster.wait()
            cluster.stderr.close()
        self.assertEqual(code, 0, rest)
        self.assertEqual(set(told), documented_keys("status"))
        for lines in watched:
            self.assertEqual(len(lines), 2)
        for line in watched[0]:
            self.assertRegex(line, r"^committed: version \d+ \(.*step\d\)\n$")
        for line in watched[1]:
            self.assertEqual(set(json.loads(line)), documented_keys("status"))
        self.assertGreaterEqual(told["committed_version"], 2)
        self.assertEqual(told["refits"], told["committed_version"])
        self.assertGreaterEqual(told["attempts"], told["refits"])
        self.assertEqual((told["receivers"], told["kills"]), (4, None))
        self.assertEqual((told["bytes_differing"], told["reads_different"]), (0, 0))
        self.assertGreater(told["bytes_compared"], 0)
        self.assertGreater(told["payload_bytes"], 0)
        self.assertGreater(told["seconds"], 0)
        self.assertEqual(told["silent"], [])
        self.assertEqual([engine["name"] for engine in told["engines"]], ["engine-0", "engine-1"])
        for engine in told["engines"]:
            self.assertTrue(engine["answered"])
            self.assertEqual(engine["gate"] == "open", engine["reason"] == "")
            self.assertEqual(engine["committed_version"], told["committed_version"])
            if engine["held_version"] is not None:
                lag = engine["committed_version"] - engine["held_version"]
                self.assertEqual(engine["lag"], max(lag, 0))
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertRegex(text.stdout, r"(?m)^committed: version \d+ \(.*step\d\)$")
        self.assertRegex(text.stdout, r"(?m)^transition: attempt \d+ is \w+, for version \d+, ")
        self.assertRegex(text.stdout, r"(?m)^leader: coordinator-[01]$")
        self.assertRegex(
            text.stdout,
            r"(?m)^engine engine-1: (open for [^;:]+|closed for [^;:]+: .+); "
            r"holds (version \d+|no version), committed is version \d+",
        )

    def test_memory_stays_as_it_is(self):
        # Some hundred transitions pass before an allocator has met every order of events. What a
        # process gives back and takes again must not decide, so peaks are compared.
        transitions = int(os.environ.get("CLUSTER_TRANSITIONS", "2500"))
        windows = [(share * transitions // 10, (share + 1) * transitions // 10 - 2)
                   for share in (2, 4, 6, 8)]
        arguments = ["local", "--from", self.versions[0], "--owners", "1", "--nodes", "1"]
        for i in range(transitions):
            arguments += ["--to", self.versions[(i + 1) % len(self.versions)]]
        cluster = subprocess.Popen(
            [cli_test.DCR, *arguments, "--receivers-per-node", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        peaks = [{} for _ in windows]
        lines = []
        for line in cluster.stderr:
            lines.append(line)
            committed = re.search(r"version (\d+) is committed$", line)
            version = int(committed.group(1)) if committed else 0
            for peak, (begin, end) in zip(peaks, windows):
                if begin <= version <= end and version % 10 == 0:
                    for name, size in private_bytes(cluster.pid).items():
                        peak[name] = max(size, peak.get(name, 0))
        code = cluster.wait()
        cluster.stderr.close()
        self.assertEqual(code, 0, "".join(lines))
        self.assertEqual(set(peaks[0]), {"coordinator-0", "coordinator-1", "owner-0", "node-0",
                                         "engine-0"})
        grown = {name: [after[name] - before[name] for before, after in zip(peaks, peaks[1:])]
                 for name in peaks[0]}
        print(f"bytes more from one to the next of transitions {windows}: {grown}",
              file=sys.stderr)
        # What is kept of every transition grows each time; an allocator's pages do not.
        for name in ("coordinator-0", "coordinator-1", "node-0", "owner-0"):
            self.assertLess(min(grown[name]), GROWTH_BYTES_MAX, f"{name} {grown}")

    def test_an_engine_that_cannot_be_exact(self):
        # Its loader makes a parameter of several of a tensor's elements: no delta could be placed.
        directory = self.path("run")
        base = ("local", "--from", self.versions[0], "--to", self.versions[1], "--owners", "1",
                "--nodes", "1", "--receivers-per-node", "1", "--directory", directory)
        ran = run(*base)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        tensor = "model.embed.weight"
        rules = [{"match": name, "class": "replicated"} for name in self.tensors[0]]
        rules[list(self.tensors[0]).index(tensor)]["behaviour"] = "normalise"
        layout = self.path("receivers.json")
        with open(layout, "w") as file:
            json.dump({"format": 0, "ranks": 1, "rules": rules}, file)
        config = os.path.join(directory, "run.toml")
        with open(config) as file:
            text = file.read()
        self.assertEqual(text.count("'fused-tp:1'") + text.count('"fused-tp:1"'), 1, text)
        with open(config, "w") as file:
            file.write(re.sub("['\"]fused-tp:1['\"]", json.dumps(layout), text))
        refused = run("receiver", "--config", config, "--name", "engine-0")
        self.assertEqual(refused.returncode, 3, refused.stderr)
        self.assertIn(f'receiver-0: tensor "{tensor}" cannot be refitted exactly: ', refused.stderr)

    def test_errors(self):
        bad = run("local", "--from", self.versions[0], "--to", self.versions[1],
                  "--kill", "receiver@aply")
        self.assertEqual(bad.returncode, 2)
        self.assertIn("did you mean apply?", bad.stderr)
        none = run("status", "--config", self.path("none.toml"))
        self.assertEqual(none.returncode, 3)
        self.assertIn("none.toml", none.stderr)
        config = self.path("run.toml")
        with open(config, "w") as file:
            file.write("directory = 'run'\nbase = 'base'\nowners = 'fsdp:1'\n"
                       "receivers = 'fused-tp:1'\nbucket_byte = 5\n")
        unknown = run("status", "--config", config)
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("line 5: unknown key bucket_byte in the file; did you mean bucket_bytes?",
                      unknown.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} PATH_OF_DCR [unittest arguments]")
    cli_test.DCR = os.path.abspath(sys.argv.pop(1))
    unittest.main()
