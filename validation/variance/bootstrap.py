"""Paired bootstrap of the mean difference, by question.

Catches: changes of the mean whose distribution over questions is skewed, where a t interval is not to be
trusted. Cannot catch: what few questions cannot show; with fewer than about 20 that differ, its interval is
too short even after the correction for small samples.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy import stats

from validation.variance.data import Array, Paired
from validation.variance.difference import FEW, estimate, repeats_for
from validation.variance.intervals import detectable, interval
from validation.variance.result import LEVEL, NAN, Test, join, nothing

REFERENCE = "Efron 1987 (BCa); Hall and Wilson 1991; Hesterberg 2015"


def expanded(coverage: float, n: int) -> float:
    """Coverage to ask of a percentile interval so that, for n values, it keeps the stated one.

    Percentile intervals are short by sqrt((n - 1)/n) and use normal instead of t quantiles; asking for
    2 Phi(sqrt(n/(n-1)) t_{n-1}) - 1 repairs both (Hesterberg, American Statistician 69, 2015, section 5.2).
    """
    t = stats.t.ppf((1 + coverage) / 2, n - 1)
    return float(2 * stats.norm.cdf(math.sqrt(n / (n - 1)) * t) - 1)


def bootstrap(
    pairs: Paired,
    margin: float | None = None,
    level: float = LEVEL,
    rounds: int = 4999,
    seed: int = 0,
) -> Test:
    """BCa interval (percentiles where BCa fails) of the mean over questions, by ``scipy.stats.bootstrap``.

    The p-value bootstraps the studentised, recentred mean, |mean* - mean| / SE* against |mean| / SE (Hall and
    Wilson, Biometrics 47, 1991: resample under the null), with (1 + r)/(1 + n). The interval is never
    narrower than the range of the scores allows.
    """
    n, d = pairs.questions, pairs.by_question()
    if n < 2:
        return nothing("bootstrap", join(FEW, pairs.lost()), n, REFERENCE)
    e = estimate(pairs)
    found = detectable(e, 2, level) if pairs.span is not None else NAN
    low, high = interval(e, 1 - level)
    note = pairs.lost()
    if e.se > 1e-12 * abs(e.mean):
        edges, method = _interval(d, expanded(1 - level, n), rounds, seed)
        low, high = (min(edges[0], low), max(edges[1], high)) if pairs.span else edges
        note = join(note, method)
        p = _p_value(d, rounds, seed)
    else:
        p = 1.0 if e.mean == 0 else min(1.0, 2.0 ** (1 - n))
        note = join(note, "all questions differ by the same amount")
    return Test(
        "bootstrap",
        e.mean / e.se if e.se > 0 else NAN,
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


def _interval(d: Array, coverage: float, rounds: int, seed: int) -> tuple[tuple[float, float], str]:
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # degenerate resamples: seen in the result
            found = stats.bootstrap(
                (d,),
                np.mean,
                n_resamples=rounds,
                confidence_level=coverage,
                method=method,
                vectorized=True,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            return (float(found.low), float(found.high)), "" if method == "BCa" else "percentile interval"
    return (math.nan, math.nan), "no interval"


def _p_value(d: Array, rounds: int, seed: int) -> float:
    """Studentised bootstrap under the null; a resample without spread counts as extreme."""
    rng, n = np.random.default_rng(seed), len(d)
    drawn = d[rng.integers(0, n, (rounds, n))]
    se = drawn.std(axis=1, ddof=1)
    shift = np.abs(drawn.mean(axis=1) - d.mean())
    observed = abs(d.mean()) / d.std(ddof=1)
    beyond = np.where(se > 1e-12 * se.max(), shift >= observed * se * (1 - 1e-9), True)
    return float((1 + np.count_nonzero(beyond)) / (1 + rounds))
