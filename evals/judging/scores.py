"""Replies of both arms as paired arrays [questions, repeats].

What this catches: failures and cuts (NaN, never 0), questions that one arm lacks (left out here, refused by
the guard). What it cannot catch: a question that changed under its name; the guard compares hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evals.graders.outcome import FAILED, Grade
from evals.signals.reply import grid
from evals.store.row import Row

Graded = Mapping[tuple[str, str], Sequence[Grade]]
LONGEST_COMPARED = 256  # tokens of a reply that the two-sample test on tokens looks at


@dataclass(frozen=True)
class Side:
    """One arm on one task: ``scores`` [questions, repeats], NaN where there is none; ``shares``: 0 or 1 for
    each outcome that has a rate of its own; ``signals``: see ``evals.signals``; ``tokens``:
    [questions][repeats]."""

    scores: np.ndarray
    shares: dict[str, np.ndarray]
    signals: dict[str, np.ndarray]
    tokens: list[list[list[int]]]


@dataclass(frozen=True)
class Pair:
    """Both arms on one task, the same questions and repeats."""

    task: str
    questions: list[tuple[str, str]]
    reference: Side
    candidate: Side

    @property
    def repeats(self) -> int:
        return int(self.reference.scores.shape[1])


def pair(
    task: str,
    grades: tuple[Graded, Graded],
    rows: tuple[Iterable[Row], Iterable[Row]],
    repeats: int,
) -> Pair:
    """``grades`` and free ``rows`` (replicate 0) of reference and candidate on one task of the arms file."""
    questions = sorted(set(grades[0]) & set(grades[1]))
    sides = [_side(questions, graded, list(own), repeats) for graded, own in zip(grades, rows, strict=True)]
    return Pair(task, questions, sides[0], sides[1])


def _side(questions: list[tuple[str, str]], graded: Graded, rows: list[Row], repeats: int) -> Side:
    scores = np.full((len(questions), repeats), np.nan)
    names = ("truncated", "unparsed", "failed", "ungraded")
    shares = {name: np.full((len(questions), repeats), np.nan) for name in names}
    for i, question in enumerate(questions):
        for k, grade in enumerate(graded[question][:repeats]):
            scores[i, k] = grade.score
            shares["failed"][i, k] = grade.outcome in FAILED
            if grade.outcome not in FAILED:
                shares["truncated"][i, k] = grade.outcome == "truncated"
                shares["unparsed"][i, k] = grade.outcome == "unparsed"
                shares["ungraded"][i, k] = grade.outcome == "grader"
    place = {question: i for i, question in enumerate(questions)}
    own = [row for row in rows if (row.task, row.question) in place and row.repeat < repeats]
    tokens: list[list[list[int]]] = [[[] for _ in range(repeats)] for _ in questions]
    for row in own:
        tokens[place[row.task, row.question]][row.repeat] = row.token_ids[:LONGEST_COMPARED].tolist()
    return Side(scores, shares, _signals(questions, own, repeats), tokens)


def _signals(questions: list[tuple[str, str]], rows: list[Row], repeats: int) -> dict[str, np.ndarray]:
    """Signals of several lm-eval tasks under one another, in the order of ``questions``."""
    found: dict[str, list[np.ndarray]] = {}
    tasks = sorted({task for task, _ in questions})
    for task in tasks:
        names = [question for each, question in questions if each == task]
        for name, values in grid([row for row in rows if row.task == task], names, repeats).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in found.items()}
