"""State dicts: exact bits, whatever the arrays are."""

from pathlib import Path
from typing import Any

import dcr
import numpy as np
import pytest
from dcr import errors
from states import KINDS, as_kind, assert_equal, bits, copy, random_states, random_words


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param in ("ml_dtypes", "torch"):
        pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    return tmp_path / "step.dcr"


@pytest.mark.parametrize("seed", range(4))
def test_new_arrays_have_the_targets_bits(kind: str, seed: int, delta: Path) -> None:
    before, after, dtypes = random_states(seed, kind, rate=(0, 0.01, 0.3, 1)[seed])
    untouched = copy(before)
    made = dcr.diff(before, after, delta, dtypes=dtypes)
    assert made.tensors == len(before)
    assert (made.changed == 0) == (seed == 0)
    assert_equal(dcr.apply(delta, before, dtypes=dtypes), after)
    assert_equal(before, untouched)
    same = dcr.verify(after, dcr.apply(delta, before, dtypes=dtypes), dtypes=dtypes)
    assert same.differing == 0 and same.tensors == len(after)


@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_become_the_target_in_place(kind: str, threads: int, delta: Path) -> None:
    before, after, dtypes = random_states(7, kind)
    dcr.diff(before, after, delta, dtypes=dtypes, threads=threads)
    places = {name: value.__array_interface__["data"][0] for name, value in before.items()
              if isinstance(value, np.ndarray)}
    result = dcr.apply_in_place(delta, before, dtypes=dtypes, threads=threads)
    assert_equal(before, after)
    assert result.tensors == len(after) and result.changed > 0
    for name, place in places.items():
        assert before[name].__array_interface__["data"][0] == place


