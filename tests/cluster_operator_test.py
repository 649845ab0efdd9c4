#!/usr/bin/env python3
"""The parts of a cluster, started one by one with a file that was written by hand, and what an
operator does with them: refit, status, abort and restore.

    tests/cluster_operator_test.py PATH_OF_DCR [unittest arguments]
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import run
from cluster_test import ClusterHarness

OWNERS, ENGINES, RANKS = 2, 2, 2
# Others wait for a process that was stopped, or whose end nobody has seen, no longer than this.
WAITS = {"leader_ms": 2000, "prepare_ms": 4000, "stop_ms": 4000, "join_hold_ms": 4000}
PATIENCE_SECONDS = 60


class ClusterOperatorTest(ClusterHarness):
    def setUp(self):
        super().setUp()
        self.config = self.path("run.toml")
        self.processes = {}
        self.lives = 0
        os.makedirs(self.path("run", "keys"), 0o700)
        os.chmod(self.path("run"), 0o700)
        text = f"""directory = "run"
base = "{self.versions[0]}"
owners = "fsdp:{OWNERS}"
receivers = "fused-tp:{RANKS}"
[waits]
"""
        text += "".join(f"{name} = {value}\n" for name, value in WAITS.items())
        for role, count in (("coordinator", 1), ("owner", OWNERS), ("node", ENGINES),
                            ("operator", 1), ("observer", 1)):
            table = "operator" if role == "observer" else role
            for number in range(count):
                text += f"[[{table}]]\n" + self.endpoint(f"{role}-{number}")
        for engine in range(ENGINES):
            text += f'[[engine]]\nnode = "node-{engine}"\n' + self.endpoint(f"engine-{engine}")
            for rank in range(RANKS):
                name = f"receiver-{engine * RANKS + rank}"
                text += "[[engine.receiver]]\n" + self.endpoint(name)
        with open(self.config, "w") as file:
            file.write(text)

    def endpoint(self, name):
        key = self.good_json("keygen", name, "-o", self.path("run", "keys"))["public_key"]
        address = "ipc://" + self.path(f"{name}.ipc")
        return f'name = "{name}"\naddress = "{address}"\npublic_key = "{key}"\n'

    def start(self, command, name, *options):
        self.lives += 1
        with open(self.path(f"{name}.{self.lives}.log"), "w") as log:
            process = subprocess.Popen(
                [cli_test.DCR, command, "--config", self.config, "--name", name, *options],
                stdout=log, stderr=log)
        self.processes[name] = process
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()

    def start_all(self, owner_options=()):
        self.start("coordinator", "coordinator-0")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while run("status", "--config", self.config, "--name", "observer-0").returncode != 0:
            self.assertLess(time.monotonic(), deadline, self.logs())
        for number in range(OWNERS):
            self.start("owner", f"owner-{number}", *(owner_options if number == 0 else ()))
        for number in range(ENGINES):
            self.start("node", f"node-{number}")
            self.start("receiver", f"engine-{number}")
        self.wait_until(self.all_open)

    def logs(self):
        texts = []
        for name in self.listing():
            if name.endswith(".log"):
                with open(self.path(name)) as file:
                    texts.append(f"== {name}\n{file.read()}")
        return "".join(texts)

    def operator(self, command, *arguments, name="operator-0"):
        return run(command, "--config", self.config, "--name", name, *arguments)

    def begin(self, command, *arguments):
        """The same, and goes on meanwhile."""
        process = subprocess.Popen(
            [cli_test.DCR, command, "--config", self.config, "--name", "operator-0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(self.end, process)
        return process

    def told(self, command, *arguments, name="operator-0"):
        ran = self.operator(command, *arguments, "--json", name=name)
        self.assertEqual(ran.returncode, 0, ran.stderr + ran.stdout + self.logs())
        return json.loads(ran.stdout)

    def status(self):
        return self.told("status", name="observer-0")

    def wait_until(self, holds):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds(status := self.status()):
            self.assertLess(time.monotonic(), deadline, f"{status}\n{self.logs()}")
        return status

    @staticmethod
    def all_open(status):
        committed = status["committed_version"]
        return all(engine["gate"] == "open" and engine["held_version"] == committed
                   for engine in status["engines"])

    def check_equal(self):
        """Engines' readers go on, and what they read is their label's checkpoint."""
        seen = self.wait_until(lambda status: status["silent"] == [])["reads"]
        status = self.wait_until(lambda status: (status["reads"] or 0) >= seen + 20)
        self.assertEqual(status["reads_different"], 0)

    def test_the_parts_one_by_one(self):
        self.start_all()
        for number in (1, 2):
            told = self.told("refit", self.versions[number])
            self.assertEqual((told["committed_version"], told["label"]),
                             (number, self.versions[number]))
            self.assertEqual((told["attempts"], told["without_baseline"]), (1, []))
            self.wait_until(self.all_open)
            self.check_equal()
        ran = self.operator("restore")
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr),
                         (0, "every receiver holds the committed version\n", ""))
        told = self.told("abort")
        self.assertEqual((told["commit_found"], told["committed_version"]), (True, 2))
        for name, process in self.processes.items():
            process.terminate()
            self.assertEqual(process.wait(PATIENCE_SECONDS), 0, f"{name}\n{self.logs()}")

    def test_restore_waits_until_gates_are_open(self):
        self.start_all()
        engine = self.processes["engine-1"]
        engine.send_signal(signal.SIGSTOP)
        told = self.told("refit", self.versions[1])
        self.assertEqual(told["committed_version"], 1)
        restore = self.begin("restore")
        # It says what it waits for, and has not ended.
        self.assertRegex(restore.stderr.readline(), "receiver-2 is silent, .*engine-1 is silent")
        self.assertIsNone(restore.poll())
        engine.send_signal(signal.SIGCONT)
        out, errors = restore.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(restore.returncode, 0, errors + self.logs())
        self.assertRegex(out, "^these .* serve it: .*receiver-2, receiver-3\n$")
        self.assertTrue(self.all_open(self.status()))
        self.check_equal()

    def test_abort_and_what_is_left(self):
        self.start_all(("--pause-at", "pause:owner@send,600"))
        refit = self.begin("refit", self.versions[1])
        self.wait_until(lambda status: "owner-0" in status["silent"]
                        and status["transition"]["state"] == "active")
        # An operator is needed, and is told for what.
        self.processes["engine-1"].kill()
        self.processes["engine-1"].wait()
        ran = self.operator("restore", name="observer-0")
        self.assertEqual(ran.returncode, 5, ran.stderr)
        self.assertIn("attempt 1 is active: wait for it, or end it with dcr abort", ran.stderr)
        told = self.told("abort", name="observer-0")
        self.assertEqual((told["commit_found"], told["committed_version"]), (False, 0))
        self.assertEqual(told["transition"]["state"], "obsolete")
        out, errors = refit.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((refit.returncode, out), (4, ""), errors)
        self.assertIn("an operator aborted the transition", errors)
        self.end(self.processes["owner-0"])
        self.start("owner", "owner-0")
        self.start("receiver", "engine-1")
        self.assertEqual(self.told("refit", self.versions[1])["committed_version"], 1)
        self.wait_until(self.all_open)
        self.check_equal()
        # Nobody has what a receiver that lost its weights could restore, and no node what was sent.
        self.assertEqual(self.told("refit", self.versions[2])["committed_version"], 2)
        for command, name in (("owner", "owner-0"), ("receiver", "engine-1")):
            self.end(self.processes[name])
            self.start(command, name)
        ran = self.operator("restore")
        self.assertEqual(ran.returncode, 5, f"{ran.stdout}{ran.stderr}{self.logs()}")
        self.assertRegex(ran.stderr, "an operator is needed: refit again, which sends everything, "
                         "for owner-0 cannot send version 2 without a baseline of it: .*engine-1")
        self.assertEqual(self.told("refit", self.versions[3])["committed_version"], 3)
        self.wait_until(self.all_open)
        self.check_equal()

    def test_an_abort_finds_a_commit(self):
        self.start_all()
        self.end(self.processes["coordinator-0"])
        self.start("coordinator", "coordinator-0", "--kill-at", "coordinator@commit.after")
        refit = self.begin("refit", self.versions[1])
        code = self.processes["coordinator-0"].wait(PATIENCE_SECONDS)
        self.assertEqual(code, -signal.SIGKILL, self.logs())
        self.assertIsNone(refit.poll())
        ran = self.operator("abort", name="observer-0")
        self.assertEqual((ran.returncode, ran.stdout),
                         (0, f"a commit was found: version 1 ({self.versions[1]})\n"))
        self.start("coordinator", "coordinator-0")
        out, errors = refit.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(refit.returncode, 0, errors + self.logs())
        self.assertTrue(out.startswith("version 1 "), out)
        self.wait_until(self.all_open)
        self.check_equal()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} PATH_OF_DCR [unittest arguments]")
    cli_test.DCR = os.path.abspath(sys.argv.pop(1))
    unittest.main()
