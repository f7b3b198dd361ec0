"""Run cases in worker processes, so that a crash or a hang ends only itself.

    for task, result in run_isolated(tasks, settings, folder): ...

What this catches: a worker that dies (finding "crash"), one that does not answer within the limit (finding
"hang"), one that does not start (error). Both kinds of finding replace the worker and the run goes on. A
crash in a worker that had served other cases is tried again alone, to name the case that is to blame. So is a
case whose worker was killed from outside; killed again, it is a crash if the provider's function ran, else an
error. What it cannot catch: memory that a case spoiled without any later crash.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from validation.execution.plan import Settings, Task
from validation.execution.process import Worker
from validation.execution.worker import Phase, Ready, Reply, Request, Setup, failure
from validation.providers import CONTROLS
from validation.report.plain import from_plain
from validation.report.schema import CaseResult

CASE_TIMEOUT = {"cpu": 300.0, "cuda": 120.0}  # seconds; the interpreter is slow, a first launch compiles
START_TIMEOUT = 180.0
STARTS = 2  # a worker that fails to start this often in a row gives its provider up
GIVE_UP = {"hang": 3, "crash": 10}  # after so many of one operation and provider, the rest are left out
JOIN = 4  # a second worker for the same provider pays its start from this many waiting cases
TICK = 0.5

Outcome = tuple[Task, CaseResult]


def run_isolated(
    tasks: Sequence[Task], settings: Settings, share: float, folder: Path
) -> Generator[Outcome | None, None, None]:
    """Results as they come; None at least every ``TICK`` so that the caller can show progress.

    Closing the iterator, or an exception in its consumer, kills all workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    queue = Queue(tasks)
    together = _slots(settings.device, len(tasks))
    try:
        yield from _served(queue, [Slot(i, settings, share, queue, folder) for i in range(together)])
        if queue.alone:
            # Now that all others have ended: what did not fit beside them.
            rest = Queue(queue.alone)
            yield from _served(rest, [Slot(together, settings, share, rest, folder)])
    finally:
        for log in folder.glob("*.log"):
            if not log.stat().st_size:
                log.unlink()


def _served(queue: Queue, slots: list[Slot]) -> Generator[Outcome | None, None, None]:
    """Serve a queue to its end. A case that lacked memory is put aside while there is more than one slot."""
    for slot in slots:
        slot.shares_memory = len(slots) > 1
    try:
        while any([slot.advance() for slot in slots]):  # noqa: C419 - every slot must advance
            yield from queue.taken()  # before waiting
            outputs = [slot.worker.output for slot in slots if slot.worker]
            select.select(outputs, [], [], TICK)
            yield None
        yield from queue.taken()
    finally:
        for slot in slots:
            slot.close()


