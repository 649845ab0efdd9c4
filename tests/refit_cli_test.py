#!/usr/bin/env python3
"""Runs `dcr refit` on real files.

    tests/refit_cli_test.py PATH_OF_DCR [unittest arguments]
"""

import json
import os
import re
import sys
import unittest

import cli_test
from cli_test import DcrTest, run, some_tensors, step, write_checkpoint


def documented_keys(command):
    """The JSON keys of a command's table in docs/CLI.md."""
    path = os.path.join(os.path.dirname(__file__), "..", "docs", "CLI.md")
    with open(path) as file:
        table = file.read().split(f"\n`{command}`\n\n| key | meaning |\n|---|---|\n")[1]
    rows = table.split("\n\n")[0].strip().split("\n")
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}


class RefitTest(DcrTest):
    OWNERS = {
        "format": 0,
        "ranks": 2,
        "rules": [
            {"match": "model.embed.weight", "class": "vocabulary", "multiple": 8},
            {"match": "model.layers.{i}.w", "class": "row"},
            {"match": ["model.norm"], "class": "fsdp"},
            {"match": ["steps"], "class": "replicated"},
            {"match": ["mask"], "class": "fsdp"},
        ],
    }
    RECEIVERS = {
        "format": 0,
        "ranks": 3,
        "rules": [
            {"match": "model.embed.weight", "class": "vocabulary", "multiple": 48},
            {"match": "model.layers.{i}.w", "class": "fsdp"},
            {"match": "model.norm", "class": "replicated", "behaviour": "double"},
            {"match": "steps", "class": "replicated", "behaviour": "index_put"},
            {"match": "mask", "class": "replicated"},
        ],
    }

    def setUp(self):
        super().setUp()
        before = some_tensors(self.rng)
        write_checkpoint(self.path("old"), before, 2, {"config.json": b"{}"})
        write_checkpoint(self.path("new"), step(self.rng, before), 2, {"config.json": b"{}"})
        self.models = (self.path("old"), self.path("new"))
        for name, layout in (("owners", self.OWNERS), ("receivers", self.RECEIVERS)):
            with open(self.path(f"{name}.json"), "w") as file:
                json.dump(layout, file)
        owners, receivers = self.path("owners.json"), self.path("receivers.json")
        self.layouts = ("--layout", owners, "--loader", receivers)

    def test_generated_layouts(self):
        out = self.good("refit", *self.models, "--owners", "fsdp:4", "--receivers", "fused-tp:2")
        self.assertRegex(
            out.split("\n")[-2],
            r"^4 owners to 2 receivers: \d\.\d+ % of 11\.5 k elements changed, \d.* in \d+ "
            r"payloads, .* s; \d+\.\d kB equal to a dense load, .* s in all$",
        )

    def test_layout_files(self):
        before = self.listing()
        made = self.good_json("refit", *self.models, *self.layouts, "--arena", self.directory)
        self.assertEqual(self.listing(), before, "no arena is left")
        self.assertIs(made["equal"], True)
        self.assertEqual((made["owners"], made["receivers"], made["tensors"]), (2, 3, 6))
        self.assertEqual(made["paths"]["dense"], 3)
        self.assertEqual({path["tensor"] for path in made["not_traced"]}, {"model.norm", "steps"})
        self.assertGreater(made["changed"], 0)
        documented = documented_keys("refit") | {"seconds", "peak_rss_bytes"}
        self.assertEqual(set(made), documented, "docs/CLI.md and --json agree")

    def test_verify_mode(self):
        ran = run("refit", *self.models, *self.layouts, "--mode", "verify", "--json")
        self.assertEqual(ran.returncode, 1, ran.stderr)
        told = json.loads(ran.stdout)
        self.assertIs(told["equal"], False)
        self.assertGreater(told["resident_different"], 0)
        self.assertEqual(told["differing_bytes"], 0)
        self.good("refit", self.path("old"), self.path("old"), *self.layouts, "--mode", "verify")

    def test_errors(self):
        refused = {**self.RECEIVERS, "rules": [dict(rule) for rule in self.RECEIVERS["rules"]]}
        refused["rules"][0]["behaviour"] = "normalise"
        with open(self.path("receivers.json"), "w") as file:
            json.dump(refused, file)
        error = self.bad(
            3, "unsupported",
            'receiver 0: tensor "model.embed.weight" cannot be refitted exactly: ',
            "refit", *self.models, *self.layouts,
        )  # fmt: skip
        self.assertEqual(error["tensor"], "model.embed.weight")
        self.bad(2, "invalid_argument", "fsdp:0", "refit", *self.models, "--owners", "fsdp:0")
        self.bad(3, "not_found", "absent", "refit", self.path("old"), self.path("absent"))
        few = {name: one for name, one in some_tensors(self.rng).items() if name != "steps"}
        write_checkpoint(self.path("few"), few, 1, {})
        self.bad(
            3, "mismatch", "the new checkpoint has no tensor steps", "refit", self.path("old"),
            self.path("few"),
        )  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} PATH_OF_DCR [unittest arguments]")
    cli_test.DCR = os.path.abspath(sys.argv.pop(1))
    unittest.main()
