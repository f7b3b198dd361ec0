"""Equivalence of mean scores within a margin: two one-sided tests (TOST).

Catches: the absence of evidence being taken for evidence of absence: a run that is too small never comes out
as equivalent, however equal its scores (``intervals`` keeps a floor under the standard error). Cannot catch:
differences inside the margin; choose it for what matters to the user.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from validation.variance.data import Paired
from validation.variance.difference import FEW, estimate
from validation.variance.intervals import Estimate, interval, p_above, t_quantile
from validation.variance.result import LEVEL, NAN, Test, join, nothing

REFERENCE = "Schuirmann 1987, J. Pharmacokinet. Biopharm. 15"


def tost(pairs: Paired, margin: float, level: float = LEVEL, power: float = 0.9) -> Test:
    """Is |difference| < margin? p-value: the larger of the two one-sided ones, each at ``level``.

    Equivalent at ``level`` exactly when the interval with coverage 1 - 2 level lies inside the margin.
    ``statistic``: the smallest margin at which equivalence would hold. ``repeats_needed``: K for equivalence
    with ``power`` if there is no difference. ``mde`` is NaN: equivalence detects nothing.
    """
    n = pairs.questions
    if n < 2:
        return nothing("equivalence (TOST)", join(FEW, pairs.lost()), n, REFERENCE)
    e = estimate(pairs)
    p = max(p_above(e, -margin), p_above(_mirrored(e), -margin))
    low, high = interval(e, 1 - 2 * level)
    note = pairs.lost()
    if pairs.all_equal():
        note = join(note, f"no pair differs: the range of the scores over {pairs.pairs} pairs is the limit")
    return Test(
        "equivalence (TOST)",
        max(-low, high),
        p,
        e.mean,
        low,
        high,
        NAN,
        repeats_needed(e, pairs.repeats, margin, level, power),
        n,
        "score",
        1 - 2 * level,
        REFERENCE,
        note,
    )


def _mirrored(e: Estimate) -> Estimate:
    return Estimate(-e.mean, e.se, e.df, e.pairs, e.span)


def smallest_margin(pairs: Paired, level: float = LEVEL) -> float:
    """The smallest margin at which TOST would hold at ``level``: the farther end of the interval."""
    low, high = interval(estimate(pairs), 1 - 2 * level)
    return max(-low, high)


def repeats_needed(
    e: Estimate, repeats: int, margin: float, level: float = LEVEL, power: float = 0.9
) -> float:
    """K for equivalence with ``power`` at true difference zero: SE, or its floor at the margin, must reach
    margin / (t_{1-level} + z_{(1+power)/2}) (Julious, Stat. Med. 23, 2004), rounded up."""
    if margin <= 0 or math.isnan(e.se):
        return NAN
    c = t_quantile(1 - level, e.df) + float(stats.norm.ppf((1 + power) / 2))
    by_noise = repeats * (c * e.se / margin) ** 2
    t = t_quantile(1 - level, e.df)
    by_range = repeats * (t * Estimate(0, 0, e.df, e.pairs, e.span).se_if(margin) / margin) ** 2
    return float(max(1, math.ceil(max(by_noise, by_range))))


def tost_power(se: float, df: float, margin: float, difference: float = 0.0, level: float = LEVEL) -> float:
    """Probability that TOST holds at a true difference, for a known SE (normal mean, t critical value).

    P(-margin + t SE < D < margin - t SE), D ~ N(difference, SE^2); 0 where t SE > margin. Phillips, J.
    Pharmacokinet. Biopharm. 18 (1990) has the exact form with estimated variance.
    """
    room = margin - t_quantile(1 - level, df) * se
    if room <= 0:
        return 0.0
    return float(np.diff(stats.norm.cdf((np.array([-room, room]) - difference) / se))[0])
