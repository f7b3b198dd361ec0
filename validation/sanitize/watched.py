"""One process under one tool (or under none): started, limited in time, ended with its children, read.

What this catches: a tool or program that hangs, is killed, ends early, or leaves no summary; each is a doubt,
never a pass. What it cannot catch: children that leave the process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from validation.execution.process import environment
from validation.report.plain import dump_line
from validation.sanitize.log import Log, parse
from validation.sanitize.subject import Answer, Job, read_answers
from validation.sanitize.tools import Tool, command

PROGRAM = (sys.executable, "-P", "-m", "validation.sanitize.subject")
PLANTED = 90.0  # seconds of a planted fault; a barrier that some threads pass by may hang
PORTS = range(49152, 65000, 16)  # the tool takes up to ten from its first on


@dataclass
class Watched:
    """What came of one process, or of several that shared a job.

    ``ending``: ``done``; ``spoiled`` (a case left the device of no use) and ``crashed`` (a case ended the
    process), after which another process goes on; ``lost`` (time, or the tool itself). ``doubts``: why the
    absence of reports proves nothing.
    """

    tool: Tool | None
    asked: list[str]
    answers: list[Answer]
    log: Log
    doubts: list[str] = field(default_factory=list)
    ending: str = "done"

    @property
    def left(self) -> list[str]:
        """Cases that were not answered."""
        return self.asked[len(self.answers) :]


class Watch:
    """Starts processes in a folder of their own files; ``close`` ends those that still run."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        limit: float,
        device: str = "cuda",
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.binary, self.folder, self.limit, self.device = binary, folder, limit, device
        self.program = program
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._number = 0
        self._closed = False

    def run(self, tool: Tool | None, job: Job, name: str, alone: bool = False) -> Watched:
        """Do a job under a tool, in one process more than there are cases that spoil the device or crash."""
        asked = [job.planted] if job.planted else list(job.cases)
        whole = Watched(tool, asked, [], Log(counted=0))
        while True:
            part = self._once(tool, replace(job, cases=whole.left if job.cases else []), name, alone)
            whole.answers += part.answers
            if part.ending == "crashed":
                whole.answers.append(Answer(whole.left[0], error=part.doubts[0]))
            add(whole.log, part.log)
            if part.ending not in ("crashed", "spoiled"):
                whole.doubts, whole.ending = part.doubts, part.ending
                return whole
            if not whole.left:
                return whole

    def close(self) -> None:
        """End every process, and start no more."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            _kill(process)

    def _once(self, tool: Tool | None, job: Job, name: str, alone: bool) -> Watched:
        stem, port = self._next(name)
        job = replace(job, answers=str(stem.with_suffix(".answers")), device=self.device, parent=os.getpid())
        task = stem.with_suffix(".job")
        task.write_text(dump_line(job), encoding="utf-8")
        log = stem.with_suffix(".log")
        words = [*self.program, str(task)]
        if tool:
            words = [*command(self.binary, tool, str(log), port, alone), *words]
        limit = min(self.limit, PLANTED) if job.planted else self.limit
        status = self._ended(words, stem.with_suffix(".out"), limit)
        text = log.read_text("utf-8", errors="replace") if log.exists() else ""
        result = Watched(tool, [job.planted] if job.planted else job.cases, read_answers(Path(job.answers)),
                         parse(text) if tool else Log(counted=0))  # fmt: skip
        judge_ending(result, status, limit, stem.with_suffix(".out"))
        return result

    def _next(self, name: str) -> tuple[Path, int]:
        with self._lock:
            self._number += 1
            return self.folder / f"{self._number:03}-{name}", PORTS[self._number % len(PORTS)]

    def _ended(self, words: Sequence[str], output: Path, limit: float) -> int | None:
        """Exit status; None where the limit passed and the process was killed."""
        env = environment(self.device) | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        with output.open("wb") as file, self._lock:
            if self._closed:
                return -signal.SIGKILL
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True
            )
            self._running.add(process)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)
            with self._lock:
                self._running.discard(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and every process of its group: a killed tool leaves its program behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge_ending(result: Watched, status: int | None, limit: float, output: Path) -> None:
    """Fill ``ending`` and ``doubts`` from the exit status (None: killed after ``limit`` seconds)."""
    who = result.tool.name if result.tool else "the program without a tool"
    done = f"after {len(result.answers)} of {len(result.asked)}"
    if status is None:
        result.ending, result.doubts = "lost", [f"{who}: no end within {limit:g} s, killed {done}"]
    elif not result.left:
        result.doubts = [f"{who}: {doubt}" for doubt in result.log.doubts()]
        result.ending = "lost" if result.doubts else "done"
    elif result.answers and result.answers[-1].error:
        result.ending = "spoiled"
    else:
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        said = [f"{who}: ended with {ended} {done}{_last_words(output)}", *result.log.doubts()]
        result.ending, result.doubts = "crashed" if result.answers else "lost", said


def _last_words(output: Path) -> str:
    lines = output.read_text("utf-8", errors="replace").strip().splitlines()
    return f"; its last line: {lines[-1][:200]}" if lines else ""


def add(whole: Log, part: Log) -> None:
    whole.reports += part.reports
    whole.troubles += part.troubles
    whole.counted = None if part.counted is None else (whole.counted or 0) + part.counted
