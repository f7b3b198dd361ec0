"""Everything that a run has stored, judged: the decisions, the planted differences, and the tables beside
them.

What this catches: see ``compare`` and ``controls``. What it cannot do: ask anything; it reads the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evals.arms.config import Comparison
from evals.forced.gather import Gathered, gather
from evals.forced.walk import PROMPTS, TASK, Walk, replicate_numbers
from evals.judging.compare import Parting, decisions, walked_in_common
from evals.judging.controls import Control, controls
from evals.judging.scores import Graded, Pair, Side, pair
from evals.signals.reply import divergences
from evals.speed import as_dict, speed_of
from evals.store.row import Row
from validation.variance.decision import Decision


@dataclass(frozen=True)
class Judged:
    """``details``: tables for the document."""

    decided: list[Decision]
    planted: list[Control]
    details: dict[str, Any]


def judge(
    comparison: Comparison,
    rows: Sequence[Row],
    grades: tuple[Mapping[str, Graded], Mapping[str, Graded]],
    walks: Sequence[Walk],
    facts: Sequence[Mapping[str, Any]],
    rerun: int,
) -> Judged:
    """``rows``: of both arms, all kinds; ``grades``: by task of the arms file, for each arm; ``rerun``:
    replicate number of the reference's second run."""
    pairs = [_pair(comparison, task, grades, rows) for task in comparison.tasks]
    gathered = _gathered(comparison, rows, walks) if comparison.forced else None
    partings = {
        task: _parting(comparison, each, rows, rerun)
        for task, each in zip(comparison.tasks, pairs, strict=True)
    }
    decided = decisions(comparison, pairs, gathered, partings)
    planted = controls(pairs, gathered, comparison.alpha, len(decided), comparison.seed)
    details = {
        "reference": comparison.reference.label or "reference",
        "candidate": comparison.candidate.label or "candidate",
        "forced": _forced_table(gathered),
        "scores": [row for each in pairs for row in _score_rows(comparison, each)],
        "divergences": {task: _parting_row(each) for task, each in partings.items()},
        "speed": as_dict(_speeds(comparison, rows, facts)),
    }
    return Judged(decided, planted, details)


def _pair(comparison: Comparison, task: str, grades: Any, rows: Sequence[Row]) -> Pair:
    names = {name for name, _ in grades[0][task]}
    own = [
        [r for r in rows if r.arm == arm.name and r.kind == "free" and r.replicate == 0 and r.task in names]
        for arm in comparison.arms
    ]
    graded = (grades[0][task], grades[1][task])
    return pair(task, graded, (own[0], own[1]), comparison.tasks[task].repeats)


def _gathered(comparison: Comparison, rows: Sequence[Row], walks: Sequence[Walk]) -> Gathered:
    assert comparison.forced
    count = comparison.forced.replicates
    walked = [row for row in rows if row.task == TASK]
    own = [[row for row in walked if row.arm == arm.name] for arm in comparison.arms]
    wanted = {each.key: each.tokens for each in walks}
    return gather(wanted, own[0], own[1], (replicate_numbers(0, count), replicate_numbers(1, count)))


def _parting(comparison: Comparison, each: Pair, rows: Sequence[Row], rerun: int) -> Parting:
    names = {task for task, _ in each.questions}
    mine = [row for row in rows if row.kind == "free" and row.task in names and row.ok]
    first, again, candidate = (
        {row.key: row for row in mine if (row.arm, row.replicate) == which}
        for which in (
            (comparison.reference.name, 0),
            (comparison.reference.name, rerun),
            (comparison.candidate.name, 0),
        )
    )
    apart, itself = (
        divergences(first.values(), candidate.values()),
        divergences(first.values(), again.values()),
    )
    tokens = walked_in_common(apart, first), walked_in_common(itself, first)
    return Parting(list(apart.values()), list(itself.values()), tokens)


def _parting_row(parting: Parting) -> dict[str, Any]:
    def of(group: Sequence[Any], tokens: int) -> dict[str, Any]:
        margins = [abs(each.margin) for each in group if each.diverged and np.isfinite(each.margin)]
        return {
            "replies": len(group),
            "diverged": sum(each.diverged for each in group),
            "tokens": tokens,
            "largest_margin": max(margins, default=None),
            "median_margin": float(np.median(margins)) if margins else None,
        }

    return {
        "candidate": of(parting.candidate, parting.tokens[0]),
        "itself": of(parting.itself, parting.tokens[1]),
    }


def _forced_table(gathered: Gathered | None) -> dict[str, Any]:
    if gathered is None:
        return {}
    return {"tokens": gathered.tokens, "sequences": len(gathered.keys), "lost": dict(gathered.lost)}


def _score_rows(comparison: Comparison, each: Pair) -> list[dict[str, Any]]:
    return [
        {
            "task": each.task,
            "arm": arm.label or arm.name,
            "questions": len(each.questions),
            "repeats": each.repeats,
        }
        | _score_row(side)
        for arm, side in zip(comparison.arms, (each.reference, each.candidate), strict=True)
    ]


def _score_row(side: Side) -> dict[str, float | None]:
    cut = np.where(side.shares["truncated"] == 1, 0.0, side.scores)
    rates = {name: _mean(values) for name, values in side.shares.items()}
    signals = {name: _mean(side.signals[name]) for name in ("length", "loop", "stuck", "acceptance_length")}
    odd = {name: float(np.nansum(side.signals[name])) for name in ("missing", "infinite", "positive")}
    return {"score": _mean(side.scores), "score_cut_0": _mean(cut), **rates, **signals, **odd}


def _mean(values: np.ndarray) -> float | None:
    """Mean over what is known; None if nothing is."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _speeds(comparison: Comparison, rows: Sequence[Row], facts: Sequence[Mapping[str, Any]]) -> list[Any]:
    found = []
    for arm, known in zip(comparison.arms, facts, strict=True):
        own = [row for row in rows if row.arm == arm.name and row.kind == "free" and row.replicate == 0]
        for task in sorted({row.task for row in own if row.ok} - {PROMPTS}):
            found.append(speed_of([row for row in own if row.task == task], known, arm.concurrency))
    return found
