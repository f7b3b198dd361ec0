"""A finding and a score in words, the same in every report.

What this catches: nothing. What it cannot do: explain a statistic; the contract and the judge name it.
"""

from __future__ import annotations

import math

from validation.report.schema import CaseResult, Finding, Score

LARGEST_WHOLE = 1e6  # larger numbers are written with an exponent


def finding_words(finding: Finding) -> str:
    """One line: where, what, how many times beyond its limit."""
    statistic = finding.statistic.replace("_", " ")
    if not finding.output:
        return f"{statistic}: {finding.message}"
    times = f", {times_words(finding.ratio)} its limit" if math.isfinite(finding.ratio) else ""
    where = f" {finding.where}:" if finding.where else ""
    message = f" ({finding.message})" if finding.message else ""
    return f"{finding.output}:{where} {statistic}{times}{message}"


def times_words(ratio: float) -> str:
    """1.3 times; 4,100 times."""
    return f"{ratio:.2g} times" if ratio < 10 else f"{whole(ratio)} times"


def whole(number: float) -> str:
    """4,100; beyond a million 1.8e+40, which no table is too narrow for."""
    return f"{number:,.0f}" if abs(number) <= LARGEST_WHOLE else f"{number:.1e}"


def score_words(score: Score) -> str:
    """A score as a fraction of its limit, short enough for a table; "12 / 0" where none is allowed."""
    ratio = score.ratio
    if not math.isfinite(ratio):
        return f"{whole(score.value)} / 0" if score.limit == 0 else "not a number"
    return f"{ratio:.2f}" if ratio < 10 else whole(ratio)


def largest_score(results: list[CaseResult]) -> Score | None:
    """The score nearest to its limit, or furthest beyond."""
    scores = [score for result in results for score in result.scores]
    return max(scores, key=lambda s: s.ratio, default=None)


def count(n: int, noun: str) -> str:
    """1 case, 2 cases."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def duration(seconds: float) -> str:
    """Seconds as a person reads them at a glance."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
