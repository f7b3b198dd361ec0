"""One arm: its tasks through lm-eval, its walks, a second run of the reference; everything goes into the
store.

What this catches: replies that the store has already (not asked again), a server that goes away (what came
is kept). What it cannot catch: differences between the arms; it sees one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from evals.arms.config import Arm, Comparison
from evals.engines.api import Engine, Request, Response, Sampling
from evals.engines.hashing import seed_of, text_hash
from evals.forced.walk import PROMPTS, Walk, forced, walk
from evals.graders.outcome import Grade, from_row
from evals.graders.reply import Reply
from evals.lm import Asked, LockstepLM, question_of
from evals.running.progress import Progress
from evals.running.selection import Selection, parts
from evals.sensitivity.prompts import texts
from evals.store.row import Label, Row, row_of
from evals.store.store import Store

RERUN = 7  # replicate number of the reference's second run of the same seeds
Graded = dict[tuple[str, str], list[Grade]]


@dataclass
class Answers:
    """``grades``: (task, question) -> K grades, by task of the arms file; ``asked``: in the order of
    asking."""

    grades: dict[str, Graded] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    @property
    def requests(self) -> list[Request]:
        return [each.request for each in self.asked]


@dataclass
class Side:
    """One arm while it is asked."""

    comparison: Comparison
    selection: Selection
    arm: Arm
    engine: Engine
    store: Store
    kept: list[Row]
    progress: Progress

    def answer(self) -> Answers:
        """All tasks of the comparison. What is in the store is graded again, not asked again."""
        answers = Answers()
        known = {row.key: _reply(row) for row in self.kept if _counts(row, self.arm.name)}
        for task in self.comparison.tasks:
            lm = LockstepLM(
                self.engine,
                self.store,
                self.arm.name,
                dict.fromkeys(_full_names(task), sampling(self.comparison, self.arm, task)),
                known,
                self.comparison.seed,
                self.progress.advance,
                partial(self.progress.stage, f"{self.arm.name}: {task}"),
            )
            answers.grades[task] = simple(lm, self.selection.load(self.comparison, task), self.selection)
            answers.asked += lm.asked
        return answers

    def walk(self, walks: Sequence[Walk], replicates: Sequence[int]) -> None:
        """All replicates of all walks that the store does not have yet."""
        open_ones = sum(
            len(self.store.remaining(self.arm.name, [forced(each, r) for each in walks], r))
            for r in replicates
        )
        self.progress.stage(f"{self.arm.name}: forced walks", open_ones)
        walk(self.engine, self.store, self.arm.name, walks, replicates, self.progress.advance)

    def prompted(self, tokens: int, length: int) -> list[Asked]:
        """Ask short everyday prompts, so that there is something to walk; twice as many as full replies would
        need."""
        asked = []
        for i, text in enumerate(texts(2 * tokens // length + 4)):
            key, seed = f"{PROMPTS}/{i}/0", seed_of(PROMPTS, str(i), 0, self.comparison.seed)
            message = {"role": "user", "content": text}
            request = Request(key, seed, Sampling(1.0, 0.95, length), messages=(message,))
            asked.append(Asked(request, Label("", self.arm.name, PROMPTS, str(i), text_hash(text.encode()))))
        labels = {each.request.key: each.label for each in asked}
        open_ones = self.store.remaining(self.arm.name, [each.request for each in asked])
        self.progress.stage(f"{self.arm.name}: replies to be walked", len(open_ones))

        def done(request: Request, response: Response) -> None:
            self.store.add(row_of(labels[request.key], request, response))
            self.progress.advance(request, response)

        self.engine.run(open_ones, done)
        return asked

    def rerun(self, asked: Sequence[Asked]) -> None:
        """The first repeat of every question once more, same seed, in other company: how early does an arm
        part from itself?"""
        once = [each for each in asked if each.label.repeat == 0]
        labels = {each.request.key: replace(each.label, replicate=RERUN) for each in once}
        wanted = [replace(each.request, replicate=RERUN) for each in reversed(once)]
        open_ones = self.store.remaining(self.arm.name, wanted, RERUN)
        self.progress.stage(f"{self.arm.name}: second run of the same seeds", len(open_ones))

        def done(request: Request, response: Response) -> None:
            self.store.add(row_of(labels[request.key], request, response))
            self.progress.advance(request, response)

        self.engine.run(open_ones, done)


def simple(lm: LockstepLM, tasks: list[Any], selection: Selection) -> Graded:
    """lm-eval's run of some tasks, and the K grades of every question."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    found = simple_evaluate(
        model=lm,
        tasks=tasks,
        limit=selection.limit_of_data,
        apply_chat_template=True,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=1,  # our own statistics follow; 0 would leave out lm-eval's standard errors
        log_samples=True,
    )
    assert found
    return {
        (bare(name), question_of(sample["doc"])): [from_row(row) for row in sample["grades"]]
        for name, samples in found["samples"].items()
        for sample in samples
    }


def sampling(comparison: Comparison, arm: Arm, task: str) -> dict[str, Any]:
    """What the arms file says of sampling, in the words of lm-eval's generation arguments."""
    wanted = comparison.tasks[task].sampling
    extra = dict(wanted.extra)
    if arm.chat_template_kwargs:
        extra["chat_template_kwargs"] = dict(arm.chat_template_kwargs)
    own = {"temperature": wanted.temperature, "top_p": wanted.top_p, "max_tokens": wanted.max_tokens}
    return {**own, "until": list(wanted.stop), **extra}


def bare(name: str) -> str:
    """A task's name without "mirrored_": data is no part of what is asked."""
    return name.removeprefix("mirrored_")


def _full_names(task: str) -> list[str]:
    return [prefix + name for name in parts(task) for prefix in ("", "mirrored_")]


def _counts(row: Row, arm: str) -> bool:
    return row.arm == arm and row.kind == "free" and row.replicate == 0 and row.final


def _reply(row: Row) -> Reply:
    return Reply(row.text, row.finish, row.failure, row.message)
