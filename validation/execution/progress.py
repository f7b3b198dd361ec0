"""Progress of a run on stderr: a bar with an estimate on a terminal, else a line every ten seconds.

What this catches: nothing. What it cannot do: estimate before the first case has ended.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from validation.execution.plan import Task
from validation.report.schema import CaseResult
from validation.report.words import duration
from validation.streams import say

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

INTERVAL = 10.0  # seconds between plain lines


class Estimate:
    """Seconds left, from the mean duration of the cases of each operation and provider so far."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.began = time.monotonic()
        self.left: dict[tuple[str, str], int] = defaultdict(int)
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        for task in tasks:
            self.left[task.case.op, task.provider] += 1

    def add(self, task: Task, seconds: float) -> None:
        pair = (task.case.op, task.provider)
        self.left[pair] -= 1
        self.seconds[pair].append(seconds)

    def remaining(self) -> float | None:
        """None before anything is known. Scaled by what the cases so far took on the clock."""
        known = [s for group in self.seconds.values() for s in group]
        if not known or sum(known) <= 0:
            return None
        mean = sum(known) / len(known)
        ahead = 0.0
        for pair, count in self.left.items():
            own = self.seconds[pair]
            ahead += count * (sum(own) / len(own) if own else mean)
        return ahead * (time.monotonic() - self.began) / sum(known)


class Progress:
    """How far a run is: ``add`` after each case, ``tick`` now and then, ``say`` for a line in between."""

    def __init__(self, tasks: Sequence[Task], stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stderr
        self.total, self.done, self.failed = len(tasks), 0, 0
        self.estimate = Estimate(tasks)
        self.spoke = time.monotonic()
        self.bar: Bar | None = None
        self.bar_task: TaskID | None = None
        if self.stream.isatty():
            self._start_bar()

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.bar = Bar(*columns, console=Console(file=self.stream), transient=True)
        self.bar_task = self.bar.add_task("starting", total=self.total)
        self.bar.start()

    def add(self, task: Task, result: CaseResult) -> None:
        """One more case is done."""
        self.done += 1
        self.failed += task.role == "candidate" and result.verdict == "fail"
        self.estimate.add(task, result.seconds)
        if self.bar and self.bar_task is not None:
            self.bar.update(self.bar_task, completed=self.done, description=self._state())
        self.tick()

    def tick(self) -> None:
        """Without a terminal: a line if the last one is long ago."""
        if not self.bar and self.done < self.total and time.monotonic() - self.spoke >= INTERVAL:
            self.say(f"{self.done} of {self.total} cases, {self._state()}")

    def say(self, line: str) -> None:
        """A line that stays."""
        self.spoke = time.monotonic()
        if self.bar:
            self.bar.console.print(line, highlight=False, markup=False)
        else:
            say(f"lockstep: {line}", self.stream)

    def close(self) -> None:
        if self.bar:
            self.bar.stop()

    def _state(self) -> str:
        remaining = self.estimate.remaining()
        left = "no estimate yet" if remaining is None else f"about {duration(remaining)} left"
        return f"{self.failed} failed, {left}" if self.failed else left
