#!/usr/bin/env python3
"""Runs the program `dcr` on real files: every command, every exit code, what is left on the disk.

    tests/cli_test.py PATH_OF_DCR [unittest arguments]

Only Python's standard library; checkpoints are written here byte by byte.
"""

import errno
import json
import os
import pty
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

DCR = ""
WIDTH = {"U8": 1, "BF16": 2, "F16": 2, "F32": 4, "I64": 8}
# Reading this much takes longer than any test waits, and a sparse file has it on every disk.
HUGE_BYTES = 64 << 30
ENDLESS_SECONDS = 120


def run(*arguments, **options):
    """Runs dcr to its end and returns the CompletedProcess."""
    return subprocess.run(
        [DCR, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=ENDLESS_SECONDS,
        check=False,
        **options,
    )


def safetensors_head(tensors, metadata=None, padding=0):
    """The bytes before the data of a file of [(name, dtype, shape, size in bytes)…]."""
    header = {} if metadata is None else {"__metadata__": metadata}
    position = 0
    for name, dtype, shape, size in tensors:
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8 + padding)
    return struct.pack("<Q", len(text)) + text


def write_safetensors(path, tensors, metadata=None, padding=0):
    """`tensors` is {name: (dtype, shape, bytes)}."""
    layout = [(name, dtype, shape, len(data)) for name, (dtype, shape, data) in tensors.items()]
    with open(path, "wb") as file:
        file.write(safetensors_head(layout, metadata, padding))
        for _, _, data in tensors.values():
            file.write(data)


def write_huge(path, last_byte=0):
    """One U8 tensor of HUGE_BYTES, all zero but its last byte."""
    with open(path, "wb") as file:
        head = safetensors_head([("huge", "U8", [HUGE_BYTES], HUGE_BYTES)])
        file.write(head)
        file.truncate(len(head) + HUGE_BYTES)
        file.seek(len(head) + HUGE_BYTES - 1)
        file.write(bytes([last_byte]))


def tensor(rng, dtype, *shape):
    count = 1
    for size in shape:
        count *= size
    return (dtype, list(shape), rng.randbytes(count * WIDTH[dtype]))


def step(rng, tensors, rate=0.02):
    """The tensors after a step of training: some words are one more than they were."""
    after = {}
    for name, (dtype, shape, data) in tensors.items():
        width = WIDTH[dtype]
        changed = bytearray(data)
        for i in range(len(data) // width):
            if rng.random() < rate:
                word = int.from_bytes(data[i * width : (i + 1) * width], "little") + 1
                word %= 1 << (8 * width)
                changed[i * width : (i + 1) * width] = word.to_bytes(width, "little")
        after[name] = (dtype, shape, bytes(changed))
    return after


def some_tensors(rng):
    return {
        "model.embed.weight": tensor(rng, "BF16", 100, 32),
        "model.layers.0.w": tensor(rng, "BF16", 64, 64),
        "model.layers.1.w": tensor(rng, "BF16", 64, 64),
        "model.norm": tensor(rng, "F32", 64),
        "steps": tensor(rng, "I64"),
        "mask": tensor(rng, "U8", 3, 0, 5),
    }


def write_checkpoint(directory, tensors, shards, files):
    """A Hugging Face directory with its tensors dealt out to `shards` files."""
    os.makedirs(directory)
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        write_safetensors(os.path.join(directory, name), part, {"format": "pt"})
        weight_map.update(dict.fromkeys(part, name))
    index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())}}
    index["weight_map"] = weight_map
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file, indent=2)
    for name, data in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)


def content(path):
    with open(path, "rb") as file:
        return file.read()


class DcrTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="dcr-cli-test-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.rng = random.Random(20240607)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def listing(self):
        return sorted(os.listdir(self.directory))

    def good(self, *arguments, **options):
        """Runs dcr, which must exit with 0; returns its standard output."""
        ran = run(*arguments, **options)
        self.assertEqual(ran.returncode, 0, ran.stderr + ran.stdout)
        return ran.stdout

    def good_json(self, *arguments):
        out = self.good(*arguments, "--json")
        self.assertEqual(out.count("\n"), 1, out)
        return json.loads(out)

    def bad(self, exit_code, code, words, *arguments, **options):
        """Runs dcr with and without --json; it must fail with this exit code and error."""
        ran = run(*arguments, **options)
        self.assertEqual(ran.returncode, exit_code, ran.stderr + ran.stdout)
        self.assertEqual(ran.stdout, "")
        self.assertIn(words, ran.stderr)
        ran = run(*arguments, "--json", **options)
        self.assertEqual(ran.returncode, exit_code, ran.stderr + ran.stdout)
        self.assertEqual(ran.stderr, "")
        error = json.loads(ran.stdout)["error"]
        self.assertEqual(error["code"], code)
        self.assertIn(words, error["message"])
        self.assertLessEqual(set(error), {"code", "message", "tensor"})
        return error

    def make_steps(self, count):
        """Writes step0.st, step1.st, … and the deltas step1.dcr, … between them."""
        tensors = some_tensors(self.rng)
        write_safetensors(self.path("step0.st"), tensors, {"step": "0"})
        for number in range(1, count + 1):
            tensors = step(self.rng, tensors)
            new = self.path(f"step{number}.st")
            write_safetensors(new, tensors, {"step": str(number)}, padding=8 * number)
            old = self.path(f"step{number - 1}.st")
            self.good("diff", old, new, "-o", self.path(f"step{number}.dcr"))


