"""Every code of the core is one exception."""

import pickle
import re
from pathlib import Path

import dcr
import numpy as np
import pytest
from dcr import errors

HEADER = Path(__file__).parents[2] / "include/dcr/status.h"


def classes() -> list[type[dcr.Error]]:
    return [getattr(errors, name) for name in errors.__all__ if name != "Error"]


def test_there_is_one_for_every_code() -> None:
    """kTooLarge is too_large is TooLarge; two are longer, so as not to say what Python's say."""
    block = re.search(r"enum class Code.*?\{(.*?)\};", HEADER.read_text(), re.DOTALL)
    assert block is not None
    names = re.findall(r"^\s*k([A-Z]\w*)", block[1], re.MULTILINE)
    assert names[0] == "Ok" and len(names) == 15
    expected = {"Io": "IoError", "Internal": "InternalError"}
    codes = {}
    for name in names[1:]:
        codes[expected.get(name, name)] = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    assert {one.__name__: one.code for one in classes()} == codes


def test_they_carry_what_the_core_says() -> None:
    for one in classes():
        error = one("why", "a.weight")
        assert isinstance(error, dcr.Error) and str(error) == "why"
        assert error.tensor == "a.weight"
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is one and str(again) == "why" and again.tensor == "a.weight"
    assert issubclass(errors.InvalidArgument, ValueError)


def test_they_are_raised_by_the_code(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    with pytest.raises(errors.NotFound, match=re.escape(str(missing))) as caught:
        dcr.verify(missing, missing)
    assert caught.value.code == "not_found" and caught.value.tensor == ""
    (tmp_path / "junk.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(errors.TooLarge):
        dcr.verify(tmp_path / "junk.safetensors", missing)
    (tmp_path / "junk.dcr").write_bytes(b"\xff" * 100)
    with pytest.raises(errors.Corrupt, match="junk.dcr"):
        dcr.inspect(tmp_path / "junk.dcr")
    state = {"a": np.zeros(1)}
    with pytest.raises(errors.NotFound):
        dcr.diff(state, state, tmp_path / "no" / "d")
    with pytest.raises(errors.InvalidArgument, match="__metadata__"):
        dcr.verify({"__metadata__": np.zeros(1)}, state)
    with pytest.raises(errors.InvalidArgument, match="no delta"):
        dcr.apply([], state)
