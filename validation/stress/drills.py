"""Drills of the watchdog: a rank that withholds a publication, one that is killed, at places drawn anew.

What this catches: a hang or a death that does not end in a verdict in time, or with another culprit. What it
cannot catch: hangs of a kind that no drill has.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from validation.stress.job import Job
from validation.stress.outcome import HANG, Outcome

if TYPE_CHECKING:
    from validation.stress.crew import Crew

LIMIT = 30.0  # seconds until a verdict


@dataclass(frozen=True)
class Drill:
    """One trial. ``victim``: the rank to be blamed; ``right``: it was, in time, at the place of the gap."""

    kind: str
    victim: int
    seconds: float
    right: bool
    words: str


def hang(crew: Crew, job: Job, trial: int) -> Drill:
    """One rank leaves out one publication, somewhere in the second half of the job."""
    draw = random.Random(f"hang {job.seed} {trial}")
    victim, step = draw.randrange(crew.count), draw.randrange(job.steps // 2, job.steps)
    drill = replace(
        job, name=f"hang {trial}", hang=(victim, step, draw.randrange(1000)), seed=job.seed + trial
    )
    began = time.monotonic()
    outcome = crew.run(drill)
    seconds = time.monotonic() - began
    faults = outcome.faults(crew.layout)
    named = outcome.blamed(crew.layout) == victim and bool(faults) and faults[0].kind == HANG
    right = named and faults[0].step == step and seconds < LIMIT
    return Drill("hang", victim, seconds, right, _first(outcome, crew))


def kill(crew: Crew, job: Job, trial: int) -> Drill:
    """One rank is killed in the middle of its work. The crew has to be started anew afterwards."""
    draw = random.Random(f"kill {job.seed} {trial}")
    victim, after = draw.randrange(crew.count), draw.randrange(1, max(2, job.steps // 16))
    killed = [0.0]
    outcome = crew.run(replace(job, name=f"kill {trial}"), _killer(victim, after, killed))
    seconds = time.monotonic() - killed[0] if killed[0] else float("inf")
    right = outcome.blamed(crew.layout) == victim and seconds < LIMIT
    return Drill("kill", victim, seconds, right, _first(outcome, crew))


def _killer(victim: int, after: int, killed: list[float]) -> Callable[[Crew, int], None]:
    def harm(crew: Crew, steps: int) -> None:
        if steps >= after and not killed[0]:
            os.kill(crew.members[victim].process.pid, signal.SIGKILL)
            killed[0] = time.monotonic()

    return harm


def _first(outcome: Outcome, crew: Crew) -> str:
    return next(iter(outcome.failures(crew.layout)), "nothing was found")
