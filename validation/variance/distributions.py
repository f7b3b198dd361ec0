"""Distributions of one number a reply: its length in tokens, or whether it loops or is cut off.

Catches: replies that grow, shrink, spread or change shape within a question, although the scores stay. Cannot
catch: a change that a few replies a question do not show; loops rarer than 3 / replies.

Mean: ``sign_flip`` or ``pair_swap``; variance: ``spread.variance_ratio``; shape: ``ks_within`` and
``mmd.energy``. All permute pairs, so they hold for any distribution, ties and shared seeds included.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from validation.variance.data import Array, Paired
from validation.variance.difference import FEW, estimate, repeats_for
from validation.variance.intervals import detectable, interval
from validation.variance.permutation import (
    EXACT_UP_TO,
    ROUNDS,
    few_terms,
    flip_test,
    monte_carlo_p,
    signs,
)
from validation.variance.result import LEVEL, NAN, POWER, Test, join, nothing

REFERENCE = "pair-swap permutation (Fisher 1935)"


def pair_swap(
    pairs: Paired,
    margin: float | None = None,
    level: float = LEVEL,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Test:
    """Mean difference by pair swaps: the two replies of every (question, repeat) pair are exchanged.

    For right-or-wrong values with one repeat it is McNemar's exact test. Interval and MDE from the clustered
    standard error.
    """
    n = pairs.questions
    if n < 1 or pairs.pairs < 2:
        return nothing("mean, pair swaps", join(FEW, pairs.lost()), n, REFERENCE)
    terms = np.nan_to_num(pairs.differences / pairs.counts[:, None]).ravel()
    p, _ = flip_test(terms, rounds, np.random.default_rng(seed))
    e = estimate(pairs)
    low, high = interval(e, 1 - level) if n > 1 else (NAN, NAN)
    found = detectable(e, 2, level) if n > 1 else NAN
    return Test(
        "mean, pair swaps",
        e.mean,
        p,
        e.mean,
        low,
        high,
        found,
        repeats_for(pairs.repeats, found, margin),
        n,
        "mean difference",
        1 - level,
        REFERENCE,
        join(pairs.lost(), few_terms(int((terms != 0).sum()), level, 2, "pairs differ")),
    )


def ks_within(pairs: Paired, level: float = LEVEL, rounds: int = ROUNDS, seed: int = 0) -> Test:
    """Kolmogorov-Smirnov distance within questions: sup_u |mean over pairs of [b <= u] - [a <= u]|, u a
    position among the 2 K replies of a question to both arms (ranks, so long questions do not drown others).

    p by pair swaps, which leave the ranks alone. The MDE is the observed distance found with 80 % power:
    the permutation quantile plus z_power standard deviations at the position where they are largest. It
    assumes that most questions change. The half-width of the interval is Kolmogorov's large-sample limit for
    untied values (Massey, J. Am. Stat. Assoc. 46, 1951), wide for ranks within questions.
    """
    name, k = "Kolmogorov-Smirnov within questions", pairs.repeats
    if pairs.pairs < 2 or k < 2:
        note = "one repeat a question: at least two are needed" if k < 2 else FEW
        return nothing(name, join(note, pairs.lost()), pairs.questions, REFERENCE)
    steps = _steps(pairs)
    moved = steps[steps.any(axis=1)]
    if not len(moved):
        return Test(name, 0.0, 1.0, 0.0, n=pairs.questions, reference=REFERENCE, note="no pair differs")
    observed = float(np.abs(moved.sum(axis=0)).max())
    drawn = np.concatenate(
        [
            np.abs(block @ moved).max(axis=1)
            for block in signs(len(moved), rounds, np.random.default_rng(seed))
        ]
    )
    exact = len(moved) <= EXACT_UP_TO
    p = float(np.mean(drawn >= observed - 1e-9)) if exact else monte_carlo_p(observed, drawn)
    root = math.sqrt(2 / pairs.pairs)
    half = float(stats.kstwobign.ppf(1 - level)) * root
    distance = observed / pairs.pairs
    return Test(
        name,
        distance,
        p,
        distance,
        max(0.0, distance - half),
        min(1.0, distance + half),
        _detectable(moved, drawn, pairs.pairs, level),
        NAN,
        pairs.questions,
        "distance of distribution functions",
        1 - level,
        REFERENCE,
        join(pairs.lost(), few_terms(len(moved), level, 2, "pairs differ")),
    )


def _detectable(moved: Array, drawn: Array, pairs: int, level: float) -> float:
    sd = float(np.sqrt((moved**2).sum(axis=0).max()))
    return (float(np.quantile(drawn, 1 - level)) + float(stats.norm.ppf(POWER)) * sd) / pairs


def _steps(pairs: Paired) -> Array:
    """[b <= u] - [a <= u] of every pair at every position u, [pairs, positions]."""
    both = np.concatenate([pairs.a, pairs.b], axis=1)
    ranks = stats.rankdata(both, axis=1, nan_policy="omit") / (2 * pairs.counts)[:, None]
    a, b = ranks[:, : pairs.repeats].ravel(), ranks[:, pairs.repeats :].ravel()
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    u = (np.arange(4 * pairs.repeats) + 0.5) / (4 * pairs.repeats)
    return (b[:, None] <= u).astype(float) - (a[:, None] <= u)
