"""The package as it is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import dcr
import dcr._core
import pytest


def test_format_version() -> None:
    assert dcr.format_version == 0


def test_what_needs_torch_is_skipped_without_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import pytest;"
        "sys.exit(pytest.main(['--collect-only', '-q', '-rs', sys.argv[1]]))"
    )
    tests = Path(__file__).parent
    ended = subprocess.run(
        [sys.executable, "-c", code, tests], capture_output=True, text=True, cwd=tests.parents[1]
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "test_files.py::" in ended.stdout
    assert re.search(r"test_run\.py:\d+: needs torch$", ended.stdout, re.MULTILINE)


def test_the_core_shows_its_entry_point_alone_and_needs_the_systems_libraries() -> None:
    core = dcr._core.__file__

    def lines(*command: str) -> list[str]:
        ran = subprocess.run([*command, core], capture_output=True, text=True, check=True)
        return ran.stdout.splitlines()

    # Weak ones are of the standard library's templates.
    strong = [line.split()[1:] for line in lines("nm", "-D", "--defined-only")]
    assert [name for kind, name in strong if kind not in "WVuw"] == ["PyInit__core"]
    needed = {
        line.split("[")[1].rstrip("]").partition(".so")[0]
        for line in lines("readelf", "-d")
        if "(NEEDED)" in line
    }
    compiler = {"libstdc++", "libgcc_s", "libm", "libc", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert needed - compiler == {"libzstd", "libsodium", "libhwy", "libsqlite3", "libzmq"}


def test_the_library_of_devices_is_there_where_it_can_be_built() -> None:
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    library = Path(dcr._core.__file__).parent / "libdcr_device.so"
    if nvcc is None:
        pytest.skip("there is no nvcc")
    codes = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True)
    if "sm_100" not in codes.stdout:
        pytest.skip("nvcc is older than CUDA 12.8")
    assert library.is_file()
