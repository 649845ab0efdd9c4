"""The functions of `dcr` on deltas: typed faces of the core's."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, overload

from dcr import _core
from dcr._core import ApplyResult, DiffResult, InspectResult, Progress, VerifyResult

Path: TypeAlias = str | os.PathLike[str]
# A state dict: tensors by name. NumPy arrays (of ml_dtypes' types too), or whatever has DLPack and
# lies in host memory, such as torch's CPU tensors.
State: TypeAlias = Mapping[str, Any]
# A checkpoint to read: the path of a .safetensors file or of a Hugging Face directory, or a state
# dict.
Source: TypeAlias = Path | State
OnProgress: TypeAlias = Callable[[Progress], object]

_MEMORY_BYTES_MAX = 1 << 30

# What NumPy, or ml_dtypes, and torch call the dtypes of the safetensors format. Dtypes of several
# elements a byte stay bytes.
_NUMPY_NAMES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
_ML_DTYPES_NAMES = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def _source(source: Source) -> object:
    """What the core takes: a string or a dictionary."""
    if isinstance(source, Mapping):
        return dict(source)
    return os.fspath(source)


def _paths(paths: Path | Sequence[Path]) -> list[str]:
    if isinstance(paths, str | os.PathLike):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


def _dtypes(dtypes: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if dtypes is None else dict(dtypes)


def diff(
    before: Source,
    after: Source,
    output: Path,
    *,
    dtypes: Mapping[str, str] | None = None,
    memory_bytes_max: int = _MEMORY_BYTES_MAX,
    threads: int = 0,
    force: bool = False,
    progress: OnProgress | None = None,
) -> DiffResult:
    """Writes the exact difference of two checkpoints into the delta file `output`.

    The delta appears under its name complete and synced, or not at all, and depends on nothing but
    the two checkpoints. Arrays must not change during the call; those that are not contiguous are
    copied first.

    `dtypes` names dtypes of tensors in state dicts, in the safetensors spelling ("BF16",
    "F8_E4M3"), where they come as unsigned integers of that width. `memory_bytes_max` bounds the
    working memory (bytes, at least 256 MiB), `threads` is how many work (0: one per processor),
    `force` replaces an output that exists. `progress` is called on this thread with
    `dcr.Progress`; what it raises ends the call and is raised. Ctrl-C raises KeyboardInterrupt.

    Raises `dcr.errors.Exists`, `NotFound`, `Corrupt`, `TooLarge`, `Unsupported` (a dtype, or what
    is no array in host memory), `InvalidArgument`, `IoError`.
    """
    keywords = _core.Keywords(memory_bytes_max, threads, force, progress)
    return _core.diff(
        _source(before), _source(after), os.fspath(output), _dtypes(dtypes), keywords
    )


@overload
def apply(
    deltas: Path | Sequence[Path],
    base: Path,
    output: Path,
    *,
    memory_bytes_max: int = ...,
    threads: int = ...,
    force: bool = ...,
    progress: OnProgress | None = ...,
) -> ApplyResult: ...


@overload
def apply(
    deltas: Path | Sequence[Path],
    base: Source,
    *,
    dtypes: Mapping[str, str] | None = ...,
    memory_bytes_max: int = ...,
    threads: int = ...,
    progress: OnProgress | None = ...,
) -> dict[str, Any]: ...


def apply(
    deltas: Path | Sequence[Path],
    base: Source,
    output: Path | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
    memory_bytes_max: int = _MEMORY_BYTES_MAX,
    threads: int = 0,
    force: bool = False,
    progress: OnProgress | None = None,
) -> ApplyResult | dict[str, Any]:
    """Applies a delta, or a chain of them, to `base` and makes something new of it.

    With `output`, `base` is a path; the result is written there, complete and synced or not at all.
    Without it the result is a dictionary of new arrays. Each is of the kind of the base's
    array of that name; tensors that the base does not have, or a base that is a path, give tensors
    of torch if the base has any, else NumPy arrays: BF16 and FP8 of ml_dtypes' types if that is
    installed, else as unsigned integers. Metadata and files other than weights are passed over.

    All deltas are checked whole before anything is made; the base is checked while it is read, and
    every tensor of the result before it is returned. Keywords are those of `diff`.

    Raises `dcr.errors.Mismatch` naming the first tensor that is not the delta's base, or saying
    that the base is at the target already; `Corrupt`; and those of `diff`.
    """
    keywords = _core.Keywords(memory_bytes_max, threads, force, progress)
    if output is not None:
        if isinstance(base, Mapping):
            raise TypeError("a state dict is applied into new arrays or in place, not to a path")
        return _core.apply(_paths(deltas), os.fspath(base), os.fspath(output), keywords)
    made = _core.apply_to_arrays(_paths(deltas), _source(base), _dtypes(dtypes), keywords)
    samples: State = base if isinstance(base, Mapping) else {}
    torch = _torch_of(samples)
    given = dtypes or {}
    return {
        name: _array(words, dtype, samples.get(name), name in given, torch)
        for name, (words, dtype) in made.items()
    }


def apply_in_place(
    deltas: Path | Sequence[Path],
    base: Source,
    *,
    dtypes: Mapping[str, str] | None = None,
    memory_bytes_max: int = _MEMORY_BYTES_MAX,
    threads: int = 0,
    progress: OnProgress | None = None,
) -> ApplyResult:
    """Applies a delta, or a chain of them, into `base` itself.

    A checkpoint on disk is changed through a journal: a crash or power loss at any point is
    completed by the same call again, and a base at the target already is left as it is.

    Arrays of a state dict are changed whole or not at all: all bits of the base, and those that
    come out, are checked before the first write. The writing, whose work grows with what changed,
    is not interrupted by Ctrl-C, which then raises after it; it reads the deltas once more, and
    only if that fails (`IoError`) is a part changed. Arrays have to be contiguous and writable.
    Tied tensors (all of their memory shared) are changed once. Keywords are those of `diff`.

    Raises as `apply` does; also `dcr.errors.Mismatch` if the deltas add or remove tensors of a
    state dict, or give them another dtype or shape.
    """
    keywords = _core.Keywords(memory_bytes_max, threads, False, progress)
    return _core.apply_in_place(_paths(deltas), _source(base), _dtypes(dtypes), keywords)


def verify(
    a: Source,
    b: Source,
    *,
    files: bool = False,
    dtypes: Mapping[str, str] | None = None,
    memory_bytes_max: int = _MEMORY_BYTES_MAX,
    threads: int = 0,
    progress: OnProgress | None = None,
) -> VerifyResult:
    """Compares two checkpoints: names, dtypes, shapes, and every bit of every tensor.

    Differences are no error: `VerifyResult.differing` counts them. Where both are on disk their
    metadata is compared, and with `files` the other files too, and safetensors headers byte by
    byte. Other keywords are those of `diff`.
    """
    keywords = _core.Keywords(memory_bytes_max, threads, False, progress)
    return _core.verify(_source(a), _source(b), files, _dtypes(dtypes), keywords)


def inspect(
    delta: Path,
    *,
    memory_bytes_max: int = _MEMORY_BYTES_MAX,
    threads: int = 0,
    progress: OnProgress | None = None,
) -> InspectResult:
    """Reads and validates a delta whole and says what is in it. Keywords are those of `diff`.

    Raises `dcr.errors.Corrupt`, `TooLarge`, `Unsupported`, `NotFound`, `IoError`.
    """
    keywords = _core.Keywords(memory_bytes_max, threads, False, progress)
    return _core.inspect(os.fspath(delta), keywords)


def _torch_of(state: State) -> Any:
    """The module torch, if any of the values is a tensor of it."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in state.values()):
        return torch
    return None


def _array(words: Any, dtype: str, sample: Any, is_words: bool, torch: Any) -> Any:
    """`words`, unsigned integers with a tensor's bits, as an array of its dtype; as they are where
    the caller has them so too."""
    words = words.view(f"u{words.itemsize}")  # the core's uint64 may be C's unsigned long long
    if torch is not None and not isinstance(sample, type(words)):
        tensor = torch.from_numpy(words)
        name = _NUMPY_NAMES.get(dtype) or _ML_DTYPES_NAMES.get(dtype)
        return tensor if is_words or name is None else tensor.view(getattr(torch, name))
    if is_words:
        return words
    if dtype in _NUMPY_NAMES:
        return words.view(_NUMPY_NAMES[dtype])
    if dtype in _ML_DTYPES_NAMES:
        try:
            import ml_dtypes
        except ImportError:
            return words
        return words.view(getattr(ml_dtypes, _ML_DTYPES_NAMES[dtype]))
    return words
