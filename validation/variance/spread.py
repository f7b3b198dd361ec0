"""Run-to-run variance of each arm and its ratio: within questions, between questions, of the run's mean.

The difference of two variances is linear in the swaps of pairs: for any subset of (question, repeat) pairs
whose replies are exchanged, V_b - V_a is a sum of one term a pair with its sign. So all permutation tests
here are sums of random signs, exact and fast, and valid where both arms share seeds.

Catches: a candidate that is as good on average but less steady (races, uninitialised memory), or steadier (a
dead random generator, cached replies). Cannot catch: a variance that changes along with right-or-wrong
scores' mean (p (1 - p)); for such scores it is another view of the same counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from validation.variance.data import Array, Paired
from validation.variance.difference import FEW, repeats_for
from validation.variance.intervals import Estimate, detectable, t_quantile
from validation.variance.permutation import (
    EXACT_UP_TO,
    ROUNDS,
    few_terms,
    flip_test,
    monte_carlo_p,
    signs,
    slack,
)
from validation.variance.result import LEVEL, NAN, POWER, Test, join, nothing

REFERENCE = "pair-swap permutation of V_b - V_a; delta-method interval by question"
ONE_REPEAT = "one repeat a question shows no run-to-run variance: at least two are needed"


@dataclass(frozen=True)
class Components:
    """Variance components of one arm's scores."""

    within: float
    between: float
    run_mean: float


def components(scores: Array) -> Components:
    """``within``: pooled variance over repeats (questions with two or more); ``between``: variance of the
    question means less what repeats explain, at least 0 (Searle, Casella and McCulloch, Variance Components,
    1992, one-way random model); ``run_mean``: variance over repeats of the mean over questions."""
    k = np.isfinite(scores).sum(axis=1)
    kept = scores[k >= 2]
    within = float(_variances(kept).mean()) if len(kept) else NAN
    means = np.nansum(scores, axis=1) / k
    noise = within * float((1 / k).mean()) if len(kept) else 0.0
    between = max(0.0, float(np.var(means, ddof=1)) - noise) if len(means) > 1 else NAN
    complete = scores[np.isfinite(scores).all(axis=1)]
    run = float(np.var(complete.mean(axis=0), ddof=1)) if complete.size and scores.shape[1] > 1 else NAN
    return Components(within, between, run)


def _variances(scores: Array) -> Array:
    k = np.isfinite(scores).sum(axis=1)
    return np.asarray(np.nanvar(scores, axis=1) * k / (k - 1))


