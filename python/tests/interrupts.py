"""Ctrl-C in the middle of a call."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest


def interrupted_after(seconds: float, call: Callable[[], object]) -> float:
    """Seconds from SIGINT to KeyboardInterrupt.

    Whatever starts the tests may ignore SIGINT, as shells do for what runs in the background.
    """
    sent = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, send)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.monotonic() - sent[0]
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)
