"""Ctrl-C in the middle of a call."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest


_BEGIN_SECONDS = 60.0


def interrupted_after(
    seconds: float, call: Callable[[], object], begun: Callable[[], object] = lambda: True
) -> float:
    """Seconds from SIGINT to KeyboardInterrupt. It is sent once the call has begun.

    Whatever starts the tests may ignore SIGINT, as shells do for what runs in the background.
    """
    sent = []

    def send() -> None:
        until = time.monotonic() + _BEGIN_SECONDS
        while not begun() and time.monotonic() < until:
            time.sleep(0.001)
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
