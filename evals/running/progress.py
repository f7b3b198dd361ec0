"""Progress of a comparison on stderr: a bar with an estimate on a terminal, else a line every ten seconds.

What this catches: nothing. What it cannot do: know how long replies will be; it counts replies.
"""

from __future__ import annotations

import sys
import time
from typing import IO, Any

from evals.engines.api import Request, Response
from validation.report.words import duration

INTERVAL = 10.0


class Progress:
    """One stage after another; ``advance`` has the form that engines call."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stderr
        self.bar: Any = None
        self.name, self.total, self.done, self.tokens, self.failed = "", 0, 0, 0, 0
        self.began = self.spoke = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """A new stage of ``total`` replies."""
        self.close()
        self.name, self.total, self.done, self.tokens, self.failed = name, total, 0, 0, 0
        self.began = self.spoke = time.monotonic()
        if total and self.stream.isatty():
            self._start_bar()
        elif total:
            self.say(f"{name}: {total} replies")

    def advance(self, request: Request, response: Response) -> None:
        """One more reply, or failure to reply."""
        self.done += 1
        self.tokens += len(response.token_ids)
        self.failed += not response.ok
        if self.bar:
            self.bar.update(self.task, completed=self.done, description=f"{self.name}: {self.state()}")
        elif self.done < self.total and time.monotonic() - self.spoke >= INTERVAL:
            self.say(f"{self.name}: {self.done} of {self.total} replies, {self.state()}")

    def state(self) -> str:
        """Rate and time left."""
        seconds = max(time.monotonic() - self.began, 1e-9)
        left = duration(seconds / max(self.done, 1) * (self.total - self.done))
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.tokens / seconds:,.0f} tokens/s{failed}, about {left} left"

    def say(self, line: str) -> None:
        """A line that stays."""
        self.spoke = time.monotonic()
        if self.bar:
            self.bar.console.print(line, highlight=False, markup=False)
        else:
            print(f"lockstep: {line}", file=self.stream, flush=True)

    def close(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self.bar = Bar(*columns, console=Console(file=self.stream), transient=True)
        self.task = self.bar.add_task(self.name, total=self.total)
        self.bar.start()
