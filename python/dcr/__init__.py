"""DCR keeps rollout servers' weights equal, bit for bit, to a trainer's."""

from dcr import errors
from dcr._core import Progress, format_version
from dcr.errors import Error

__all__ = ["Error", "Progress", "errors", "format_version"]
