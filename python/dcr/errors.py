"""What the functions of this package raise: one exception for each of the core's error codes.

`Error` is the base of all of them. The class says what the caller can do, the message names what
failed (the tensor, the file, the field).
"""

from typing import ClassVar

__all__ = [
    "Cancelled",
    "Conflict",
    "Corrupt",
    "Error",
    "Exists",
    "InternalError",
    "InvalidArgument",
    "IoError",
    "LostLeadership",
    "Mismatch",
    "NotFound",
    "TooLarge",
    "Unavailable",
    "UnknownOutcome",
    "Unsupported",
]


class Error(Exception):
    """The base of every error of DCR.

    `code` is the stable lower-case word of the error ("corrupt", "too_large"), the same that the
    program's `--json` prints. `tensor` is the name of the tensor that the error is about, or "".
    """

    code: ClassVar[str] = ""
    tensor: str

    def __init__(self, message: str, tensor: str = "") -> None:
        super().__init__(message)
        self.tensor = tensor


class InvalidArgument(Error, ValueError):
    """The caller's words are wrong: a usage error."""

    code = "invalid_argument"


class Corrupt(Error):
    """Bytes from outside break the format."""

    code = "corrupt"


class TooLarge(Error):
    """Bytes from outside exceed a limit."""

    code = "too_large"


class Unsupported(Error):
    """A version, coding, dtype or encoding that this build does not know."""

    code = "unsupported"


class Mismatch(Error):
    """Two valid things that do not belong together, such as a delta and another base than its."""

    code = "mismatch"


class Exists(Error):
    """An output exists and may not be replaced."""

    code = "exists"


class NotFound(Error):
    """An input does not exist."""

    code = "not_found"


class IoError(Error):
    """The operating system refused: a full disk, a short read, a permission."""

    code = "io"


class Cancelled(Error):
    """Another part of the program asked the work to stop. Ctrl-C raises KeyboardInterrupt."""

    code = "cancelled"


class Conflict(Error):
    """A shared record or object is not, or no longer, as expected: read it again."""

    code = "conflict"


class LostLeadership(Error):
    """Another coordinator leads now."""

    code = "lost_leadership"


class UnknownOutcome(Error):
    """It may have been done or not: repeat it, or read what became of it."""

    code = "unknown_outcome"


class Unavailable(Error):
    """A shared store does not answer; nothing was changed: wait and repeat."""

    code = "unavailable"


class InternalError(Error):
    """A check of DCR's own failed: a bug worth reporting."""

    code = "internal"


def _classes() -> dict[str, type[Error]]:
    """The exception of each code. The core asks for it when it first raises one."""
    return {error.code: error for error in Error.__subclasses__() if error.__module__ == __name__}