def variance_ratio(
    pairs: Paired,
    margin: float | None = None,
    level: float = LEVEL,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Test:
    """Within-question variance of the candidate over the reference's.

    p: pair swaps of V_b - V_a. Interval: t interval of log ratio with question-clustered delta-method SE.
    MDE: the ratio R > 1 with R - 1 = (z_level + z_power) r sqrt((1 + R^2)/2), r the null sd of V_b - V_a
    over the mean variance (both arms' share of the noise grows with their variance). ``margin``: a ratio.
    """
    name, use = "variance ratio within questions", pairs.counts >= 2
    if pairs.repeats < 2 or use.sum() < 2:
        note = ONE_REPEAT if pairs.repeats < 2 else FEW
        return nothing(name, join(note, pairs.lost()), int(use.sum()), REFERENCE)
    a, b, k = pairs.a[use], pairs.b[use], pairs.counts[use]
    va, vb = _variances(a), _variances(b)
    centre = np.nansum(a + b, axis=1) / (2 * k)  # of both arms: swaps leave it alone, less rounding
    a, b = a - centre[:, None], b - centre[:, None]
    terms = np.nan_to_num((b**2 - a**2) / (k - 1)[:, None]).ravel() / len(k)
    p, _ = flip_test(terms, rounds, np.random.default_rng(seed))
    return _ratio(
        name,
        pairs,
        va,
        vb,
        p,
        terms,
        margin,
        level,
        few_terms(int((terms != 0).sum()), level, 2, "pairs differ"),
    )


def _ratio(
    name: str,
    pairs: Paired,
    va: Array,
    vb: Array,
    p: float,
    terms: Array,
    margin: float | None,
    level: float,
    note: str,
) -> Test:
    mean_a, mean_b, n = float(va.mean()), float(vb.mean()), len(va)
    low, high, effect = 0.0, math.inf, NAN
    if mean_a > 0 and mean_b > 0:
        effect = mean_b / mean_a
        se = float(np.std(vb / mean_b - va / mean_a, ddof=1) / math.sqrt(n))
        half = float(stats.t.ppf(1 - level / 2, n - 1)) * se
        if half > 0:
            low, high = effect * math.exp(-half), effect * math.exp(half)
    elif mean_a == mean_b:
        note = join(note, "neither arm varies between repeats")
    else:
        effect = 0.0 if mean_b == 0 else math.inf
        note = join(note, f"the {'candidate' if mean_b == 0 else 'reference'} does not vary between repeats")
    middle = (mean_a + mean_b) / 2
    found = detectable_ratio(float(np.sqrt((terms**2).sum())) / middle, level) if middle > 0 else NAN
    needed = repeats_for(pairs.repeats, found - 1, margin - 1 if margin else None)
    return Test(
        name,
        mean_b - mean_a,
        p,
        effect,
        low,
        high,
        found,
        needed,
        n,
        "ratio of variances",
        1 - level,
        REFERENCE,
        join(note, pairs.lost()),
    )


def detectable_ratio(
    relative_sd: float, level: float = LEVEL, power: float = POWER, df: float = math.inf
) -> float:
    """R with R - 1 = c sqrt((1 + R^2)/2), c = (t_level + t_power) relative_sd; NaN if no ratio is found."""
    c = (t_quantile(1 - level / 2, df) + t_quantile(power, df)) * relative_sd
    g = 1 - c**2 / 2
    return (1 + math.sqrt(1 - g**2)) / g if g > 0 and c > 0 else NAN


def run_mean_ratio(pairs: Paired, level: float = LEVEL, rounds: int = ROUNDS, seed: int = 0) -> Test:
    """Variance over repeats of the mean score of a whole run, candidate over reference.

    The quantity that a reader of two leaderboards sees. p: pair swaps of the correlation between
    difference and sum of the arms' run means (Pitman, Biometrika 31, 1939; Morgan, ibid.), so the MDE is R
    with atanh((R - 1)/(R + 1)) = (z_level + z_power)/sqrt(K - 3). Interval from the F distribution
    with K - 1 and K - 1 degrees of freedom (means of many questions are near normal, arms independent). Few
    repeats say little. Only questions with all repeats count.
    """
    name, k = "variance ratio of the run mean", pairs.repeats
    whole = np.isfinite(pairs.a).all(axis=1)
    if k < 3 or whole.sum() < 2:
        note = "fewer than three complete repeats" if k < 3 else FEW
        return nothing(name, join(note, pairs.lost()), int(whole.sum()), REFERENCE)
    a, b, n = pairs.a[whole], pairs.b[whole], int(whole.sum())
    p = _pitman_morgan(a, b, rounds, np.random.default_rng(seed))
    va, vb = float(np.var(a.mean(axis=0), ddof=1)), float(np.var(b.mean(axis=0), ddof=1))
    f = stats.f(k - 1, k - 1)
    z = float(stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER))
    found = math.exp(2 * z / math.sqrt(k - 3)) if k > 3 else NAN
    effect = vb / va if va > 0 else (math.inf if vb > 0 else NAN)
    note = "" if va > 0 and vb > 0 else "an arm's run mean does not vary"
    ends = (effect / f.ppf(1 - level / 2), effect * f.ppf(1 - level / 2)) if not note else (0.0, math.inf)
    return Test(
        name,
        vb - va,
        p,
        effect,
        float(ends[0]),
        float(ends[1]),
        found,
        NAN,
        n,
        "ratio of variances",
        1 - level,
        REFERENCE,
        join(note, pairs.lost()),
    )


def _pitman_morgan(a: Array, b: Array, rounds: int, rng: np.random.Generator) -> float:
    """p-value of |correlation over repeats of B_k - A_k with A_k + B_k| under pair swaps (the sum stays)."""
    d, total = b - a, (a + b).sum(axis=0)
    total = total - total.mean()

    def size(differences: Array) -> Array:
        centred = differences - differences.mean(axis=-1, keepdims=True)
        norm = np.sqrt((centred**2).sum(axis=-1) * (total**2).sum())
        return np.abs(centred @ total) / np.where(norm > 0, norm, 1)

    observed = float(size(d.sum(axis=0)))
    if observed == 0:
        return 1.0
    moved, repeat = np.nonzero(d)  # pairs that differ: their questions and repeats
    columns = np.zeros((len(moved), d.shape[1]))
    columns[np.arange(len(moved)), repeat] = d[moved, repeat]
    drawn = np.concatenate([size(block @ columns) for block in signs(len(moved), rounds, rng)])
    if len(moved) <= EXACT_UP_TO:
        return float(np.mean(drawn >= observed - slack(drawn)))
    return monte_carlo_p(observed, drawn)


