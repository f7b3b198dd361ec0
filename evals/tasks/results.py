"""From the K replies to one question to what lm-eval aggregates.

Metrics, means over questions with lm-eval's standard error over questions (so repeats are clustered):
``avg_at_k``: mean score of the scored replies; a question without one is left out of it, not counted 0.
``avg_at_k_truncated_0``: the same with truncated replies as 0, the figure others publish.
``unparsed``, ``truncated``, ``failed``, ``ungraded``: shares of all K replies, each to be compared in its own
right.
``grades``: the K grades themselves, for pairing by (question, repeat); not aggregated.

What this catches: failures folded into the score, repeats thrown away (F58). What it cannot catch: the
difference between arms; that is the business of the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evals.data.bins import NAMES
from evals.graders.aime import grade_aime
from evals.graders.gpqa import grade_gpqa
from evals.graders.mrcr import grade_mrcr
from evals.graders.outcome import FAILED, Grade

Doc = Mapping[str, Any]


def summary(grades: Sequence[Grade]) -> dict[str, Any]:
    """Metrics of one question from its K grades."""
    k = len(grades)
    metrics: dict[str, Any] = {
        "unparsed": sum(g.outcome == "unparsed" for g in grades) / k,
        "truncated": sum(g.outcome == "truncated" for g in grades) / k,
        "failed": sum(g.outcome in FAILED for g in grades) / k,
        "ungraded": sum(g.outcome == "grader" for g in grades) / k,
        "grades": [g.as_row() for g in grades],
    }
    for name, scores in (
        ("avg_at_k", [g.score for g in grades if g.scored]),
        ("avg_at_k_truncated_0", [s for g in grades if not math.isnan(s := g.zero_if_truncated)]),
    ):
        if scores:  # lm-eval averages a metric over the questions that have it
            metrics[name] = sum(scores) / len(scores)
    return metrics


def aime(doc: Doc, results: list[Any]) -> dict[str, Any]:
    """process_results of AIME."""
    return summary(_each(results, lambda reply: grade_aime(reply, doc["answer"])))


def gpqa(doc: Doc, results: list[Any]) -> dict[str, Any]:
    """process_results of GPQA."""
    return summary(_each(results, lambda reply: grade_gpqa(reply, doc["answer"])))


def mrcr(doc: Doc, results: list[Any]) -> dict[str, Any]:
    """process_results of MRCR: the score also under the name of the row's length bin."""
    metrics = summary(_each(results, lambda reply: grade_mrcr(reply, doc["answer"], doc["prefix"])))
    if doc["bin"] >= 0 and "avg_at_k" in metrics:
        metrics[f"avg_at_k_{NAMES[doc['bin']]}"] = metrics["avg_at_k"]
    return metrics


def _each(results: list[Any], judge: Callable[[str], Grade]) -> list[Grade]:
    """``results`` is [[reply, ...]] after take_first_k, or [reply] where one repeat was asked without it."""
    replies = results[0] if isinstance(results[0], list) else results
    return [judge(reply) for reply in replies]
