"""Synthetic arms for the tests of judging and reports: grades, samples and walks without a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evals.arms.config import Arm, Comparison, Forced, TaskSettings
from evals.engines.api import Request
from evals.forced.walk import Walk
from evals.graders.outcome import Grade
from evals.judging.judge import Judged, judge
from evals.judging.scores import Pair, pair
from evals.store.row import Row

TASK, QUESTIONS, REPEATS, RERUN = "aime25", 40, 4, 7
Grades = dict[tuple[str, str], list[Grade]]
WHY = "because the tests say so"


def comparison(margin: float = 20.0, forced: bool = True, tasks: tuple[str, ...] = (TASK,)) -> Comparison:
    """``margin`` in points."""
    a, b = (Arm(name, "m", "transformers", concurrency=4) for name in ("reference", "candidate"))
    settings = {name: TaskSettings(name, REPEATS, 64, margin, WHY) for name in tasks}
    walks = Forced(0.005, WHY, tokens=200, length=20) if forced else None
    return Comparison("synthetic", "none", a, b, tasks=settings, forced=walks)


def right(rate: float, seed: int, questions: int = QUESTIONS) -> np.ndarray:
    """Scores [questions, REPEATS] of independent replies."""
    return (np.random.default_rng(seed).random((questions, REPEATS)) < rate).astype(float)


def graded(scores: np.ndarray, task: str = TASK) -> Grades:
    return {
        (task, f"q{i:02d}"): [Grade(float(s), "right" if s == 1 else "wrong") for s in row]
        for i, row in enumerate(scores)
    }


def samples(
    arm: str, seed: int, task: str = TASK, length: int = 20, replicate: int = 0, questions: int = QUESTIONS
) -> list[Row]:
    """Replies of independent tokens and of lengths about ``length``."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(questions):
        for k in range(REPEATS):
            n = int(rng.integers(length - 8, length + 8))
            out.append(
                Row(
                    "", arm, task, f"q{i:02d}", f"{task}/q{i:02d}/{k}", 0,
                    repeat=k, replicate=replicate, finish="stop",
                    token_ids=rng.integers(0, 50, n).astype(np.int32), logprobs=-rng.random(n), total=1.0,
                    completion_tokens=n, first_token=0.1,
                )
            )  # fmt: skip
    return out


def lost(
    grades: Grades, rows: list[Row], cells: list[tuple[int, int]], failure: str = "timeout"
) -> list[Row]:
    """The same with failures at (question, repeat): ``grades`` are changed, rows returned."""
    gone = {(f"q{i:02d}", k) for i, k in cells}
    for i, k in cells:
        grades[TASK, f"q{i:02d}"][k] = Grade(np.nan, failure)  # type: ignore[arg-type]
    empty = {
        "token_ids": np.zeros(0, np.int32),
        "logprobs": np.zeros(0),
        "finish": "",
        "completion_tokens": 0,
    }
    return [replace(r, failure=failure, **empty) if (r.question, r.repeat) in gone else r for r in rows]  # type: ignore


def paired(a: np.ndarray, b: np.ndarray) -> Pair:
    rows = (samples("reference", 1), samples("candidate", 2))
    return pair(TASK, (graded(a), graded(b)), rows, REPEATS)


def walks(number: int = 10, tokens: int = 20) -> list[Walk]:
    return [
        Walk(Request(f"{TASK}/q{i:02d}/0", 0, prompt="x"), TASK, f"q{i:02d}", 0, tuple(range(tokens)))
        for i in range(number)
    ]


def walked(which: list[Walk], seed: int = 0, shift: float = 0.0, noise: float = 1e-3) -> list[Row]:
    """Forced rows of both arms, two replicates each; ``shift``: size of the candidate's systematic error."""
    rng = np.random.default_rng(seed)
    out = []
    for each in which:
        n = len(each.tokens)
        ids = np.tile(np.arange(5), (n, 1)).astype(np.int32)
        truth, error = -1 - rng.random((n, 6)), shift * rng.standard_normal((n, 6))
        for replicate in range(4):
            values = truth + noise * rng.standard_normal((n, 6)) + (error if replicate > 1 else 0)
            out.append(
                Row(
                    "", ("reference", "candidate")[replicate // 2], "forced",
                    f"{TASK}/{each.question}", each.key, 0,
                    replicate=replicate, kind="forced", token_ids=np.array(each.tokens, np.int32),
                    finish="length", prompt_hash=each.question, logprobs=values[:, 0], top_ids=ids,
                    top_logprobs=values[:, 1:],
                )
            )  # fmt: skip
    return out


def everything(
    a: np.ndarray,
    b: np.ndarray,
    rows: list[Row] | None = None,
    forced: list[Row] | None = None,
    margin: float = 20.0,
) -> Judged:
    """``judge`` over both arms, as a run calls it."""
    free = rows if rows is not None else samples("reference", 1) + samples("candidate", 2)
    what = walks()
    grades = ({TASK: graded(a)}, {TASK: graded(b)})
    walk_rows = walked(what) if forced is None else forced
    return judge(comparison(margin), [*free, *walk_rows], grades, what, ({}, {}), RERUN)