class CommandsTest(DcrTest):
    def test_version_and_help(self):
        self.assertRegex(self.good("--version"), r"^dcr \S+ \(delta format version \d+\)\n$")
        for command in ("diff", "apply", "verify", "inspect"):
            self.assertIn(command, self.good("--help"))
            self.assertIn("--memory", self.good(command, "--help"))

    def test_one_file_there_and_back(self):
        self.make_steps(1)
        old, new, copy = self.path("step0.st"), self.path("step1.st"), self.path("copy.st")
        delta = self.path("step1.dcr")
        out = self.good("apply", delta, old, "-o", copy)
        self.assertRegex(out, r"copy\.st: 1 delta applied, .* in 6 tensors changed, .*\n$")
        self.assertEqual(content(copy), content(new))
        out = self.good("verify", new, copy, "--files")
        self.assertTrue(out.startswith("equal; 6 tensors, "), out)
        self.assertEqual(out.count("\n"), 1)
        self.assertEqual(run("verify", old, new).returncode, 1)
        self.assertEqual(
            self.listing(), ["copy.st", "step0.st", "step1.dcr", "step1.st"], "nothing else is left"
        )

    def test_json_keys_and_what_they_say(self):
        self.make_steps(1)
        old, new, delta = self.path("step0.st"), self.path("step1.st"), self.path("d.dcr")
        made = self.good_json("diff", old, new, "-o", delta)
        self.assertEqual(
            list(made),
            "tensors elements changed change_rate delta_bytes payload_bytes bits_per_change "
            "encodings added removed replaced carried_files left_out seconds "
            "peak_rss_bytes".split(),
        )
        self.assertEqual(made["tensors"], 6)
        self.assertEqual(made["elements"], 100 * 32 + 2 * 64 * 64 + 64 + 1)
        self.assertGreater(made["changed"], 100)
        self.assertEqual(made["change_rate"], made["changed"] / made["elements"])
        self.assertEqual(made["delta_bytes"], os.path.getsize(delta))
        self.assertEqual(made["bits_per_change"], 8 * made["delta_bytes"] / made["changed"])
        self.assertLess(made["payload_bytes"], made["delta_bytes"])
        self.assertGreater(made["peak_rss_bytes"], 1 << 20)
        applied = self.good_json("apply", delta, old, "-o", self.path("copy.st"))
        self.assertEqual(
            list(applied),
            "deltas in_place tensors changed bytes_written already_target replayed_journal files "
            "seconds peak_rss_bytes".split(),
        )
        self.assertEqual((applied["deltas"], applied["in_place"]), (1, False))
        self.assertEqual(applied["changed"], made["changed"])
        same = self.good_json("verify", new, self.path("copy.st"))
        self.assertEqual(
            list(same),
            "equal tensors elements bytes files differing differences seconds "
            "peak_rss_bytes".split(),
        )
        self.assertIs(same["equal"], True)
        self.assertEqual(same["elements"], made["elements"])
        seen = self.good_json("inspect", delta)
        self.assertEqual(
            list(seen),
            "format_version delta_bytes payloads items tensors elements changed change_rate "
            "bits_per_change base_identity target_identity encodings streams groups added removed "
            "replaced files left_out seconds peak_rss_bytes".split(),
        )
        for key in ("delta_bytes", "tensors", "elements", "changed", "encodings"):
            self.assertEqual(seen[key], made[key], key)
        self.assertEqual(sum(group["changed"] for group in seen["groups"]), made["changed"])

    def test_nothing_changed(self):
        self.make_steps(0)
        shutil.copy(self.path("step0.st"), self.path("same.st"))
        made = self.good_json(
            "diff", self.path("step0.st"), self.path("same.st"), "-o", self.path("d")
        )
        self.assertIsNone(made["bits_per_change"])
        self.assertEqual((made["changed"], made["change_rate"]), (0, 0))
        self.assertIn("no change in", self.good("inspect", self.path("d")))

    def test_inspect_shows_its_tables(self):
        self.make_steps(1)
        out = self.good("inspect", self.path("step1.dcr"))
        for words in ("format version", "Streams of the payloads", "Tensor groups"):
            self.assertIn(words, out)
        self.assertRegex(out, r"  model\.layers\.\*\.w +2 ")
        self.assertRegex(out.splitlines()[-1], r"step1\.dcr: .* bits per change, checked in ")

    def test_directories_sharded_differently(self):
        before = some_tensors(self.rng)
        after = step(self.rng, before)
        after["added"] = tensor(self.rng, "F16", 5)
        after["model.norm"] = tensor(self.rng, "F32", 8, 8)
        del after["model.layers.1.w"]
        config, vocabulary = b'{"a": 1}\n', self.rng.randbytes(5000)
        write_checkpoint(
            self.path("old"), before, 2, {"config.json": b"{}", "vocab.txt": vocabulary}
        )
        write_checkpoint(
            self.path("new"),
            after,
            3,
            {"config.json": config, "vocab.txt": vocabulary, "optimizer.pt": b"\x80\x02."},
        )
        arguments = ("diff", self.path("old"), self.path("new"), "-o", self.path("d.dcr"))
        ran = run(*arguments)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("dcr diff: warning: left out optimizer.pt: ", ran.stderr)
        self.assertIn("1 tensor added, 1 tensor removed, 1 tensor replaced", ran.stdout)
        made = self.good_json(*arguments, "--force")
        self.assertEqual(
            (made["added"], made["removed"], made["replaced"]),
            (["added"], ["model.layers.1.w"], ["model.norm"]),
        )
        self.assertEqual([file["name"] for file in made["left_out"]], ["optimizer.pt"])
        self.assertIn("config.json", made["carried_files"])
        self.assertNotIn("vocab.txt", made["carried_files"])

        self.good("apply", self.path("d.dcr"), self.path("old"), "-o", self.path("copy"))
        names = [name for name in os.listdir(self.path("new")) if name != "optimizer.pt"]
        self.assertEqual(sorted(os.listdir(self.path("copy"))), sorted(names))
        for name in names:
            made = content(self.path("copy", name))
            self.assertEqual(made, content(self.path("new", name)), name)
        self.good("verify", self.path("new"), self.path("copy"))
        out = self.good("inspect", self.path("d.dcr"))
        for words in ("config.json", "vocab.txt", "optimizer.pt", "Tensors removed"):
            self.assertIn(words, out)

    def test_verify_names_what_differs(self):
        before = some_tensors(self.rng)
        after = step(self.rng, {"model.norm": before["model.norm"]}, 0.5)
        write_checkpoint(self.path("a"), before, 1, {"config.json": b"1"})
        write_checkpoint(self.path("b"), {**before, **after}, 1, {"config.json": b"2"})
        ran = run("verify", self.path("a"), self.path("b"))
        self.assertEqual(ran.returncode, 1)
        self.assertIn("bits model.norm: ", ran.stdout)
        self.assertNotIn("config.json", ran.stdout)
        ran = run("verify", self.path("a"), self.path("b"), "--files", "--json")
        self.assertEqual(ran.returncode, 1)
        told = json.loads(ran.stdout)
        self.assertIs(told["equal"], False)
        kinds = {(each["kind"], each["name"]) for each in told["differences"]}
        self.assertEqual(kinds, {("bits", "model.norm"), ("file", "config.json")})
        self.assertEqual(told["differing"], 2)

    def test_a_chain(self):
        self.make_steps(3)
        chain = [self.path(f"step{number}.dcr") for number in (1, 2, 3)]
        out = self.good("apply", *chain, self.path("step0.st"), "-o", self.path("copy.st"))
        self.assertIn("3 deltas applied", out)
        self.assertEqual(content(self.path("copy.st")), content(self.path("step3.st")))
        self.bad(
            3, "mismatch", "step3.dcr", "apply", chain[0], chain[2], self.path("step0.st"), "-o",
            self.path("x.st"),
        )  # fmt: skip
        self.assertFalse(os.path.exists(self.path("x.st")))

    def test_in_place(self):
        self.make_steps(2)
        model = self.path("step0.st")
        chain = [self.path("step1.dcr"), self.path("step2.dcr")]
        before = self.listing()
        applied = self.good_json("apply", *chain, model, "--in-place")
        self.assertEqual((applied["deltas"], applied["in_place"]), (2, True))
        self.assertIs(applied["already_target"], False)
        self.assertEqual(content(model), content(self.path("step2.st")))
        self.assertEqual(self.listing(), before, "no journal and no temporary file is left")
        applied = self.good_json("apply", *chain, model, "--in-place")
        self.assertIs(applied["already_target"], True)
        self.assertEqual(content(model), content(self.path("step2.st")))

    def test_the_delta_does_not_depend_on_threads_or_kernels(self):
        self.make_steps(1)
        arguments = ("diff", self.path("step0.st"), self.path("step1.st"), "-o")
        self.good(*arguments, self.path("one"), "--threads", 1)
        self.good(*arguments, self.path("four"), "--threads", 4, "--memory", "256M")
        scalar = {**os.environ, "DCR_FORCE_ISA": "scalar"}
        self.good(*arguments, self.path("scalar"), env=scalar)
        for name in ("one", "four", "scalar"):
            self.assertEqual(content(self.path(name)), content(self.path("step1.dcr")), name)


