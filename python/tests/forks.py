"""Handles of this process in a child of it."""

import os
import traceback
from collections.abc import Callable, Sequence

import pytest


def refused_in_child(calls: Sequence[Callable[[], object]]) -> int:
    """How many of the calls, from the first on, a forked child is refused for what it calls was
    made in another process."""
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for call in calls:
                with pytest.raises(RuntimeError, match="made in another process"):
                    call()
                refused += 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
