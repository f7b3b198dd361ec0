"""From tests to a verdict: one decision per comparison, and one verdict over all.

The rule for one test, in this order:

1. ``error`` (infrastructure, bad data: no p-value and no interval) and ``confounded`` (the arms differ in
   more than the declared factor) are results of their own: no figure is judged.
2. ``equivalent``: the test has a margin and its interval lies inside. A TOST result has the interval with
   coverage 1 - 2 level, which makes this Schuirmann's test at the level. If the Holm-adjusted p-value is
   significant too, the difference is real and small: equivalent "within the margin, though measurable". The
   margin says what matters, the p-value only what can be seen; enough repeats make any difference visible.
3. ``different``: the adjusted p-value is at most the level and equivalence is not shown. If the interval lies
   outside the margin, the difference is beyond it; if it straddles the edge, a real difference has not been
   shown to be harmless. A significant difference without a margin is always ``different``.
4. ``undecided``: neither. The reason says what it would take (repeats or tokens), or why no p-value could
   come out small.

Overall: a ``different`` is fail; else an ``error`` or ``confounded`` is error (the comparison cannot count as
right or wrong); else an ``undecided`` is undecided; else pass. Tests without a margin cannot show
equivalence, so their "no difference found" does not block a pass, but at least one test must have shown
equivalence. Passing asks for *all* margins to hold, so it needs no adjustment (intersection-union test,
Berger, Technometrics 24, 1982); failing needs *any* difference, so p-values are adjusted (Holm).

Catches: "no significant difference" being sold as equivalence. Cannot catch: a margin that is too wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from validation.variance.multiplicity import holm
from validation.variance.result import LEVEL, Test, join

Outcome = Literal["equivalent", "different", "undecided", "error", "confounded"]
Overall = Literal["pass", "fail", "undecided", "error"]


@dataclass(frozen=True)
class Margin:
    """Effects in [low, high] do not matter, in the unit of the test's effect (-inf or inf: open)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"empty margin [{self.low}, {self.high}]")

    def holds(self, test: Test) -> bool:
        """The whole interval lies inside; never for an interval that is missing."""
        return self.low < test.low <= test.high < self.high

    def beyond(self, test: Test) -> bool:
        """The whole interval lies outside."""
        return test.low > self.high or test.high < self.low


def around(center: float, width: float) -> Margin:
    """center - width to center + width; for ratios ``ratio_margin``."""
    return Margin(center - width, center + width)


def ratio_margin(factor: float) -> Margin:
    """1/factor to factor."""
    return Margin(1 / factor, factor)


def at_most(limit: float) -> Margin:
    """No lower end: squared or absolute differences."""
    return Margin(-math.inf, limit)


@dataclass(frozen=True)
class Decision:
    """The verdict of one test of one comparison; ``gating``: it has a margin, so that equivalence is
    asked for."""

    comparison: str
    test: Test
    adjusted_p: float
    verdict: Outcome
    reason: str
    gating: bool


def decide(
    comparison: str,
    test: Test,
    adjusted_p: float,
    margin: Margin | None = None,
    level: float = LEVEL,
    error: str = "",
    confounded: str = "",
) -> Decision:
    """One decision by the rule above. ``adjusted_p``: Holm-adjusted p-value of the *difference* (for a TOST
    interval, that of the difference test of the same quantity), NaN if there is none."""

    def result(verdict: Outcome, reason: str) -> Decision:
        return Decision(comparison, test, adjusted_p, verdict, reason, margin is not None)

    if error:
        return result("error", error)
    if confounded:
        return result("confounded", confounded)
    significant = adjusted_p <= level
    if margin is not None and margin.holds(test):
        measurable = ", though measurable" if significant else ""
        return result("equivalent", f"within the margin{measurable}: {_interval(test)}")
    if significant:
        if margin is None:
            return result("different", f"p = {adjusted_p:.2g} over all tests; {_interval(test)}")
        where = "beyond the margin" if margin.beyond(test) else "not shown to stay within the margin"
        return result("different", f"p = {adjusted_p:.2g} over all tests, {where}: {_interval(test)}")
    return result("undecided", _undecided(test, margin))


def _interval(test: Test) -> str:
    if math.isnan(test.low):
        return f"{test.effect:.4g} {test.unit}".strip()
    return f"{test.effect:.4g} [{test.low:.4g}, {test.high:.4g}] {test.unit}".strip()


def _undecided(test: Test, margin: Margin | None) -> str:
    """What it would take."""
    need = f"needs {test.repeats_needed:.0f} repeats or tokens" if math.isfinite(test.repeats_needed) else ""
    found = f"would find {test.mde:.3g} {test.unit}".strip() if math.isfinite(test.mde) else ""
    what = "no difference found" if margin is None else "neither equivalent nor different"
    return join(what, need, found, test.note)


def decide_all(tests: Sequence[tuple[str, Test, Margin | None]], level: float = LEVEL) -> list[Decision]:
    """Decisions of a whole run: (comparison, test, margin) each, Holm over all p-values of differences.

    An equivalence test (its name begins with 'equivalence') does not enter Holm; its difference is the
    adjusted p-value of the first other test of the same comparison in the same unit.
    """
    is_tost = [test.name.startswith("equivalence") for _, test, _ in tests]
    adjusted = holm([math.nan if e else test.p_value for e, (_, test, _) in zip(is_tost, tests, strict=True)])
    decisions = []
    for i, (comparison, test, margin) in enumerate(tests):
        p = adjusted[i]
        if is_tost[i]:
            same = [
                adjusted[j]
                for j, (other, t, _) in enumerate(tests)
                if other == comparison and not is_tost[j] and t.unit == test.unit
            ]
            p = same[0] if same else math.nan
        decisions.append(decide(comparison, test, p, margin, level))
    return decisions


def shown_within(decisions: Sequence[Decision]) -> list[Decision]:
    """Differences of a quantity whose equivalence is shown become equivalent 'though measurable'.

    A difference test without a margin and a TOST of the same comparison and unit look at one quantity: what
    TOST has shown to be inside the margin is not called different by its sibling.
    """
    inside = {(d.comparison, d.test.unit) for d in decisions if d.gating and d.verdict == "equivalent"}
    return [
        Decision(
            d.comparison,
            d.test,
            d.adjusted_p,
            "equivalent",
            "measurable, but within the margin of its equivalence test",
            d.gating,
        )
        if d.verdict == "different" and not d.gating and (d.comparison, d.test.unit) in inside
        else d
        for d in decisions
    ]


def overall(decisions: Sequence[Decision]) -> tuple[Overall, list[str]]:
    """The verdict of the run and its reasons, one a line, by the rule above."""
    settled = shown_within(decisions)

    def lines(*verdicts: Outcome, gating: bool = False) -> list[str]:
        return [
            f"{d.comparison}, {d.test.name}: {d.verdict}: {d.reason}"
            for d in settled
            if d.verdict in verdicts and (d.gating or not gating)
        ]

    if failed := lines("different"):
        return "fail", failed
    if errors := lines("error", "confounded"):
        return "error", errors
    if doubts := lines("undecided", gating=True):
        return "undecided", doubts
    if not any(d.gating and d.verdict == "equivalent" for d in settled):
        return "undecided", ["no test with a margin: nothing shows that the arms are equivalent"]
    return "pass", []
