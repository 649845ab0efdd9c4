#!/usr/bin/env python3
"""What is missing is named with its Debian package, which tools/setup.sh installs."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def configured(*options, **environment):
    """What CMake says, which fails."""
    with tempfile.TemporaryDirectory() as build:
        ran = subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options],
            env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert ran.returncode != 0, ran.stdout
    return " ".join(ran.stderr.split())


class DependenciesTest(unittest.TestCase):
    def test_modules_are_named(self):
        said = configured(PKG_CONFIG_LIBDIR="/nowhere", PKG_CONFIG_PATH="")
        self.assertIn("libzstd was not found: install the Debian package libzstd-dev", said)

    def test_packages_are_named(self):
        for name, package in {
            "fmt": "libfmt-dev", "GTest": "libgtest-dev", "nlohmann_json": "nlohmann-json3-dev",
        }.items():
            said = configured(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON")
            self.assertIn(f"{name} was not found: install the Debian package {package}", said)

    def test_setup_installs_what_is_named(self):
        installed = (ROOT / "tools/setup.sh").read_text().split()
        files = [ROOT / "CMakeLists.txt", *ROOT.glob("cmake/*.cmake"),
                 *ROOT.glob("*/CMakeLists.txt"), *ROOT.glob("src/*/CMakeLists.txt")]
        text = "".join(file.read_text() for file in files)
        calls = r"dcr_(?:find_package|find_module|needs)"
        named = re.findall(calls + r"\(.* \"?([a-z0-9+-]+)\"?\)", text)
        self.assertGreater(len(named), 12)
        for package in named:
            self.assertIn(package, installed)
        # Nothing is looked for without that name but what the compiler and CMake bring.
        bare = re.findall(r"^\s*(?:find_package|pkg_check_modules)\((\w+)", text, re.M)
        self.assertEqual(set(bare), {"Threads", "Python3", "Python", "nanobind"})


if __name__ == "__main__":
    unittest.main()
