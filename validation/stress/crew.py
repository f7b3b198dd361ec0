"""All ranks of a run as processes, seen from the parent: start, order, listen, and end them.

    with Crew(ranks=2, lanes=2, device="cpu") as crew:
        outcome = crew.run(job)

Every wait has an end: a rank that dies, that reports a wait which ran out, or that does not answer in time
ends the run on all ranks, and the watchdog's words name the culprit.

What this catches: ranks that end, hang or refuse. What it cannot catch: a machine that stops altogether.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from validation.errors import UserError
from validation.execution.child import Child
from validation.execution.process import environment
from validation.report.plain import from_plain, to_plain
from validation.stress import memory
from validation.stress.job import Answer, Job, Order, Setup
from validation.stress.layout import layout
from validation.stress.outcome import Death, Outcome
from validation.stress.script import reaches
from validation.sync.kimi_k3 import subject

KERNELS = "kernels_under_test.exchanges.runner"
ENGINE = "validation.stress.engine"
START = {"cpu": 60.0, "cuda": 150.0}  # seconds until all ranks are there
FILLED = {"cpu": 30.0, "cuda": 120.0}  # until their memory is filled and, the first time, kernels compiled
SILENCE = 90.0  # seconds without a word from any rank while a run goes on
GRACE = 1.0  # seconds for the others to run into the gap that a dead rank leaves
LAST_WORDS = 12.0  # seconds to answer, once told to stop, beyond the patience of a wait
POLL = 0.005


class Lost(Exception):
    """Ranks died or do not answer. ``deaths``: how."""

    def __init__(self, deaths: list[Death]) -> None:
        super().__init__("; ".join(death.words() for death in deaths))
        self.deaths = deaths


class Rank:
    """One process: orders to it, lines from it."""

    def __init__(self, setup: Setup, env: dict[str, str], log: Path) -> None:
        self.number, self.log = setup.rank, log
        with log.open("wb") as stderr:
            self.child = Child(
                "validation.stress.rank", env, stderr, (json.dumps(to_plain(setup)),), (setup.file,)
            )

    def send(self, order: Order) -> None:
        """One order; a rank that is gone is noticed when it is listened to."""
        self.child.send(order)

    def answers(self) -> list[Answer]:
        """What has arrived."""
        return [from_plain(Answer, message) for message in self.child.receive()[0]]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.child.process

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def death(self, silent: bool = False) -> Death:
        """How it ended, or that it does not answer."""
        status = self.process.poll()
        text = self.log.read_text(errors="replace").strip().splitlines()
        return Death(self.number, None if silent else status, text[-1] if text else "")

    def end(self) -> None:
        """Kill it with what it started."""
        self.child.kill()


class Crew:
    """Ranks that run one job after another. Kept as a class for its processes and shared file."""

    def __init__(
        self,
        ranks: int,
        lanes: int,
        device: str,
        kernels: str = KERNELS,
        say: Callable[[str], None] = lambda line: None,
        engine: str = ENGINE,
    ) -> None:
        self.count, self.lanes, self.device, self.kernels = ranks, lanes, device, kernels
        self.engine = engine
        self.layout = layout(reaches(subject()), ranks, lanes)
        self.words = 0 if device == "cuda" else self.layout.words
        self.say = say
        self.members: list[Rank] = []
        self.file = -1

    def __enter__(self) -> Crew:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start every rank. Raises UserError if one refuses, ``Lost`` if one dies."""
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-stress-", ignore_cleanup_errors=True)
        self.file = memory.create(self.count, self.lanes, self.words)
        self.shared = memory.attach(self.file, self.count, self.lanes, self.words)
        env = environment(self.device) | memory.NO_MULTICAST
        for number in range(self.count):
            store = str(Path(self.folder.name) / "store")
            setup = Setup(
                number, self.count, self.lanes, self.device, self.file, store, self.kernels, self.engine
            )
            self.members.append(Rank(setup, env, Path(self.folder.name) / f"rank-{number}"))
        try:
            self.gather("ready", START[self.device])
        except Lost as lost:
            raise UserError(
                f"not all ranks started: {lost}; look for memory, drivers and other processes"
            ) from None

    def close(self) -> None:
        """End every process; the shared file goes with the last of them."""
        for rank in self.members:
            rank.end()
        self.members = []
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
            self.folder.cleanup()

    def restart(self) -> None:
        """New processes and memory, after a rank died."""
        self.close()
        self.start()

    def tell(self, order: Order) -> None:
        """The same order to every rank."""
        for rank in self.members:
            rank.send(order)

    def stop(self) -> None:
        """Tell every rank to give up what it waits for."""
        self.shared.control[:, memory.STOP] = 1

    def run(self, job: Job, harm: Callable[[Crew, int], None] | None = None) -> Outcome:
        """Run a job on all ranks and look at their memory afterwards.

        ``harm`` is called between two looks, with the steps done, by a drill that kills a rank.
        """
        outcome = Outcome(job, self.count)
        try:
            self.tell(Order("job", job))
            self.gather("ready", FILLED[self.device])
            self.tell(Order("go"))
            began = time.monotonic()
            outcome.answers, outcome.deaths = self.listen(job.patience, harm)
            outcome.seconds = time.monotonic() - began
            steps = min(answer.steps for answer in outcome.answers)
            if not outcome.deaths:
                self.tell(Order("audit", steps=steps))
                for answer in self.gather("audited", 60.0):
                    outcome.findings += [f"rank {answer.rank}: {line}" for line in answer.findings]
        except Lost as lost:
            outcome.deaths += [
                d for d in lost.deaths if d.rank not in {known.rank for known in outcome.deaths}
            ]
        outcome.places = self._places(job) if outcome.deaths else {}
        return outcome

    def gather(self, state: str, seconds: float) -> list[Answer]:
        """One answer of that state from every rank. Raises ``Lost``, or UserError where a rank refuses."""
        found: dict[int, Answer] = {}
        until = time.monotonic() + seconds
        while len(found) < self.count:
            for rank in self.members:
                for answer in rank.answers():
                    self._refused(answer)
                    if answer.state == state:
                        found[answer.rank] = answer
            missing = [rank for rank in self.members if rank.number not in found]
            if dead := [rank for rank in missing if rank.ended and not rank.answers()]:
                raise Lost([rank.death() for rank in dead])
            if time.monotonic() > until:
                raise Lost([rank.death(silent=True) for rank in missing])
            time.sleep(POLL)
        return [found[number] for number in sorted(found)]

    def _refused(self, answer: Answer) -> None:
        if answer.state == "failed" and answer.refused:
            raise UserError(f"rank {answer.rank}: {answer.message}")
        if answer.state == "failed":
            raise Lost([Death(answer.rank, None, answer.message)])

    def listen(
        self, patience: float, harm: Callable[[Crew, int], None] | None = None
    ) -> tuple[list[Answer], list[Death]]:
        """What ranks that were told to go have done, and which are gone; ends whatever happens.
        ``patience``: seconds of a wait."""
        found: dict[int, Answer] = {}
        deaths: list[Death] = []
        heard = time.monotonic()
        until, stopped, steps = float("inf"), False, 0
        while len(found) + len(deaths) < self.count:
            now = time.monotonic()
            for rank in self.members:
                for answer in rank.answers():
                    heard = now
                    steps = max(steps, answer.steps)
                    if answer.state == "failed":
                        deaths.append(Death(answer.rank, None, answer.message))
                    elif answer.state == "done":
                        found[answer.rank] = answer
                        hung = any(record[2] == 2 for record in answer.records)
                        until = min(until, now + GRACE) if hung and not stopped else until
            known = {*found, *(death.rank for death in deaths)}
            if dead := [r for r in self.members if r.number not in known and r.ended]:
                deaths += [rank.death() for rank in dead]
                until = min(until, now + GRACE) if not stopped else until
            if not stopped and (now > until or now - heard > SILENCE):
                self.stop()
                stopped, until = True, now + LAST_WORDS + patience
            elif stopped and now > until:
                late = [r for r in self.members if r.number not in known]
                deaths += [rank.death(silent=True) for rank in late]
                break
            if harm:
                harm(self, steps)
            time.sleep(POLL)
        return [found[number] for number in sorted(found)], deaths

    def _places(self, job: Job) -> dict[int, tuple[int, int]]:
        """Where each rank last was, (step, act), as shared memory shows it; on GPUs the last step it told."""
        if self.device == "cuda":
            return {n: (int(self.shared.control[n, memory.STEP]), -1) for n in range(self.count)}
        return {
            n: (int(self.shared.records[n, 0, 10]), int(self.shared.records[n, 0, 11]))
            for n in range(self.count)
        }
