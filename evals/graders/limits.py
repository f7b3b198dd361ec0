"""A time limit on a piece of grading that may never return.

math_verify hands text to a computer-algebra system, which can run for hours on a hostile reply. What this
catches: such a reply, in the main thread of Linux and macOS, where an alarm can interrupt it. What it cannot
catch: the same in another thread, where no alarm can be set; there the call runs without a limit.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class OutOfTime(Exception):
    """The time limit was reached."""


@contextmanager
def seconds(limit: float) -> Iterator[None]:
    """Raise ``OutOfTime`` inside the block after ``limit`` seconds; an outer alarm is put back afterwards."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(f"no result within {limit:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)
