"""Walks side by side: worker processes, each with one walk at a time, the costliest first.

    for index, result in carried_out(setup, costs): ...

What this catches: a walk that ends its process (an error of that walk alone), a refusal (``UserError``,
raised here). What it cannot catch: a walk that hangs; Ctrl-C ends it, and keeps what is done.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.errors import UserError
from validation.execution.child import Child, die_with_parent, private_streams, say
from validation.report.plain import from_plain
from validation.report.schema import CaseResult
from validation.trace import describe

WORKERS = 2  # if not said otherwise: as many as the smallest runner has cores; each walk is one thread


@dataclass
class Setup:
    """What all walks of a run share, as the command was given it."""

    providers: list[str]
    plugins: list[str]
    tier: str
    only: list[str]
    steps: int | None
    seed: int
    weights: str
    folder: str
    device: str = "cpu"
    widths: str = "scaled"
    layers: int | None = None
    judged: int | None = None
    workers: int = WORKERS


@dataclass
class Answer:
    """One walk's result, or why it was refused."""

    index: int
    result: CaseResult | None = None
    refused: str = ""


def carried_out(setup: Setup, costs: Sequence[float]) -> Iterator[tuple[int, CaseResult]]:
    """Results of walks 0 to len(costs) - 1, as they come. Closing the iterator kills the workers."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        waiting.put(index)
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    workers = [
        _Worker(setup, waiting, answers) for _ in range(min(setup.workers, os.cpu_count() or 1, len(costs)))
    ]
    try:
        for worker in workers:
            worker.thread.start()
        for _ in costs:
            answer = _next(answers)
            if answer.refused:
                raise UserError(answer.refused)
            assert answer.result is not None
            yield answer.index, answer.result
    finally:
        for worker in workers:
            worker.stop()


def _next(answers: queue.SimpleQueue[Answer]) -> Answer:
    """Wait so that Ctrl-C is still heard."""
    while True:
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=0.5)


@dataclass
class _Worker:
    """A thread that feeds one process, and starts another where it died."""

    setup: Setup
    waiting: queue.SimpleQueue[int]
    answers: queue.SimpleQueue[Answer]
    child: Child | None = None
    stopped: bool = False
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._feed, daemon=True)

    def stop(self) -> None:
        self.stopped = True
        if self.child:
            self.child.end()

    def _feed(self) -> None:
        while not self.stopped:
            try:
                index = self.waiting.get_nowait()
            except queue.Empty:
                break
            self.answers.put(self._asked(index))
        self.stop()

    def _asked(self, index: int) -> Answer:
        if self.child is None or self.child.process.poll() is not None:
            self.child = Child("validation.step.crew")
            self.child.send(self.setup)
        self.child.send(index)
        answer = self.child.next()
        if answer:
            return from_plain(Answer, answer)
        status = self.child.process.wait()
        item, name = work_of(self.setup)[index]
        note = f"its process ended with status {status}"
        return Answer(index, CaseResult(item.name, name, item.line(self.setup.seed), "error", note=note))


def work_of(setup: Setup) -> list[Any]:
    """(walk, provider) of a run, in the order of its report. Its providers are loaded already."""
    from validation import providers
    from validation.step.items import Choice, chosen

    s = setup
    choice = Choice(s.tier, tuple(s.only), s.steps, s.device, s.widths, s.layers)
    return [
        (item, name)
        for name in setup.providers
        for item in chosen(name, choice)
        if not item.dcp or "mla_dcp" in providers.implemented_by(name)
    ]


def session_of(setup: Setup) -> Any:
    """The session that a process's walks share."""
    from validation.step.session import Session
    from validation.subjects.kimi_k3.checkpoint import load_weights
    from validation.subjects.kimi_k3.config import scaled

    weights = (scaled(), load_weights(Path(setup.weights), scaled())) if setup.weights else None
    return Session(
        setup.seed, Path(setup.folder), weights, device=setup.device, judged=setup.judged,
        options=options_of(setup),
    )  # fmt: skip


def options_of(setup: Setup) -> str:
    """What of the command a walk needs to be repeated alone, beside its name, provider and seed."""
    words = [word for plugin in setup.plugins for word in ("--plugin", plugin)]
    usual = {
        "tier": "quick", "steps": None, "layers": None, "judged": None, "weights": "", "device": "cpu",
        "widths": "scaled",
    }  # fmt: skip
    for name, value in usual.items():
        given = getattr(setup, name)
        words += [f"--{name}", str(given)] if given != value else []
    return shlex.join(words)


def main() -> None:
    """Serve walk numbers until the pipe closes."""
    requests, replies = private_streams()
    request = requests.readline()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the parent ends this process
    import torch

    from validation import providers

    torch.set_num_threads(1)  # one order of sums on every machine
    setup = from_plain(Setup, json.loads(request))
    providers.load(setup.providers, setup.plugins, setup.device)
    session, work = session_of(setup), work_of(setup)
    for line in requests:
        answer = Answer(int(line))
        item, name = work[answer.index]
        try:
            answer.result = session.carry_out(item, name)
        except UserError as error:
            answer.refused = str(error)
        except Exception as error:  # of a provider, or of this suite; other walks go on
            answer.result = CaseResult(item.name, name, item.line(setup.seed), "error", note=describe(error))
        say(replies, answer)


if __name__ == "__main__":
    # Not this module's own main: classes of __main__ are not those that others import.
    importlib.import_module("validation.step.crew").main()
