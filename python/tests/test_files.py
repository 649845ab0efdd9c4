"""Checkpoints on disk, through the package."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import dcr
import numpy as np
import pytest
from dcr import errors
from states import assert_equal


def write_checkpoint(path: Path, state: dict[str, Any]) -> Path:
    """A Hugging Face directory with one weights file of F32 tensors."""
    path.mkdir()
    header, data = {}, b""
    for name, array in sorted(state.items()):
        bits = array.astype("<f4").tobytes()
        place = [len(data), len(data) + len(bits)]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": place}
        data += bits
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (path / "config.json").write_text('{"layers": 1}')
    return path


@pytest.fixture
def steps(tmp_path: Path) -> tuple[Path, Path]:
    random = np.random.default_rng(0)
    state = {"a.0.w": random.random((40, 50), np.float32), "b": random.random(7, np.float32)}
    old = write_checkpoint(tmp_path / "old", state)
    state["a.0.w"][3, ::4] += 1
    return old, write_checkpoint(tmp_path / "new", state)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_delta_of_files_goes_there_and_back(steps: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = steps
    delta = tmp_path / "step.dcr"
    made = dcr.diff(old, str(new), delta)
    assert (made.tensors, made.elements, made.changed) == (2, 2007, 13)
    assert made.delta_bytes == delta.stat().st_size
    applied = dcr.apply(delta, old, tmp_path / "copy")
    assert isinstance(applied, dcr.ApplyResult)
    assert applied.files == ["config.json", "model.safetensors"]
    assert contents(tmp_path / "copy") == contents(new)
    assert dcr.verify(new, tmp_path / "copy", files=True).differing == 0
    found = dcr.verify(old, new)
    assert [(one.kind, one.tensor) for one in found.differences] == [("bits", "a.0.w")]
    placed = dcr.apply_in_place([delta], old)
    assert not placed.already_target and contents(old) == contents(new)
    assert dcr.apply_in_place([delta], old).already_target


def test_files_and_state_dicts_meet(steps: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = steps
    dcr.diff(old, new, tmp_path / "d")
    state = dcr.apply(tmp_path / "d", old)
    assert state["b"].dtype == np.float32 and state["a.0.w"].shape == (40, 50)
    # A state dict has no metadata and no other files: none is missed.
    assert dcr.verify(state, new).differing == 0
    dcr.diff(new, {**state, "b": state["b"] * 2}, tmp_path / "e")
    doubled = dcr.apply(tmp_path / "e", dict(state))
    assert_equal(doubled, {**state, "b": state["b"] * 2})
    dcr.apply_in_place(tmp_path / "e", state)
    assert_equal(doubled, state)
    with pytest.raises(errors.InvalidArgument, match="no files to compare"):
        dcr.verify(state, new, files=True)
    with pytest.raises(TypeError, match="not to a path"):
        dcr.apply(tmp_path / "e", state, tmp_path / "x")  # type: ignore[call-overload]


def test_inspect_says_what_is_in_it(steps: tuple[Path, Path], tmp_path: Path) -> None:
    dcr.diff(*steps, tmp_path / "d")
    found = dcr.inspect(tmp_path / "d")
    assert found.format_version == dcr.format_version
    assert (found.tensors, found.changed, found.payloads) == (2, 13, 1)
    assert [group.name for group in found.groups] == ["a.*.w", "b"]
    assert {file.name: file.source for file in found.files} == {
        "config.json": "base", "model.safetensors": "base"}
    assert sum(stream.stored_bytes for stream in found.streams) > 0


def test_options_reach_the_core(steps: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = steps
    dcr.diff(old, new, tmp_path / "d")
    with pytest.raises(errors.Exists):
        dcr.diff(old, new, tmp_path / "d")
    dcr.diff(old, new, tmp_path / "d", force=True, threads=2, memory_bytes_max=1 << 28)
    with pytest.raises(errors.InvalidArgument, match="memory limit"):
        dcr.diff(old, new, tmp_path / "e", memory_bytes_max=1 << 20)
    for wrong in ({"threads": -1}, {"threads": 1 << 40}, {"memory_bytes_max": -1}):
        with pytest.raises(errors.InvalidArgument):
            dcr.verify(old, new, **wrong)
    with pytest.raises(TypeError, match="unexpected keyword"):
        dcr.verify(old, new, thread=1)  # type: ignore[call-arg]


def test_results_are_immutable_values(steps: tuple[Path, Path], tmp_path: Path) -> None:
    made = dcr.diff(*steps, tmp_path / "d")
    found = dcr.verify(*steps)
    for result in (made, found, dcr.inspect(tmp_path / "d"), found.differences[0]):
        with pytest.raises(AttributeError):
            result.tensors = 3  # type: ignore[misc]
        again = pickle.loads(pickle.dumps(result))
        assert again == result and repr(again) == repr(result) and again != found.elements
    assert repr(found.differences[0]) == (
        "Difference(kind='bits', tensor='a.0.w', detail='13 of 2000 elements differ, "
        "the first at index 150')")
    assert repr(made).startswith("DiffResult(tensors=2, elements=2007, changed=13, delta_bytes=")
