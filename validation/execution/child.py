"""A process of our own and the pipes to it: JSON lines in both directions, seen from both ends.

    child = Child("validation.timing.worker")       requests, replies = private_streams()
    child.send(message)                              for line in requests:
    answer = child.next(limit=180.0)                     say(replies, answer)

What this catches: output of kernels and libraries on stdout (it goes to stderr), a child that ends, one that
is silent for too long, one that outlives its parent, children of the child. What it cannot catch: a child
that writes to file descriptors it did not open, or leaves its process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import validation
from validation.report.plain import dump_line

READ = 1 << 16


def rooted(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child imports this package, wherever it runs."""
    root = str(Path(validation.__file__).parent.parent)
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [root, env.get("PYTHONPATH", "")]))}


class Child:
    """A started module, with ``words`` as its arguments and the descriptors ``files`` open. Its stdout is the
    pipe; its stderr goes to ``stderr``, or where the parent's goes."""

    def __init__(
        self,
        module: str,
        env: Mapping[str, str] | None = None,
        stderr: IO[bytes] | None = None,
        words: Sequence[str] = (),
        files: Sequence[int] = (),
    ) -> None:
        self._unread = b""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=rooted(os.environ) if env is None else dict(env),
            pass_fds=tuple(files),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)

    def send(self, message: Any) -> None:
        """Write one line; a child that is gone is noticed when its output ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write((dump_line(message) + "\n").encode())
            self.process.stdin.flush()

    def receive(self) -> tuple[list[Any], bool]:
        """Messages that have arrived, and whether the child is at its end."""
        ended = self.process.poll() is not None  # a child of it may still hold its output open
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.output, READ):
                self._unread += chunk
            ended = True
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines], ended

    def next(self, limit: float | None = None) -> Any:
        """The next message; None at the child's end. TimeoutError after ``limit`` seconds without one."""
        until = None if limit is None else time.monotonic() + limit
        while b"\n" not in self._unread:
            left = None if until is None else until - time.monotonic()
            if left is not None and (left < 0 or not select.select([self.output], [], [], left)[0]):
                raise TimeoutError
            if left is None:
                select.select([self.output], [], [])
            chunk = os.read(self.output, READ)
            if not chunk:
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """End the child and every process of its group; whoever listens to it hears the end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> int:
        """End it and close the pipes, to which nobody must listen; its exit status."""
        self.end()
        status = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        return status


def private_streams() -> tuple[IO[str], IO[str]]:
    """In the child: the pipes, off stdin and stdout, where kernels may print and read as they like."""
    requests, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, replies


def say(replies: IO[str], message: Any) -> None:
    """In the child: one line to the parent."""
    replies.write(dump_line(message) + "\n")
    replies.flush()


def die_with_parent() -> None:
    """In the child: a parent that is killed outright must not leave a hanging kernel behind (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
