"""What type checkers see."""

import subprocess
import sys
from pathlib import Path

import dcr
import pytest

ROOT = Path(__file__).parents[2]
# As the package is checked otherwise, so that what is kept of that serves: most of the time goes
# into torch's types.
MYPY = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"),
        "--cache-dir", str(ROOT / "build/mypy")]


def test_mypy_is_content_with_the_package(tmp_path: Path) -> None:
    """The package as it is installed, stubs of the core included, and code that uses it."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    pytest.importorskip("torch", reason="torch, whose types dcr.torch uses, is not installed")
    assert dcr.__file__ is not None
    package = Path(dcr.__file__).parent
    assert (package / "py.typed").exists() and (package / "_core.pyi").exists()
    use = tmp_path / "use.py"
    use.write_text(
        "import numpy as np\n"
        "import dcr\n"
        "made: dcr.DiffResult = dcr.diff('a', {'w': np.zeros(3)}, 'd', threads=2)\n"
        "names: list[str] = made.added\n"
        "items: dict[str, int] = made.encodings\n"
        "reveal_type(dcr.apply(['d'], 'a', 'b'))\n"
        "reveal_type(dcr.apply('d', {'w': np.zeros(3)}))\n"
        "dcr.diff('a', 'b', 'd', thread=2)\n"
        "dcr.apply_in_place('d', 'a').tensors = 3\n"
    )
    ran = subprocess.run([*MYPY, "-p", "dcr"], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
    ran = subprocess.run([*MYPY, use.name], capture_output=True, text=True, cwd=tmp_path)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("use.py:")]
    assert [line.split(":")[1] for line in lines] == ["6", "7", "8", "9"]
    assert 'Revealed type is "dcr._core.ApplyResult"' in lines[0]
    assert 'Revealed type is "dict[str, Any]"' in lines[1].replace("builtins.", "")
    assert 'Unexpected keyword argument "thread" for "diff"' in lines[2]
    assert "read-only" in lines[3]


def test_all_that_is_public_has_words() -> None:
    for name in dcr.__all__:
        value = getattr(dcr, name)
        if name != "format_version":
            assert value.__doc__ and len(value.__doc__) > 10, name
    for name in dcr.errors.__all__:
        assert getattr(dcr.errors, name).__doc__, name