def _slots(device: str, tasks: int) -> int:
    """Workers at a time: two on a CPU with two cores; on a GPU three for every four cores, which compile
    and judge, up to twelve, which share its memory."""
    cores = os.cpu_count() or 1
    return max(1, min(12, cores * 3 // 4, tasks) if device == "cuda" else min(2, cores, tasks))


@dataclass
class Queue:
    """Tasks that wait, by provider, and results that have come; ``alone``: tasks that must wait for the end
    of all others."""

    tasks: Sequence[Task]
    alone: list[Task] = field(default_factory=list)
    waiting: dict[str, deque[Task]] = field(default_factory=lambda: defaultdict(deque))
    results: list[Outcome] = field(default_factory=list)
    lost: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    serving: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for task in self.tasks:
            self.waiting[task.provider].append(task)

    def taken(self) -> list[Outcome]:
        results, self.results = self.results, []
        return results

    def provider(self, now: str) -> str | None:
        """Whom a slot serves next: still ``now`` if any wait, else the provider with most to do."""
        if self.waiting[now]:
            return now
        open_ = {p: len(t) for p, t in self.waiting.items() if t and (not self.serving[p] or len(t) >= JOIN)}
        return max(open_, key=lambda p: (not self.serving[p], open_[p]), default=None)

    def next(self, provider: str) -> Task | None:
        """The next case to run; cases of a pair that was given up are answered here."""
        while self.waiting[provider]:
            task = self.waiting[provider].popleft()
            reason = self.given_up(task)
            if not reason:
                return task
            self.finish(task, _blank(task, "undecided", reason))
        return None

    def given_up(self, task: Task) -> str:
        for kind, most in GIVE_UP.items():
            if self.lost[task.case.op, task.provider, kind] >= most:
                return f"not run: {most} cases of {task.case.op} ended in a {kind} before"
        return ""

    def finish(self, task: Task, result: CaseResult) -> None:
        self.results.append((task, result))

    def fail_all(self, provider: str, note: str) -> None:
        while self.waiting[provider]:
            task = self.waiting[provider].popleft()
            self.finish(task, _blank(task, "error", note))


@dataclass(frozen=True)
class Suspect:
    """A case whose worker died, tried again alone. ``outside``: nothing the worker did explains its death."""

    task: Task
    message: str
    outside: bool


class Slot:
    """One place where a worker runs: replaces it when it dies, hangs, is spoiled, or its provider is done."""

    def __init__(self, number: int, settings: Settings, share: float, queue: Queue, folder: Path) -> None:
        self.number = number
        self.settings = settings
        self.share = share
        self.queue = queue
        self.folder = folder
        self.limit = settings.case_timeout or CASE_TIMEOUT[settings.device]
        self.worker: Worker | None = None
        self.task: Task | None = None
        self.suspect: Suspect | None = None
        self.ready = False
        self.failed_starts = 0
        self.deadline = 0.0
        self.shares_memory = False

    def advance(self) -> bool:
        """Take what has arrived, then give the worker work. False when nothing is left to do."""
        if self.worker:
            self._listen(self.worker)
        if self.worker and time.monotonic() > self.deadline and (self.task or not self.ready):
            self._hung(self.worker)
        if self.task is None and (self.worker is None or self.ready):
            self._assign()
        return self.worker is not None

    def close(self) -> None:
        if self.worker:
            self.worker.kill()
            self.queue.serving[self.worker.provider] -= 1
        self.worker, self.ready = None, False

    def _listen(self, worker: Worker) -> None:
        messages, ended = worker.receive()
        for message in messages:
            if "calling" in message:
                worker.calling = from_plain(Phase, message).calling
            elif self.ready:
                self._answered(worker, from_plain(Reply, message))
            else:
                self._started(from_plain(Ready, message))
        if ended and self.worker is worker:
            self._died(worker)

    def _started(self, ready: Ready) -> None:
        if ready.failed:
            self._start_failed(ready.failed, final=True)
            return
        self.ready, self.failed_starts = True, 0

    def _answered(self, worker: Worker, reply: Reply) -> None:
        worker.served += 1
        result = reply.result
        if self.task and self.shares_memory and lacked_memory(result):
            self.queue.alone.append(self.task)
            self.task = self.suspect = None
            self.close()
            return
        if self.suspect and self.suspect.outside:
            result.note = result.note or f"run again after {self.suspect.message}"
        elif self.suspect:
            self._exonerate(result, self.suspect.message)
        self._done(result)
        if reply.spoiled:
            self.close()

    def _exonerate(self, result: CaseResult, message: str) -> None:
        note = f"{message} (only after other cases in the same process: one of them wrote where it must not)"
        result.verdict = "fail"
        result.findings.append(failure(result, "crash", note))

    def _died(self, worker: Worker) -> None:
        message = worker.cause_of_death()
        outside = worker.killed_from_outside
        self.close()
        if self.task is None and not worker.served:
            self._start_failed(message, final=False)
        elif self.task and not self.suspect and (outside or worker.served):
            self.suspect, self.task = Suspect(self.task, message, outside), None
        elif self.task and outside and not worker.calling:
            note = f"{message}, twice, while Lockstep drew the inputs or predicted the noise"
            self._done(_blank(self.task, "error", f"{note}; free memory, or leave the case out"))
        elif self.task:
            self._lost("crash", message)

    def _hung(self, worker: Worker) -> None:
        if not self.ready:
            message = worker.cause_of_hang(START_TIMEOUT)
            self.close()
            self._start_failed(message, final=False)
            return
        message = worker.cause_of_hang(self.limit)
        self.close()
        self._lost("hang", message)

    def _lost(self, kind: str, message: str) -> None:
        assert self.task is not None
        self.queue.lost[self.task.case.op, self.task.provider, kind] += 1
        result = _blank(self.task, "fail", "")
        result.findings.append(failure(result, kind, message))
        self._done(result)

    def _done(self, result: CaseResult) -> None:
        assert self.task is not None
        self.queue.finish(self.task, result)
        self.task = self.suspect = None

    def _start_failed(self, reason: str, *, final: bool) -> None:
        provider = self.provider
        self.close()
        self.failed_starts += 1
        if final or self.failed_starts >= STARTS:
            if self.suspect:
                self.queue.waiting[provider].appendleft(self.suspect.task)
                self.suspect = None
            self.queue.fail_all(provider, f"its worker does not start: {reason}")
            self.failed_starts = 0

    def _assign(self) -> None:
        provider = self.suspect.task.provider if self.suspect else self.queue.provider(self._serving())
        if provider is None or provider != self._serving():
            self.close()
        if provider is None:
            return
        if self.worker is None:
            self._start(provider)
            return
        self.task = self.suspect.task if self.suspect else self.queue.next(provider)
        if self.task:
            self._ask(self.worker, self.task)

    def _serving(self) -> str:
        return self.worker.provider if self.worker else ""

    def _start(self, provider: str) -> None:
        self.provider = provider
        self.queue.serving[provider] += 1
        plugins = [] if provider in CONTROLS else list(self.settings.plugins)
        setup = Setup(self.settings.judge, provider, self.settings.device, plugins)
        self.worker = Worker(setup, self.folder / f"{provider}-{self.number}.log")
        self.deadline = time.monotonic() + START_TIMEOUT

    def _ask(self, worker: Worker, task: Task) -> None:
        worker.mark()
        worker.calling = False
        self.deadline = time.monotonic() + self.limit
        worker.send(Request(task.case.line(), self.share, self.settings.mode, task.controls))


def lacked_memory(result: CaseResult) -> bool:
    """Whether a case ended for want of memory, the provider's, the reference's or the arena's."""
    return result.verdict == "error" and any(
        word in result.note for word in ("out of memory", "OutOfMemoryError", "MemoryError")
    )


def _blank(task: Task, verdict: str, note: str) -> CaseResult:
    return CaseResult(task.case.op, task.provider, task.case.line(), verdict, note=note)  # type: ignore[arg-type]
