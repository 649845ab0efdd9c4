"""DCR keeps rollout servers' weights equal, bit for bit, to a trainer's."""

from dcr._core import format_version

__all__ = ["format_version"]
