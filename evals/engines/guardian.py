"""Runs a server so that it never outlives the client: a small process of its own between the two.

Called by ``evals.engines.server`` as a script with one JSON argument ``{command, environment, log,
grace}``; only the standard library is imported. It prints ``pid N`` and, at the end, ``exit STATUS``. The
server ends when standard input is closed or the parent is gone, by SIGTERM to its process group and
SIGKILL after ``grace`` seconds.

What this catches: a client that is killed by -9, Ctrl-C, a crash, an interpreter exit: all close the
pipe. Children of the server in groups of their own are found too, because orphans are handed to this
process. What it cannot catch: processes that the server starts on other hosts or in other containers.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL = 0.1  # seconds between two looks
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    """Run the server until it ends or has to."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the pipe decides
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        with Path(order["log"]).open("ab") as log:
            server = subprocess.Popen(
                order["command"],
                env=order["environment"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_before_exec,
            )
    except OSError as error:
        _tell(f"failed {error.strerror}: {error.filename}")
        return 1
    _tell(f"pid {server.pid}")
    while not _ended(server.pid) and not _client_gone(parent):
        pass
    _end(server.pid, order["grace"])
    _tell(f"exit {server.wait()}")
    return 0


def _before_exec() -> None:
    """In the server, before it is one: should this process be killed, the kernel ends the server."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _tell(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:  # nobody listens any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _client_gone(parent: int) -> bool:
    """The pipe is closed or the parent another; waits ``POLL`` seconds for it."""
    readable, _, _ = select.select([0], [], [], POLL)
    return bool(readable and not os.read(0, 1)) or os.getppid() != parent


def _ended(pid: int) -> bool:
    """The server has ended; it is not reaped, so that its number still names its group."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(pid: int, grace: float) -> None:
    """SIGTERM, time to clean up, SIGKILL; then whatever was left behind."""
    if not _ended(pid):
        os.killpg(pid, signal.SIGTERM)
        limit = time.monotonic() + grace
        while not _ended(pid) and time.monotonic() < limit:
            time.sleep(POLL / 2)
    os.killpg(pid, signal.SIGKILL)
    for _ in range(50):  # orphans come to us one generation at a time
        left = [child for child in _children() if child != pid]
        if not left:
            return
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _children() -> list[int]:
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


if __name__ == "__main__":
    sys.exit(main())