class ErrorsTest(DcrTest):
    def test_usage(self):
        self.make_steps(1)
        old, new, out = self.path("step0.st"), self.path("step1.st"), self.path("out")
        self.bad(2, "invalid_argument", "--output", "diff", old, new)
        self.bad(2, "invalid_argument", "--bogus", "diff", old, new, "-o", out, "--bogus")
        self.bad(2, "invalid_argument", "NEW", "diff", old, "-o", out)
        self.bad(2, "invalid_argument", "256M", "diff", old, new, "-o", out, "--memory", "1M")
        self.bad(2, "invalid_argument", "not a size", "diff", old, new, "-o", out, "--memory", "x")
        self.bad(2, "invalid_argument", "at least one delta", "apply", old, "-o", out)
        self.bad(2, "invalid_argument", "--in-place", "apply", self.path("step1.dcr"), old)
        self.assertEqual(run().returncode, 2)
        forced = {**os.environ, "DCR_FORCE_ISA": "AVX9000"}
        self.bad(2, "invalid_argument", "AVX9000", "inspect", self.path("step1.dcr"), env=forced)
        self.assertFalse(os.path.exists(out))

    def test_an_existing_output_needs_force(self):
        self.make_steps(1)
        old, new, delta = self.path("step0.st"), self.path("step1.st"), self.path("step1.dcr")
        was = content(old)
        self.bad(2, "exists", "--force", "diff", old, new, "-o", delta)
        with open(self.path("copy.st"), "wb") as file:
            file.write(b"mine")
        self.bad(2, "exists", "copy.st", "apply", delta, old, "-o", self.path("copy.st"))
        self.assertEqual(content(self.path("copy.st")), b"mine")
        self.good("diff", old, new, "-o", delta, "--force")
        self.good("apply", delta, old, "-o", self.path("copy.st"), "--force")
        self.assertEqual(content(self.path("copy.st")), content(new))
        self.assertEqual(content(old), was)

    def test_a_pipe_is_never_replaced(self):
        self.make_steps(1)
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        old, new = self.path("step0.st"), self.path("step1.st")
        self.bad(2, "exists", "no regular file", "diff", old, new, "-o", pipe, "--force")
        self.assertTrue(stat.S_ISFIFO(os.lstat(pipe).st_mode))

    def test_an_output_needs_its_directory(self):
        self.make_steps(1)
        old, new = self.path("step0.st"), self.path("step1.st")
        missing = self.path(os.path.join("nowhere", "step1.dcr"))
        self.bad(3, "not_found", "the output's directory", "diff", old, new, "-o", missing)

    def test_bad_input(self):
        self.make_steps(1)
        old, delta, out = self.path("step0.st"), self.path("step1.dcr"), self.path("out")
        self.bad(3, "not_found", "absent.st", "diff", old, self.path("absent.st"), "-o", out)
        self.bad(3, "not_found", "absent.dcr", "inspect", self.path("absent.dcr"))
        with open(self.path("text.st"), "w") as file:
            file.write("this is not a checkpoint")
        ran = run("diff", old, self.path("text.st"), "-o", out)
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertIn("text.st", ran.stderr)
        good = content(delta)
        for position in range(0, len(good), max(1, len(good) // 40)):
            broken = bytearray(good)
            broken[position] ^= 0x40
            with open(self.path("broken.dcr"), "wb") as file:
                file.write(broken)
            for arguments in (
                ("inspect", self.path("broken.dcr")),
                ("apply", self.path("broken.dcr"), old, "-o", out),
            ):
                ran = run(*arguments)
                self.assertEqual(ran.returncode, 3, f"byte {position}: {ran.stderr}{ran.stdout}")
                self.assertFalse(os.path.exists(out))
        with open(self.path("broken.dcr"), "wb") as file:
            file.write(good[:-1])
        self.assertEqual(run("inspect", self.path("broken.dcr")).returncode, 3)

    def test_a_wrong_base_is_refused_by_name(self):
        self.make_steps(1)
        old, delta = self.path("step0.st"), self.path("step1.dcr")
        other = some_tensors(random.Random(20240607))
        other["model.layers.1.w"] = tensor(self.rng, "BF16", 64, 64)
        write_safetensors(self.path("other.st"), other, {"step": "0"})
        was = content(self.path("other.st"))
        listing = self.listing()
        for where in (("-o", self.path("out.st")), ("--in-place",)):
            error = self.bad(
                3, "mismatch", "model.layers.1.w", "apply", delta, self.path("other.st"), *where
            )
            self.assertEqual(error["tensor"], "model.layers.1.w")
            self.assertEqual(self.listing(), listing)
            self.assertEqual(content(self.path("other.st")), was)
        error = self.bad(
            3, "mismatch", "already", "apply", delta, self.path("step1.st"), "-o", self.path("out")
        )
        self.good("apply", delta, old, "-o", self.path("out"))

    def test_a_full_disk(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        self.make_steps(1)
        small = self.path("small")
        os.mkdir(small)
        mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small]
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            self.skipTest("this machine does not let root mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", small], check=True)
        out = os.path.join(small, "copy.st")
        self.bad(
            4, "io", "No space left", "apply", self.path("step1.dcr"), self.path("step0.st"), "-o",
            out,
        )  # fmt: skip
        self.assertEqual(os.listdir(small), [])

    def test_a_file_size_limit_is_an_io_error(self):
        self.make_steps(1)
        listing = self.listing()
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))}
        for arguments in (
            ("apply", self.path("step1.dcr"), self.path("step0.st")),
            ("diff", self.path("step0.st"), self.path("step1.st")),
        ):
            ran = run(*arguments, "-o", self.path("out"), **limit)
            self.assertEqual(ran.returncode, 4, ran.stderr)
            self.assertIn("File too large", ran.stderr)
            self.assertEqual(self.listing(), listing)

    def test_a_result_that_cannot_be_printed(self):
        self.make_steps(1)
        for extra in ([], ["--json"]):
            with open("/dev/full", "w") as full:
                ran = subprocess.run(
                    [DCR, "inspect", self.path("step1.dcr"), *extra],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                )
            self.assertEqual(ran.returncode, 4)
            self.assertIn("cannot write the result", ran.stderr)


