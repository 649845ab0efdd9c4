#!/usr/bin/env python3
"""The shared object of the CUDA kernels: what it shows, what it needs, what it was compiled for.

    tests/device_library_test.py LIBRARY
"""

import shutil
import subprocess
import sys
import unittest


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class DeviceLibraryTest(unittest.TestCase):
    library = ""

    def test_one_symbol(self):
        symbols = output("nm", "-D", "--defined-only", self.library).split("\n")
        self.assertEqual([line.split()[-1] for line in symbols if line], ["dcr_open_device"])

    def test_needs_no_cuda(self):
        needed = [line for line in output("readelf", "-d", self.library).split("\n")
                  if "(NEEDED)" in line]
        self.assertGreater(len(needed), 0)
        for line in needed:
            self.assertNotRegex(line, "cuda|nvidia")

    def test_machine_code(self):
        with open(self.library, "rb") as library:
            content = library.read()
        # What the assembler notes in each kernel's object file.
        for architecture in (b"sm_80", b"sm_90", b"sm_100"):
            self.assertRegex(content, rb"-arch " + architecture + rb"\b")

    def test_architectures(self):
        tool = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
        if tool is None:
            self.skipTest("no cuobjdump")
        code = output(tool, "--list-elf", self.library)
        for architecture in ("sm_80", "sm_90", "sm_100"):
            self.assertIn(f"{architecture}.cubin", code)
        self.assertIn("sm_100.ptx", output(tool, "--list-ptx", self.library))


if __name__ == "__main__":
    DeviceLibraryTest.library = sys.argv.pop(1)
    unittest.main()