def test_every_kind_gives_the_same_delta(tmp_path: Path) -> None:
    """Of dtypes that all kinds have: the delta depends on the bits alone."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    random = np.random.default_rng(1)
    words = {n: (random_words(random, "BF16", (70, 3)), random_words(random, "BF16", (70, 3)))
             for n in "ab"}
    made = []
    for kind in ("words", "ml_dtypes", "torch"):
        old = {n: as_kind(w[0].copy(), "BF16", kind) for n, w in words.items()}
        new = {n: as_kind(w[1].copy(), "BF16", kind) for n, w in words.items()}
        dtypes = {"a": "BF16", "b": "BF16"} if kind == "words" else None
        dcr.diff(old, new, tmp_path / kind, dtypes=dtypes)
        made.append((tmp_path / kind).read_bytes())
    assert made[0] == made[1] == made[2]


def test_a_chain_and_files_and_arrays_mixed(tmp_path: Path) -> None:
    before, middle, dtypes = random_states(3, "words")
    _, after, _ = random_states(4, "words")
    dcr.diff(before, middle, tmp_path / "1", dtypes=dtypes)
    dcr.diff(middle, after, tmp_path / "2", dtypes=dtypes)
    chain = [tmp_path / "1", tmp_path / "2"]
    assert_equal(dcr.apply(chain, before, dtypes=dtypes), after)
    dcr.apply_in_place(chain, before, dtypes=dtypes)
    assert_equal(before, after)


def test_tensors_may_come_go_and_change_shape(kind: str, delta: Path) -> None:
    before, after, dtypes = random_states(5, kind)
    names = sorted(before)
    del after[names[0]]
    del before[names[1]]
    after[names[2]] = after[names[2]].reshape((1, *after[names[2]].shape))
    made = dcr.diff(before, after, delta, dtypes=dtypes)
    assert (made.removed, made.added, made.replaced) == ([names[0]], [names[1]], [names[2]])
    assert_equal(dcr.apply(delta, before, dtypes=dtypes), after)
    untouched = copy(before)
    with pytest.raises(errors.Mismatch, match="cannot be done in place"):
        dcr.apply_in_place(delta, before, dtypes=dtypes)
    assert_equal(before, untouched)


def test_another_base_is_refused_and_stays(kind: str, delta: Path) -> None:
    before, after, dtypes = random_states(6, kind)
    dcr.diff(before, after, delta, dtypes=dtypes)
    name = next(n for n in sorted(before) if before[n].shape and bits(before[n]))
    wrong = copy(before)
    flat = wrong[name].reshape(-1)
    flat[-1] = after[name].reshape(-1)[0] if bits(flat[-1:]) != bits(flat[:1]) else flat[-2]
    if bits(wrong[name]) == bits(before[name]):
        pytest.skip("the two words are equal")
    untouched = copy(wrong)
    for apply in (dcr.apply, dcr.apply_in_place):
        with pytest.raises(errors.Mismatch) as caught:
            apply(delta, wrong, dtypes=dtypes)
        assert caught.value.tensor == name
        assert "is not the base of" in str(caught.value) and name in str(caught.value)
    assert_equal(wrong, untouched)


def test_the_target_is_not_applied_to(delta: Path) -> None:
    before, after, dtypes = random_states(6, "words")
    dcr.diff(before, after, delta, dtypes=dtypes)
    with pytest.raises(errors.Mismatch, match="already at the target"):
        dcr.apply_in_place(delta, after, dtypes=dtypes)


def test_a_corrupt_delta_changes_nothing(delta: Path) -> None:
    before, after, dtypes = random_states(8, "words")
    dcr.diff(before, after, delta, dtypes=dtypes)
    content = bytearray(delta.read_bytes())
    content[len(content) // 3] ^= 4
    delta.write_bytes(content)
    untouched = copy(before)
    with pytest.raises(errors.Corrupt):
        dcr.apply_in_place(delta, before, dtypes=dtypes)
    assert_equal(before, untouched)


def test_what_lies_in_other_orders_is_read_in_that_of_its_indices(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int32).reshape(5, 12)
    views: dict[str, Any] = {"t": array.T, "s": array[::2, 1:], "r": array[::-1]}
    views["f"] = array.copy("F")
    plain = {name: np.ascontiguousarray(view) for name, view in views.items()}
    assert dcr.verify(views, plain).differing == 0
    new = {name: array + 1 for name, array in plain.items()}
    dcr.diff(views, new, tmp_path / "d")
    assert_equal(dcr.apply(tmp_path / "d", views), new)
    with pytest.raises(errors.InvalidArgument, match='"t" is not contiguous'):
        dcr.apply_in_place(tmp_path / "d", views)


def test_torch_tensors_of_any_kind(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    linear = torch.nn.Linear(5, 3, dtype=torch.bfloat16)
    before = dict(linear.named_parameters())  # which require gradients
    after = {name: (value + 1).detach() for name, value in before.items()}
    before["t"] = torch.arange(6).reshape(2, 3).T
    after["t"] = before["t"] * 2
    dcr.diff(before, after, tmp_path / "d")
    made = dcr.apply(tmp_path / "d", before)
    assert all(torch.equal(made[name], after[name]) for name in after)
    before["t"] = before["t"].contiguous()
    dcr.apply_in_place(tmp_path / "d", before)
    assert all(torch.equal(before[name], after[name]) for name in after)
    assert torch.equal(linear.weight, after["weight"])


def test_tied_tensors_are_changed_once(tmp_path: Path) -> None:
    old, new = np.arange(50, dtype=np.float32), np.arange(50, dtype=np.float32) * 2
    tied = old.copy()
    dcr.diff({"a": old, "b": old}, {"a": new, "b": new}, tmp_path / "d")
    dcr.apply_in_place(tmp_path / "d", {"a": tied, "b": tied})
    assert bits(tied) == bits(new)
    memory = np.arange(60, dtype=np.float32)
    with pytest.raises(errors.InvalidArgument, match="share a part of their memory"):
        dcr.apply_in_place(tmp_path / "d", {"a": memory[:50], "b": memory[10:]})


@pytest.mark.parametrize(
    ("value", "dtype", "error", "words"),
    [
        ([1, 2], None, errors.Unsupported, "is a list, neither a NumPy array"),
        (None, None, errors.Unsupported, "is a NoneType"),
        (np.array(["a"]), None, errors.Unsupported, "has the dtype <U1"),
        (np.zeros(3, "complex128"), None, errors.Unsupported, "has the dtype complex128"),
        (np.zeros(3, ">f4"), None, errors.InvalidArgument, "byte order"),
        (np.zeros(3, "u2"), "BF17", errors.InvalidArgument, "BF17"),
        (np.zeros(3, "u4"), "BF16", errors.InvalidArgument, "of U32 and cannot be taken as BF16"),
        (np.zeros(3, "f4"), "I32", errors.InvalidArgument, "cannot be taken as I32"),
        (np.zeros((2, 2), "u1"), "F6_E2M3", errors.InvalidArgument, "whole elements of F6_E2M3"),
    ],
)
def test_what_is_no_tensor_is_named(
    tmp_path: Path, value: Any, dtype: str | None, error: type[dcr.Error], words: str
) -> None:
    state = {"fine": np.zeros(2), "odd": value}
    with pytest.raises(error) as caught:
        dcr.diff(state, state, tmp_path / "d", dtypes=None if dtype is None else {"odd": dtype})
    assert words in str(caught.value) and '"odd"' in str(caught.value)
    assert caught.value.tensor == "odd"
    assert list(tmp_path.iterdir()) == []


def test_arrays_that_cannot_be_written_to_are_refused(tmp_path: Path) -> None:
    old, new = np.zeros(3), np.ones(3)
    dcr.diff({"a": old}, {"a": new}, tmp_path / "d")
    old.flags.writeable = False
    with pytest.raises(errors.InvalidArgument, match='tensor "a" is read-only'):
        dcr.apply_in_place(tmp_path / "d", {"a": old})
    assert bits(dcr.apply(tmp_path / "d", {"a": old})["a"]) == bits(new)


def test_new_arrays_own_their_memory(tmp_path: Path) -> None:
    old, new = {"a": np.zeros(1000)}, {"a": np.ones(1000)}
    dcr.diff(old, new, tmp_path / "d")
    array = dcr.apply(tmp_path / "d", old)["a"]
    view = array[10:20]
    del array
    assert (view == 1).all() and view.flags.writeable
