"""Random state dicts for tests, and their bits."""

import importlib
from typing import Any

import numpy as np

# Every dtype of the safetensors format: bits of an element, and what NumPy, ml_dtypes and torch
# call it, if they have it as the format has.
DTYPES: dict[str, tuple[int, str | None, str | None, str | None]] = {
    "BOOL": (8, "bool", None, "bool"),
    "U8": (8, "uint8", None, "uint8"),
    "I8": (8, "int8", None, "int8"),
    "F8_E5M2": (8, None, "float8_e5m2", "float8_e5m2"),
    "F8_E4M3": (8, None, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E8M0": (8, None, "float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, None, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, None, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "I16": (16, "int16", None, "int16"),
    "U16": (16, "uint16", None, "uint16"),
    "F16": (16, "float16", None, "float16"),
    "BF16": (16, None, "bfloat16", "bfloat16"),
    "I32": (32, "int32", None, "int32"),
    "U32": (32, "uint32", None, "uint32"),
    "F32": (32, "float32", None, "float32"),
    "I64": (64, "int64", None, "int64"),
    "U64": (64, "uint64", None, "uint64"),
    "F64": (64, "float64", None, "float64"),
    "C64": (64, "complex64", None, "complex64"),
    "F4": (4, None, None, None),
    "F6_E2M3": (6, None, None, None),
    "F6_E3M2": (6, None, None, None),
}

KINDS = ["words", "numpy", "ml_dtypes", "torch"]
# Sizes as arrays count them; last dimensions are whole numbers of elements of every dtype.
SHAPES: list[tuple[int, ...]] = [(), (3,), (0,), (0, 3), (2, 0, 6), (5, 9), (4, 2, 12), (3000,)]


def word(dtype: str) -> np.dtype[Any]:
    """The unsigned integer that elements of the dtype are; bytes where several share one."""
    return np.dtype(f"u{max(8, DTYPES[dtype][0]) // 8}")


def random_words(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Any bits: NaN payloads, negative zeros and subnormals are among them."""
    if dtype == "BOOL":
        return random.integers(0, 2, shape, np.uint8)
    width = word(dtype)
    words = random.integers(0, 256, (*shape, width.itemsize), np.uint8).view(width).reshape(shape)
    if words.ndim > 0 and words.size > 2:
        flat = words.reshape(-1)
        flat[0] = 1 << (8 * width.itemsize - 1)  # -0.0
        flat[1] = (1 << (8 * width.itemsize)) - 1  # a NaN with all of its payload
    return words


def as_kind(words: Any, dtype: str, kind: str) -> Any:
    """The words as an array of a kind; None if that does not have the dtype."""
    _, numpy_name, ml_name, torch_name = DTYPES[dtype]
    if kind == "words":
        return words
    if kind == "numpy":
        return None if numpy_name is None else words.view(numpy_name)
    if kind == "ml_dtypes":
        types = importlib.import_module(kind)
        return None if ml_name is None else words.view(getattr(types, ml_name))
    if torch_name is None:
        return None
    torch = importlib.import_module("torch")
    return torch.from_numpy(words).view(getattr(torch, torch_name))


def random_states(seed: int, kind: str, rate: float = 0.1) -> tuple[Any, Any, dict[str, str]]:
    """A state dict, a later one, and the dtypes to name, with tensors of every dtype and shape."""
    random = np.random.default_rng(seed)
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    dtypes: dict[str, str] = {}
    for dtype in DTYPES:
        for number, shape in enumerate(SHAPES):
            if DTYPES[dtype][0] < 8 and shape == ():
                continue
            name = f"{dtype}.{number}"
            old = random_words(random, dtype, shape)
            new = np.where(random.random(shape) < rate, random_words(random, dtype, shape), old)
            new = new.astype(old.dtype, copy=False)
            value = as_kind(np.array(old), dtype, kind)
            if value is None:
                continue
            before[name], after[name] = value, as_kind(np.array(new), dtype, kind)
            if kind == "words":
                dtypes[name] = dtype
    return before, after, dtypes


def bits(value: Any) -> bytes:
    """The bytes of an array of any kind."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    torch = importlib.import_module("torch")
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def copy(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.copy() if isinstance(value, np.ndarray) else value.clone()
        for name, value in state.items()
    }


def assert_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Same names, kinds, dtypes, shapes, bits."""
    assert a.keys() == b.keys()
    for name in a:
        assert type(a[name]) is type(b[name]), name
        assert a[name].dtype == b[name].dtype, name
        assert tuple(a[name].shape) == tuple(b[name].shape), name
        assert bits(a[name]) == bits(b[name]), name
