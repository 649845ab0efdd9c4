"""The snippets of docs/PYTHON.md, run as they stand there, one after another in one directory."""

import re
from pathlib import Path

import pytest
from test_files import steps  # noqa: F401  (the snippets' checkpoints)

DOCS = Path(__file__).parents[2] / "docs/PYTHON.md"


def test_snippets_run(
    steps: tuple[Path, Path],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps[0].rename(tmp_path / "step0")
    steps[1].rename(tmp_path / "step1")
    monkeypatch.chdir(tmp_path)
    text = DOCS.read_text()
    snippets = re.findall(r"<!-- run -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == text.count("<!-- run -->\n") == 3
    for snippet in snippets:
        exec(compile(snippet, str(DOCS), "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("13 of 2007 in ")
    assert "GroupInfo(name='a.*.w', tensors=1" in printed
    assert 'not_found - ' in printed and "nowhere" in printed


def test_snippets_with_torch_run() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    text = DOCS.read_text()
    snippets = re.findall(r"<!-- run with torch -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == text.count("<!-- run with torch -->\n") == 1
    assert text.count("```python") == text.count("<!-- run")
    for snippet in snippets:
        exec(compile(snippet, str(DOCS), "exec"), {})
