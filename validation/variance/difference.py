"""Paired difference of mean scores, by question, with clustered standard error.

Catches: a change of the mean score larger than the noise of repeats and questions. Cannot catch: gains on
some questions that make up for losses on others (see ``mmd`` and ``spread``), nor effects below its MDE.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from validation.variance.data import Paired
from validation.variance.intervals import Estimate, detectable, interval, p_above
from validation.variance.result import LEVEL, NAN, POWER, Test, join, nothing

REFERENCE = "Miller 2024, arXiv 2411.00640; Liang and Zeger 1986"
FEW = "fewer than two questions: no standard error"


def estimate(pairs: Paired) -> Estimate:
    """Mean of the question differences and its clustered standard error, [questions] - 1 degrees of freedom.

    SE^2 = n/(n-1) sum_q (d_q - mean)^2 / n^2 with d_q the mean difference of question q: the cluster-robust
    variance of Liang and Zeger (Biometrika 73, 1986) with questions as clusters and the finite-sample factor
    n/(n-1). For equal numbers of repeats it is the standard error of the question means.
    """
    d = pairs.by_question()
    n = len(d)
    se = float(np.std(d, ddof=1) / math.sqrt(n)) if n > 1 else NAN
    if pairs.span is not None or n < 2:
        return Estimate(float(d.mean()) if n else NAN, se, n - 1.0, _independent(pairs, se), pairs.span)
    middle = np.nansum(pairs.a + pairs.b, axis=1) / (2 * pairs.counts)
    level = float(middle.mean())
    spread = float(np.var(middle, ddof=1)) / n / level**2 if level > 0 else 0.0
    return Estimate(float(d.mean()), se, n - 1.0, pairs.pairs, None, level, spread)


def _independent(pairs: Paired, se: float) -> float:
    """How many independent pairs the data are worth: all, divided by the design effect (the clustered
    variance over that of independent pairs; Kish, Survey Sampling, 1965, 8.2), if that is above 1."""
    d = pairs.differences[np.isfinite(pairs.a)]
    alone = float(np.var(d)) / len(d) if len(d) else 0.0
    return len(d) / max(1.0, se**2 / alone) if alone > 0 and not math.isnan(se) else float(len(d))


def within_se(pairs: Paired) -> float:
    """Standard error from repeats alone (questions held fixed): sqrt(sum_q s_q^2 / K_q) / n; NaN for K = 1.

    s_q^2 is the variance of the pair differences of question q. It is what planning predicts as
    sqrt(2 mean(p (1 - p)) / (n K)); below the clustered one if the arms differ by question.
    """
    k = pairs.counts
    if not len(k) or (k < 2).any():
        return NAN
    s2 = np.nanvar(pairs.differences, axis=1) * k / (k - 1)
    return float(np.sqrt((s2 / k).sum()) / len(k))


def paired_difference(
    pairs: Paired, margin: float | None = None, sides: int = 2, level: float = LEVEL
) -> Test:
    """Student's t on the question differences; ``sides=1`` asks for a drop only.

    The interval is two-sided with coverage 1 - level, never narrower than the range of the scores allows
    (``intervals.interval``). ``repeats_needed``: K at which the MDE is ``margin``. Differences that are all
    equal and not zero have no standard error; then the sign test over questions gives the p-value.
    """
    name = "paired difference"
    e, n = estimate(pairs), pairs.questions
    if n < 2:
        return nothing(name, join(FEW, pairs.lost()), n, REFERENCE)
    note = pairs.lost()
    if e.se > 1e-12 * abs(e.mean):
        t = e.mean / e.se
        p = float(stats.t.cdf(t, e.df) if sides == 1 else 2 * stats.t.sf(abs(t), e.df))
    elif e.mean == 0:
        t, p, note = 0.0, 1.0, join(note, "all questions score the same in both arms")
    else:
        t, p = math.copysign(math.inf, e.mean), min(1.0, 2.0 ** (sides - 1 - n))
        p = 1.0 if sides == 1 and e.mean > 0 else p
        note = join(note, "all questions differ by the same amount: sign test over questions")
    low, high = interval(e, 1 - level)
    found = detectable(e, sides, level)
    return Test(
        name,
        t,
        p,
        e.mean,
        low,
        high,
        found,
        repeats_for(pairs.repeats, found, margin),
        n,
        "score",
        1 - level,
        REFERENCE,
        note,
    )


def repeats_for(repeats: int, found: float, margin: float | None) -> float:
    """Repeats at which the minimum detectable effect shrinks to the margin (as 1 / sqrt(K)), rounded up."""
    if margin is None or margin <= 0 or math.isnan(found):
        return NAN
    return float(max(1, math.ceil(repeats * (found / margin) ** 2)))


def naive_difference(pairs: Paired, level: float = LEVEL) -> Test:
    """NOT VALID, a negative control: every reply counts as independent, sd / sqrt(n K) and a normal quantile.

    Where the replies to a question depend on each other (seeds that never reach the server, replies from a
    cache), its standard error is too small by up to sqrt(K). ``lockstep variance simulate`` must flag it.
    """
    d = pairs.differences[np.isfinite(pairs.a)]
    if len(d) < 2:
        return nothing("naive standard error", FEW, len(d))
    se = float(np.std(d, ddof=1) / math.sqrt(len(d)))
    p = float(2 * stats.norm.sf(abs(d.mean()) / se)) if se > 0 else 1.0
    return Test("naive standard error", p_value=p, effect=float(d.mean()), n=len(d), coverage=1 - level)


def not_inferior(pairs: Paired, margin: float, level: float = LEVEL) -> Test:
    """One-sided: is the candidate at most ``margin`` worse? p-value of 'it is worse by the margin'."""
    e = estimate(pairs)
    if pairs.questions < 2:
        return nothing("non-inferiority", join(FEW, pairs.lost()), pairs.questions, REFERENCE)
    low, high = interval(e, 1 - 2 * level)
    found = detectable(e, 1, level, POWER)
    return Test(
        "non-inferiority",
        (e.mean + margin) / e.se if e.se > 0 else NAN,
        p_above(e, -margin),
        e.mean,
        low,
        high,
        found,
        repeats_for(pairs.repeats, found, margin),
        pairs.questions,
        "score",
        1 - 2 * level,
        REFERENCE,
        pairs.lost(),
    )
