"""Rates of rare events: loops, truncations, first divergences per token.

Catches: a rate that differs between arms, exactly, however few events there are. Cannot catch: a rate below
about 3 / n after n trials without an event; the upper limit is printed instead.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from validation.errors import UserError
from validation.variance.intervals import clopper_pearson, upper_limit
from validation.variance.result import LEVEL, NAN, POWER, Test, nothing

__all__ = ["clopper_pearson", "compare_hazards", "compare_shares", "trials_for_limit", "upper_limit"]


def trials_for_limit(rate: float, confidence: float = 1 - LEVEL) -> int:
    """Trials without an event after which the exact upper limit is at most ``rate``:
    ln(1 - confidence) / ln(1 - rate), the rule of three for 95 %."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-rate))


def compare_hazards(
    events_a: int, exposure_a: float, events_b: int, exposure_b: float, level: float = LEVEL
) -> Test:
    """Ratio of two Poisson rates (events per exposure, for instance first divergences per token), exact.

    Given their sum, events of b are binomial with probability r e_b / (e_a + r e_b), r the ratio
    (Przyborowski and Wilenski, Biometrika 31, 1940); interval from Clopper and Pearson's limits. The MDE is
    the smallest ratio above 1 found with 80 % power for the reference's rate, by summation over the
    conditional binomial at the expected number of events.
    """
    name, reference = "hazard ratio", "Przyborowski and Wilenski 1940"
    if min(exposure_a, exposure_b) <= 0:
        raise UserError("a rate needs an exposure above 0 in both arms (tokens or replies looked at)")
    total, n = events_a + events_b, int(exposure_a + exposure_b)
    share = exposure_b / (exposure_a + exposure_b)
    if total == 0:
        return nothing(name, f"no event; rate of the candidate below {-math.log(level) / exposure_b:.2g}", n)
    found = stats.binomtest(events_b, total, share)
    low, high = clopper_pearson(events_b, total, 1 - level)

    def ratio(p: float) -> float:
        return math.inf if p >= 1 else p / (1 - p) * exposure_a / exposure_b

    return Test(
        name,
        float(events_b),
        min(1.0, float(found.pvalue)),
        ratio(events_b / total),
        ratio(low),
        ratio(high),
        _detectable_ratio(total / (exposure_a + exposure_b), exposure_a, exposure_b, level),
        NAN,
        n,
        "ratio of rates",
        1 - level,
        reference,
        "",
    )


def _detectable_ratio(rate: float, exposure_a: float, exposure_b: float, level: float) -> float:
    """Smallest ratio above 1 from which on the power stays (that of a discrete test is a saw-tooth)."""
    ratios = np.exp(np.arange(0.01, 5.0, 0.01))
    total = np.maximum(1, (rate * (exposure_a + ratios * exposure_b)).astype(int))
    raised = ratios * exposure_b / (exposure_a + ratios * exposure_b)
    critical = stats.binom.isf(level / 2, total, exposure_b / (exposure_a + exposure_b)) + 1
    short = np.flatnonzero(stats.binom.sf(critical - 1, total, raised) < POWER)
    first = int(short[-1]) + 1 if len(short) else 0
    return float(ratios[first]) if first < len(ratios) else NAN


def compare_shares(events_a: int, trials_a: int, events_b: int, trials_b: int, level: float = LEVEL) -> Test:
    """Difference of two independent shares: Fisher's exact test; Newcombe's hybrid score interval (Stat. Med.
    17:873, 1998, method 10). For replies to the same questions use the paired tests."""
    name, reference = "difference of shares", "Fisher 1935; Newcombe 1998"
    if min(trials_a, trials_b) <= 0:
        return nothing(name, "no trials in one arm", trials_a + trials_b, reference)
    table = [[events_b, trials_b - events_b], [events_a, trials_a - events_a]]
    p = float(stats.fisher_exact(table).pvalue)
    pa, pb = events_a / trials_a, events_b / trials_b
    (la, ua), (lb, ub) = (
        stats.binomtest(x, n).proportion_ci(1 - level, method="wilson")
        for x, n in ((events_a, trials_a), (events_b, trials_b))
    )
    pooled = (events_a + events_b + 1) / (trials_a + trials_b + 2)
    se = math.sqrt(pooled * (1 - pooled) * (1 / trials_a + 1 / trials_b))
    z = float(stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER))
    g = z**2 / trials_b
    found = (g + math.sqrt(g**2 + 4 * (z * se) ** 2)) / 2
    return Test(
        name,
        pb - pa,
        min(1.0, p),
        pb - pa,
        pb - pa - math.hypot(pb - lb, ua - pa),
        pb - pa + math.hypot(ub - pb, pa - la),
        found if found < 1 else NAN,
        NAN,
        trials_a + trials_b,
        "share",
        1 - level,
        reference,
        "no event in either arm" if events_a + events_b == 0 else "",
    )
