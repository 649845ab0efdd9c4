"""DCR keeps rollout servers' weights equal, bit for bit, to a trainer's.

    import dcr

    dcr.diff("step0", "step1", "step1.dcr")          # what changed, exactly
    dcr.apply("step1.dcr", "step0", "copy")          # copy equals step1, file for file
    dcr.apply_in_place("step1.dcr", model_state)     # or a state dict, in its own memory
    assert dcr.verify("step1", "copy").differing == 0

docs/PYTHON.md has the whole of it.
"""

from dcr import errors
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
from dcr.errors import Error

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
