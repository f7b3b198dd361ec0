"""A server of ours: started, watched and stopped, with its log.

What this catches: a server that does not start (its last log lines are in the message), that ends in the
middle, and one that would be left behind. What it cannot catch: a server that answers its health check
and nothing else; the time limits of the requests are for that.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from evals.engines import guardian
from validation.errors import UserError

# "(EngineCore pid=1) ERROR 11-29 18:21:35 [core.py:9] " in front of a line of a log
PREFIX = re.compile(r"^(\(\S+ pid=\d+\) )?((INFO|WARNING|ERROR|DEBUG) [\d-]+ [\d:]+ (\[[^\]]*\] )?)?")
ERROR = re.compile(r"^\w[\w.]*(Error|Exception|Interrupt)\b")
SHOWN = 300  # characters of the log in a message


class Server:
    """``command`` is run in a process group of its own; ``{port}`` in it is replaced by a free port.

    ``environment`` is added to ours. ``url`` is needed only if the command has no ``{port}``. ``ready``:
    seconds until /health and /v1/models must answer; ``grace``: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        url: str = "",
        ready: float = 900.0,
        grace: float = 15.0,
    ) -> None:
        if not command:
            raise UserError("the server's command is empty; give the arm a command or a url")
        named = any("{port}" in word for word in command)
        if not named and not url:
            raise UserError("the server's command has no {port}; put {port} into it, or give the url too")
        port = str(free_port()) if named else ""
        self.command = [word.replace("{port}", port) for word in command]
        self.url = url.rstrip("/") if url else f"http://127.0.0.1:{port}"
        self.environment = dict(environment or {})
        self.log, self.ready, self.grace = Path(log), ready, grace
        self.pid = 0
        self.start_seconds = 0.0
        self._status: str | None = None
        self._guardian: subprocess.Popen[str] | None = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Server:
        """Start and wait until it is ready. UserError if it does not get so far."""
        began = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        order = {
            "command": self.command,
            "environment": {**os.environ, **self.environment},
            "log": str(self.log.resolve()),
            "grace": self.grace,
        }
        # A signal to our group (Ctrl-C) must not reach the guardian: it has to outlive us by a moment.
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._guardian.stdout is not None
        word, _, rest = self._guardian.stdout.readline().strip().partition(" ")
        if word != "pid":
            self.stop()
            raise UserError(f"the server cannot be run: {rest or 'no answer'}; correct the arm's command")
        self.pid = int(rest)
        threading.Thread(target=self._watch, args=(self._guardian,), daemon=True).start()
        self._wait_ready(began + self.ready)
        self.start_seconds = time.monotonic() - began
        return self

    def _watch(self, guard: subprocess.Popen[str]) -> None:
        """Wait for the end, in a thread: ``exit STATUS`` from the guardian, or the guardian's own end."""
        assert guard.stdout is not None
        for line in guard.stdout:
            if line.startswith("exit "):
                self._status = line.split()[1]
        if self._status is None:  # the guardian was killed, and the server with it; make sure of its group
            self._status = str(-signal.SIGKILL)
            with_group(self.pid, signal.SIGKILL)

    def _wait_ready(self, limit: float) -> None:
        while not (answers(f"{self.url}/health") and answers(f"{self.url}/v1/models")):
            if self._status is not None:
                raise UserError(f"the server did not start: {self.ended()}")
            if time.monotonic() > limit:
                self.stop()
                shown = last_lines(self.log)
                raise UserError(f"the server was not ready in {self.ready:.0f} s: {shown}; log: {self.log}")
            time.sleep(0.2)
        if self._status is not None:  # somebody else answers at that address
            raise UserError(f"the server did not start: {self.ended()}")

    def ended(self) -> str:
        """Empty while it runs; otherwise one line: how it ended, the last of its log, and where the
        log is."""
        if self._status is None:
            return ""
        status = int(self._status)
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return f"{how}; {last_lines(self.log)}; log: {self.log}"

    def stop(self) -> None:
        """End the server and all it started; waits for it. May be called again."""
        guard, self._guardian = self._guardian, None
        if guard is None:
            return
        assert guard.stdin is not None
        guard.stdin.close()
        try:
            guard.wait(self.grace + 20)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
            if self.pid:
                with_group(self.pid, signal.SIGKILL)


def with_group(pid: int, number: int) -> None:
    """Signal a process group that may be gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """A GET is answered with 200 within five seconds."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def last_lines(log: Path) -> str:
    """What a log says about the end, in one short line: its first error of the last 300 lines, and its
    last line."""
    try:
        with log.open("rb") as data:
            data.seek(0, os.SEEK_END)
            data.seek(max(0, data.tell() - 60_000))
            text = data.read().decode("utf-8", "replace")
    except OSError:
        return "no log was written"
    lines = [line for raw in text.splitlines()[-300:] if (line := PREFIX.sub("", raw.strip()).strip())]
    if not lines:
        return "the log is empty"
    errors = [line for line in lines if ERROR.match(line)]
    shown = " ... ".join(dict.fromkeys([*errors[:1], lines[-1]]))
    return f"last of its log: {shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + '...'}"
