"""DCR keeps rollout servers' weights equal, bit for bit, to a trainer's.

    import dcr

    dcr.diff("step0", "step1", "step1.dcr")          # what changed, exactly
    dcr.apply("step1.dcr", "step0", "copy")          # copy equals step1, file for file
    dcr.apply_in_place("step1.dcr", model_state)     # or a state dict, in its own memory
    assert dcr.verify("step1", "copy").differing == 0

docs/PYTHON.md has the whole of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dcr import errors
from dcr.errors import Error

if TYPE_CHECKING:
    from dcr._core import (
        ApplyResult,
        Difference,
        DiffResult,
        GroupInfo,
        InspectResult,
        LeftOut,
        Progress,
        StreamInfo,
        TargetFile,
        VerifyResult,
        format_version,
    )
    from dcr._delta import apply, apply_in_place, diff, inspect, verify

__all__ = [
    "ApplyResult",
    "DiffResult",
    "Difference",
    "Error",
    "GroupInfo",
    "InspectResult",
    "LeftOut",
    "Progress",
    "StreamInfo",
    "TargetFile",
    "VerifyResult",
    "apply",
    "apply_in_place",
    "diff",
    "errors",
    "format_version",
    "inspect",
    "verify",
]


def __getattr__(name: str) -> object:
    """Loads the core when something of it is first asked for: vLLM's processes import this package
    whatever they are configured for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    functions = ("apply", "apply_in_place", "diff", "inspect", "verify")
    value = getattr(import_module("dcr._delta" if name in functions else "dcr._core"), name)
    globals()[name] = value
    return value
