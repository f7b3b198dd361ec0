"""McNemar's test of right-or-wrong scores: exact for one repeat, clustered for several.

Catches: more answers lost than won. Cannot catch: equal numbers won and lost, graded scores (use
``difference`` or ``ranks``).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from validation.variance.data import Array, Paired
from validation.variance.difference import FEW, estimate, repeats_for
from validation.variance.intervals import detectable, interval
from validation.variance.result import LEVEL, Test, join, nothing

EXACT = "McNemar 1947, exact form"
CLUSTERED = "Durkalski et al. 2003, Stat. Med. 22"


def exact_p(lost: int, won: int) -> float:
    """Two-sided exact p-value: the discordant pairs are tossed coins (binomial, 1/2); 1 without any."""
    return float(stats.binomtest(won, lost + won).pvalue) if lost + won else 1.0


def clustered_statistic(lost: Array, won: Array, pairs: Array) -> float:
    """[sum_q (w_q - l_q) / K_q]^2 / sum_q [(w_q - l_q) / K_q]^2, chi-squared with one degree of freedom.

    Durkalski, Palesch, Lipsitz and Rust (Stat. Med. 22:2417, 2003), equation for clustered matched pairs:
    ``lost`` and ``won`` discordant pairs of every cluster (question) among its ``pairs``. With one pair a
    cluster it is McNemar's (won - lost)^2 / (won + lost). 0 if nothing is discordant.
    """
    d = (won - lost) / pairs
    total = float((d**2).sum())
    return float(d.sum() ** 2 / total) if total > 0 else 0.0


def mcnemar(pairs: Paired, margin: float | None = None, level: float = LEVEL) -> Test:
    """Exact binomial for one repeat, Durkalski's clustered chi-squared for more.

    Few discordant questions spoil the chi-squared approximation; below 20 of them the p-value is the larger
    of the chi-squared one and of the exact sign test over discordant questions, and the note says so.
    """
    n = pairs.questions
    reference = EXACT if pairs.repeats == 1 else CLUSTERED
    scores = np.concatenate([pairs.a[np.isfinite(pairs.a)], pairs.b[np.isfinite(pairs.b)]])
    if not np.isin(scores, (0.0, 1.0)).all():
        return nothing("McNemar", "scores are not right or wrong (0 or 1)", n, reference)
    if n < 2:
        return nothing("McNemar", join(FEW, pairs.lost()), n, reference)
    d = pairs.differences
    won, lost = (d == 1).sum(axis=1).astype(float), (d == -1).sum(axis=1).astype(float)
    note = pairs.lost()
    if pairs.repeats == 1:
        statistic, p = float(won.sum()), exact_p(int(lost.sum()), int(won.sum()))
    else:
        statistic = clustered_statistic(lost, won, pairs.counts)
        p, moved = float(stats.chi2.sf(statistic, 1)), int(np.count_nonzero(won != lost))
        if moved < 20:
            p = max(p, exact_p(int((lost > won).sum()), int((won > lost).sum())))
            note = join(note, f"only {moved} questions changed: not below the sign test over questions")
    e = estimate(pairs)
    low, high = interval(e, 1 - level)
    found = detectable(e, 2, level)
    needed = repeats_for(pairs.repeats, found, margin)
    if not (won.any() or lost.any()):
        note = join(note, "no pair is discordant")
    return Test(
        "McNemar",
        statistic,
        p,
        e.mean,
        low,
        high,
        found,
        needed,
        n,
        "score",
        1 - level,
        reference,
        note,
    )


def discordant_for_power(share: float, level: float = LEVEL, power: float = 0.8) -> int:
    """Discordant pairs after which the exact two-sided test finds that ``share`` (not 1/2) of them are wins.

    By summation of the binomial distribution, no approximation: the smallest n from which the power stays.
    """
    if not 0 <= share <= 1 or share == 0.5:
        raise ValueError("share must lie in [0, 1] and differ from 1/2")
    last_short = 0
    for n in range(1, int(20 / (share - 0.5) ** 2) + 50):
        critical = int(stats.binom.ppf(level / 2, n, 0.5))
        while critical >= 0 and stats.binom.cdf(critical, n, 0.5) > level / 2:
            critical -= 1
        reached = stats.binom.cdf(critical, n, share) + stats.binom.sf(n - critical - 1, n, share)
        if critical < 0 or reached < power:
            last_short = n
    return last_short + 1 if not math.isnan(share) else 0