class LongRunsTest(DcrTest):
    """On sparse files that take long to read, so that there is time to interfere."""

    def start_diff(self):
        """Starts a diff and waits until its unfinished output exists."""
        write_huge(self.path("old.st"))
        write_huge(self.path("new.st"), 1)
        self.inputs = self.listing()
        process = subprocess.Popen(
            [DCR, "diff", self.path("old.st"), self.path("new.st"), "-o", self.path("d.dcr")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + ENDLESS_SECONDS
        while self.listing() == self.inputs:
            self.assertIsNone(process.poll(), "ended before it could be stopped")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertNotIn("d.dcr", self.listing(), "an output appears complete or not at all")
        return process

    def check_stopped(self, process, words):
        out, err = process.communicate(timeout=ENDLESS_SECONDS)
        self.assertEqual(process.returncode, 4, err)
        self.assertEqual(out, "")
        self.assertIn(words, err)
        self.assertEqual(self.listing(), self.inputs, "nothing unfinished is left")

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                process = self.start_diff()
                process.send_signal(number)
                process.send_signal(number)  # as timeout(1) does
                self.check_stopped(process, f"stopped by {number.name}")

    def test_a_file_that_shrinks_while_it_is_read(self):
        process = self.start_diff()
        os.truncate(self.path("new.st"), 1 << 20)
        self.check_stopped(process, "new.st")


class ProgressTest(DcrTest):
    def test_plain_lines_when_not_on_a_terminal(self):
        self.make_steps(1)
        arguments = ("verify", self.path("step0.st"), self.path("step0.st"))
        ran = run(*arguments)
        self.assertEqual(ran.returncode, 0)
        self.assertRegex(ran.stderr, r"^verify: 2.\.. kB of 2.\.. kB \(100 %\), [^\r\n]*/s\n$")
        self.assertEqual(run(*arguments, "--json").stderr, "")

    def test_one_rewritten_line_on_a_terminal(self):
        self.make_steps(1)
        for extra in ([], ["--json"]):
            master, terminal = pty.openpty()
            ran = subprocess.run(
                [DCR, "verify", self.path("step0.st"), self.path("step0.st"), *extra],
                stdout=subprocess.PIPE,
                stderr=terminal,
                check=False,
            )
            os.close(terminal)
            shown = b""
            try:
                while read := os.read(master, 10_000):  # of what was written, some at a time
                    shown += read
            except OSError as ended:  # as Linux says that the terminal is closed
                self.assertEqual(ended.errno, errno.EIO)
            os.close(master)
            shown = shown.decode()
            self.assertEqual(ran.returncode, 0)
            self.assertRegex(shown, r"^\rverify: .* of 2.\.. kB \(\d+ %\)")
            self.assertNotIn("\n", shown)
            self.assertRegex(shown, r"\r +\r$", "the line is cleared at the end")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} PATH_OF_DCR [unittest arguments]")
    DCR = os.path.abspath(sys.argv.pop(1))
    unittest.main()
