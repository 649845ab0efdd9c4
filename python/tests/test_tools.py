"""The programs that measure, at sizes that take moments: their figures' names and counts, not their
figures."""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("vllm", reason="vllm is not installed")

import torch  # noqa: E402

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a tool prints; `sizes` are constants of its module."""
    monkeypatch.syspath_prepend(str(TOOLS))
    threads = torch.get_num_threads()

    def run(tool: str, *words: str, **sizes: int) -> str:
        module = import_module(tool)
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)
        monkeypatch.setattr(sys, "argv", [tool, *words])
        module.main()
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("words", "skipped"), [((), 0), (("--expert-parallel",), 288)])
def test_trace_time(said: Any, words: tuple[str, ...], skipped: int) -> None:
    """One layer, of which a rank has all experts in part, or a quarter of them."""
    out = said("trace_time", *words, LAYERS=1)
    skips = f"{skipped} skip, " if skipped else ""
    assert f"396 names: {skips}{396 - skipped} traced" in out, out
    for stage in ("targets", "trace", "classify", "coverage"):
        assert re.search(rf"^{stage} ", out, re.MULTILINE), out


def test_application_time(said: Any) -> None:
    sizes = {"HIDDEN": 256, "HEADS": 8, "KV_HEADS": 4, "HEAD": 32, "INNER": 512}
    words = ("--layers", "1", "--vocabulary", "512", "--rounds", "1", "--threads", "1")
    out = said("application_time", *words, **sizes)
    assert "1 threads:" in out and "rank 1 of 4" in out, out
    assert len(re.findall(r"^ *ours\b", out, re.MULTILINE)) == 1, out
