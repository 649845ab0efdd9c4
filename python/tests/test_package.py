"""The package as it is installed."""

import re
import subprocess
import sys
from pathlib import Path

import dcr


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
