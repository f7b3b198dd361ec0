"""Processes that tests start and end: which are there, is one running, does something come true in time?

Deadlines are far beyond what a loaded machine needs: they end a test that hangs, and judge nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0  # seconds


def running(pid: int) -> bool:
    """Is the process running? One that has ended and that nobody has collected (a zombie) is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Does ``condition`` become true within ``seconds``? A killed process takes a moment to be gone."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def children(parent: int, words: str = "") -> list[int]:
    """Processes that a process has started, with these words in their command line."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        found += [int(pid) for pid in task.read_text().split()]
    return [pid for pid in sorted(found) if words in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
