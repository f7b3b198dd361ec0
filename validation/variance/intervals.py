"""Intervals and minimum detectable effects of a mean difference, and exact limits of a rate.

Catches: the false certainty of an estimated standard error near zero. With scores in a bounded range and
hardly any pair that differs, mean +- t SE collapses (no pair differs: SE 0, "equivalent" at any margin).
Here the variance assumed for a true difference d is never below what d itself forces: pairs whose differences
are -1, 0 or 1 with mean d have variance at least |d| (1 - |d|). Cannot catch: a fault on a question that was
not asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import optimize, stats

from validation.variance.data import Array
from validation.variance.result import LEVEL, POWER


@dataclass(frozen=True)
class Estimate:
    """A mean difference, its standard error and degrees of freedom, the number of independent pairs behind
    it, and the range of a score (None: unbounded, then there is no floor). For unbounded scores also the mean
    score (``level``) and the squared standard error of the mean over questions divided by its square
    (``spread``)."""

    mean: float
    se: float
    df: float
    pairs: float
    span: float | None = 1.0
    level: float = 0.0
    spread: float = 0.0

    def se_if(self, difference: float) -> float:
        """Standard error if the true difference were this one; at least the estimated one."""
        if self.span is None or self.pairs == 0:
            return self.se
        share = min(abs(difference) / self.span, 1.0)
        return max(self.se, self.span * math.sqrt(share * (1 - share) / self.pairs))


def t_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t; of the normal distribution for infinite df."""
    return float(stats.norm.ppf(probability) if math.isinf(df) else stats.t.ppf(probability, df))


def interval(e: Estimate, coverage: float = 1 - LEVEL) -> tuple[float, float]:
    """All true differences d with |mean - d| <= t se_if(d).

    The score interval of Wilson (J. Am. Stat. Assoc. 22, 1927) and, for paired differences, Tango (Stat. Med.
    17, 1998), with the clustered standard error as its floor; without a floor from the range it is mean +-
    t SE.
    """
    t = t_quantile((1 + coverage) / 2, e.df)
    return _edge(e, t, -1), _edge(e, t, +1)


def _edge(e: Estimate, t: float, side: int) -> float:
    """The outermost d on one side that the data do not reject."""
    near = e.mean + side * t * e.se
    if e.span is None or abs(near) >= e.span or e.pairs == 0:
        return near
    far = side * e.span
    for _ in range(60):
        middle = (near + far) / 2
        if side * (middle - e.mean) <= t * e.se_if(middle):
            near = middle
        else:
            far = middle
    return near


def p_above(e: Estimate, difference: float) -> float:
    """One-sided p-value of 'the true difference is at most this', small if the mean lies far above."""
    se = e.se_if(difference)
    if se == 0:
        return 0.5 if e.mean == difference else float(e.mean < difference)
    z = (e.mean - difference) / se
    return float(stats.norm.sf(z) if math.isinf(e.df) else stats.t.sf(z, e.df))


def detectable(e: Estimate, sides: int = 2, level: float = LEVEL, power: float = POWER) -> float:
    """Minimum detectable mean difference d: d = (t_level + t_power) SE(d).

    The textbook formula (Chow, Shao and Wang, Sample Size Calculations in Clinical Research, 2008, 3.2) takes
    SE under no effect; an effect brings noise of its own. Scores in a range: SE(d)^2 = SE^2 + d (1 - d) /
    pairs (scores near an end get noisier), and one pair more for the steps of counts. Unbounded scores, as
    lengths: they change in proportion, d = r x mean, so one arm's variance grows by (1 + r)^2 and questions
    change by unequal amounts.
    """
    if math.isnan(e.se) or e.df < 1:
        return math.nan
    c = t_quantile(1 - level / sides, e.df) + t_quantile(power, e.df)
    noise = (c * e.se) ** 2
    if e.span is not None:
        g = c**2 / e.pairs  # d^2 (1 + g) - g d - (c SE)^2 = 0 in units of the range
        d = (g + math.sqrt(g**2 + 4 * (1 + g) * noise / e.span**2)) / (2 * (1 + g))
        d += 1 / e.pairs  # continuity: one pair more than the critical number
        return e.span * d if d < 1 else math.nan
    if noise == 0 or e.level <= 0:
        return c * e.se if noise else math.nan
    slope, square = noise / e.level, 1 - c**2 * e.spread - noise / (2 * e.level**2)
    return (slope + math.sqrt(slope**2 + 4 * square * noise)) / (2 * square) if square > 0 else math.nan


def satterthwaite(variances: Array) -> float:
    """Degrees of freedom of a sum of variances of unequal size: (sum v)^2 / sum v^2 (Biometrics 2, 1946)."""
    total = float((variances**2).sum())
    return max(1.0, float(variances.sum()) ** 2 / total) if total > 0 else math.inf


def detectable_square(
    null: float,
    linear: float,
    inflation: float,
    level: float = LEVEL,
    power: float = POWER,
    df: float = math.inf,
) -> float:
    """Detectable expectation S of an unbiased squared distance (U-statistic), one-sided permutation test.

    S = z_level sqrt(null + inflation S^2) + z_power sqrt(null + linear S): its variance is ``null`` without
    an effect, ``linear`` S more with one (Hoeffding, Ann. Math. Stat. 19, 1948: the projection is no longer
    degenerate), and relabelling a real difference widens the permutation distribution by ``inflation`` S^2.
    ``df``: of the noise, if few sequences or questions carry it. NaN without noise, or if no S is found.
    """
    z_level, z_power = t_quantile(1 - level, df), t_quantile(power, df)
    if null <= 0 or z_level**2 * inflation >= 1:
        return math.nan

    def surplus(s: float) -> float:
        return s - z_level * math.sqrt(null + inflation * s**2) - z_power * math.sqrt(null + linear * s)

    top = 10 * math.sqrt(null)
    while surplus(top) < 0 and top < 1e200:
        top *= 4
    return float(optimize.brentq(surplus, 0, top)) if surplus(top) > 0 else math.nan


def clopper_pearson(events: int, trials: int, coverage: float = 1 - LEVEL) -> tuple[float, float]:
    """Exact two-sided limits of a rate (Clopper and Pearson, Biometrika 26, 1934); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    found = stats.binomtest(events, trials).proportion_ci(coverage, method="exact")
    return float(found.low), float(found.high)


def upper_limit(events: int, trials: int, confidence: float = 1 - LEVEL) -> float:
    """Exact one-sided upper limit of a rate: 1 - (1 - confidence)^(1/n) for no event in n trials."""
    if trials == 0:
        return 1.0
    found = stats.binomtest(events, trials, alternative="less").proportion_ci(confidence, method="exact")
    return float(found.high)
