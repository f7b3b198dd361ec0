"""The standard streams: closed ones are opened on nothing, and a reader that goes away ends no work.

What this catches: a command started with ``>&-`` (the next file that is opened would become its stdout), a
pipe whose reader is gone, a full disk behind stdout. What it cannot catch: what native code writes to file
descriptors by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO


def open_closed() -> None:
    """Open what was closed when the process started, before any file takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def silence(stream: IO[str]) -> None:
    """What is still to be written to ``stream`` goes nowhere, and nobody complains at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # no file behind it
        return


def try_to(show: Callable[[], object]) -> None:
    """Show something on stdout; if nobody reads it any more, the work goes on in silence."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def say(line: str, stream: IO[str] | None = None) -> None:
    """One line on stderr, or nowhere if nobody reads it."""
    stream = stream or sys.stderr
    try:
        print(line, file=stream, flush=True)
    except OSError:
        silence(stream)