def between_difference(pairs: Paired, level: float = LEVEL, rounds: int = ROUNDS, seed: int = 0) -> Test:
    """Variance between question means, candidate less reference: does the candidate spread the questions
    more (all right or all wrong) than the reference? Pair swaps; t interval by question."""
    name, n = "variance between questions", pairs.questions
    if n < 2:
        return nothing(name, join(FEW, pairs.lost()), n, REFERENCE)
    both = np.nansum(pairs.a + pairs.b, axis=1) / pairs.counts
    lever = (both - both.mean()) / (n - 1)
    terms = np.nan_to_num(pairs.differences * (lever / pairs.counts)[:, None]).ravel()
    p, _ = flip_test(terms, rounds, np.random.default_rng(seed))
    d = pairs.by_question() * lever * n
    effect, se = float(d.mean()), float(np.std(d, ddof=1) / math.sqrt(n))
    half = float(stats.t.ppf(1 - level / 2, n - 1)) * se
    return Test(
        name,
        effect,
        p,
        effect,
        effect - half,
        effect + half,
        NAN,
        NAN,
        n,
        "score squared",
        1 - level,
        REFERENCE,
        join(pairs.lost(), few_terms(int((terms != 0).sum()), level, 2, "pairs differ")),
    )


def brown_forsythe(pairs: Paired, level: float = LEVEL) -> Test:
    """Brown and Forsythe's test by question: mean distance from the question's median, candidate less
    reference, Student's t over questions (F = t^2 with 1 and n - 1 degrees of freedom).

    The median as centre keeps the level for skewed scores (Brown and Forsythe, J. Am. Stat. Assoc. 69, 1974);
    pairing by question replaces the pooled variance, since questions differ in spread. The distances of an
    odd number of repeats hold one that is always 0, in both arms alike.
    """
    name, reference = "Brown-Forsythe within questions", "Brown and Forsythe 1974"
    use = pairs.counts >= 2
    if pairs.repeats < 2 or use.sum() < 2:
        note = ONE_REPEAT if pairs.repeats < 2 else FEW
        return nothing(name, join(note, pairs.lost()), int(use.sum()), reference)
    spread_a, spread_b = (
        np.nanmean(np.abs(x - np.nanmedian(x, axis=1, keepdims=True)), axis=1)
        for x in (pairs.a[use], pairs.b[use])
    )
    d, n = spread_b - spread_a, int(use.sum())
    effect, se = float(d.mean()), float(np.std(d, ddof=1) / math.sqrt(n))
    if se == 0:
        p = 1.0 if effect == 0 else min(1.0, 2.0 ** (1 - n))
        return Test(
            name, NAN, p, effect, n=n, reference=reference, note="the spread changes alike in all questions"
        )
    t = stats.t(n - 1)
    half = float(t.ppf(1 - level / 2)) * se
    middle = (spread_a + spread_b) / 2
    mean = float(middle.mean())
    e = Estimate(effect, se, n - 1.0, pairs.pairs, pairs.span, mean, float(np.var(middle)) / n / mean**2)
    return Test(
        name,
        (effect / se) ** 2,
        float(2 * t.sf(abs(effect / se))),
        effect,
        effect - half,
        effect + half,
        detectable(e, 2, level),
        NAN,
        n,
        "mean distance from the median",
        1 - level,
        reference,
        pairs.lost(),
    )


def brown_forsythe_runs(pairs: Paired, level: float = LEVEL) -> Test:
    """Brown and Forsythe's test of the run means (one per repeat), ``scipy.stats.levene`` with the median.

    Independent arms (no shared seeds); below eight repeats the F approximation fails (7.4 %
    false alarms at four, for a level of 5 %).
    """
    name, reference = "Brown-Forsythe of run means", "Brown and Forsythe 1974"
    whole = np.isfinite(pairs.a).all(axis=1)
    if pairs.repeats < 8 or not whole.any():
        return nothing(name, "fewer than eight complete repeats", int(whole.sum()), reference)
    runs_a, runs_b = pairs.a[whole].mean(axis=0), pairs.b[whole].mean(axis=0)
    if np.ptp(runs_a) == 0 and np.ptp(runs_b) == 0:
        return Test(name, 0.0, 1.0, n=len(runs_a), reference=reference, note="no run mean varies")
    found = stats.levene(runs_a, runs_b, center="median")
    return Test(
        name,
        float(found.statistic),
        float(np.clip(found.pvalue, 0, 1)),
        float(np.std(runs_b, ddof=1) - np.std(runs_a, ddof=1)),
        n=len(runs_a),
        unit="standard deviation of the run mean",
        reference=reference,
    )
