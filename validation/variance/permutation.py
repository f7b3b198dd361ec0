"""Permutation tests of paired arms: exact where few swaps are possible, Monte Carlo otherwise.

Under the null hypothesis the two replies of a (question, repeat) pair may be exchanged; with shared seeds
too, because a pair stays together. ``sign_flip`` exchanges whole questions, ``stratified`` single pairs.

Catches: what their statistic measures, at a false-alarm rate that is exact for any distribution of scores.
Cannot catch: differences with so few discordant pairs that no exchange reaches the level (the note says so).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from validation.variance.data import Array, Paired
from validation.variance.difference import FEW, estimate, repeats_for
from validation.variance.intervals import detectable, interval
from validation.variance.planning import SOFTENER
from validation.variance.result import LEVEL, NAN, POWER, Test, join, nothing

REFERENCE = "Fisher 1935; Phipson and Smyth 2010, arXiv 1603.05766"
EXACT_UP_TO = 13  # 2^13 = 8,192 sign patterns are enumerated
ROUNDS = 9999
BATCH = 2_000_000  # signs drawn at once


def monte_carlo_p(observed: float, drawn: Array) -> float:
    """(1 + number of draws at least as large) / (1 + draws): never 0 (Phipson and Smyth, 2010)."""
    return float((1 + np.count_nonzero(drawn >= observed - slack(drawn))) / (1 + len(drawn)))


def slack(drawn: Array) -> float:
    """Rounding below which two permuted sums are ties; relative, since statistics may be of any size."""
    return 1e-9 * float(np.abs(drawn).max(initial=0.0))


def signs(n: int, rounds: int, rng: np.random.Generator) -> Iterator[Array]:
    """Blocks [rounds of the block, n] of +1 and -1: all 2^n if n is small, else ``rounds`` drawn ones."""
    if n <= EXACT_UP_TO:
        codes = np.arange(2**n)[:, None] >> np.arange(n)[None, :]
        yield (1 - 2 * (codes & 1)).astype(float)
        return
    block = max(1, BATCH // n)
    for start in range(0, rounds, block):
        size = min(block, rounds - start)
        yield np.asarray(1.0 - 2.0 * rng.integers(0, 2, (size, n), dtype=np.int8), dtype=np.float64)


def flip_test(
    terms: Array, rounds: int, rng: np.random.Generator, sides: int = 2, sign: int = -1
) -> tuple[float, Array]:
    """p-value of sum(terms) under random signs of every term, and the permuted sums.

    Exact (share of all patterns, the observed one among them) for up to 13 terms that are not zero, Monte
    Carlo otherwise. ``sides=1``: large in the direction ``sign``.
    """
    kept = terms[terms != 0]
    if not len(kept):
        return 1.0, np.zeros(1)
    observed = float(kept.sum())
    drawn = np.concatenate([block @ kept for block in signs(len(kept), rounds, rng)])
    reach: Callable[[Array], Array] = np.abs if sides == 2 else lambda x: sign * x
    goal = float(reach(np.array(observed)))
    if len(kept) <= EXACT_UP_TO:
        return float(np.mean(reach(drawn) >= goal - slack(drawn))), drawn
    return monte_carlo_p(goal, reach(drawn)), drawn


def sign_flip(
    pairs: Paired,
    margin: float | None = None,
    sides: int = 2,
    level: float = LEVEL,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Test:
    """Permutation of the mean difference: the sign of every question's difference is flipped (Fisher, The
    Design of Experiments, 1935, section 21). Interval and MDE are those of the clustered standard error."""
    n, d = pairs.questions, pairs.by_question()
    if n < 2:
        return nothing("sign-flip permutation", join(FEW, pairs.lost()), n, REFERENCE)
    p, _ = flip_test(d, rounds, np.random.default_rng(seed), sides)
    e = estimate(pairs)
    found = detectable(e, sides, level)
    low, high = interval(e, 1 - level)
    note = join(pairs.lost(), few_terms(int(np.count_nonzero(d)), level, sides, "questions differ"))
    return Test(
        "sign-flip permutation",
        float(d.sum()),
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


def stratified(
    pairs: Paired,
    margin: float | None = None,
    sides: int = 2,
    level: float = LEVEL,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Test:
    """Pair-swap permutation of a weighted difference: sure questions count more.

    T = sum_q w_q mean_k (b - a), w_q = 1 / (1 - m_q + 1/8) with m_q the mean score of question q over both
    arms. A fault that spoils any reply with the same probability lowers p_q by a share of p_q, and p / (p (1
    - p)) = 1 / (1 - p) is then the most powerful weight (Mantel and Haenszel 1959 for strata; the locally
    best weight is effect over variance); 1/8 softens it, because m_q is known from 2 K replies only. Swaps
    leave m_q alone, so the level is exact. Equal weights are best against a common shift of the logit. The
    effect is the weighted mean difference; scores in [0, span].
    """
    name = "stratified difference"
    n = pairs.questions
    if n < 2 or pairs.span is None:
        return nothing(name, FEW if n < 2 else "scores have no range to weight by", n, REFERENCE)
    weight = stratum_weights(pairs)
    terms = np.nan_to_num(pairs.differences * (weight / pairs.counts)[:, None]).ravel()
    p, _ = flip_test(terms, rounds, np.random.default_rng(seed), sides)
    by_question = pairs.by_question() * weight / weight.mean()
    effect = float(by_question.mean())
    se = float(np.std(by_question, ddof=1) / np.sqrt(n))
    t = float(stats.t.ppf(1 - level / 2, n - 1)) * se
    null_sd = float(np.sqrt((terms**2).sum()) / weight.sum())
    found = noisy_effect(null_sd, pairs.pairs, sides, level)
    plain = interval(estimate(pairs), 1 - level)
    low, high = (effect - t, effect + t) if se > 0 else plain
    note = join(pairs.lost(), few_terms(int(np.count_nonzero(terms)), level, sides, "pairs differ"))
    return Test(
        name,
        float(terms.sum()),
        p,
        effect,
        low,
        high,
        found,
        repeats_for(pairs.repeats, found, margin),
        n,
        "weighted score",
        1 - level,
        REFERENCE,
        note,
    )


def stratum_weights(pairs: Paired) -> Array:
    """1 / (failure rate of the question in both arms + 1/8)."""
    assert pairs.span is not None
    mean = np.nansum(pairs.a + pairs.b, axis=1) / (2 * pairs.counts * pairs.span)
    return np.asarray(1 / (1 - np.clip(mean, 0, 1) + SOFTENER))


def noisy_effect(null_sd: float, pairs: int, sides: int, level: float, power: float = POWER) -> float:
    """d = (z_level + z_power) sqrt(null_sd^2 + d / pairs): the effect's own noise as in ``detectable``."""
    z = float(stats.norm.ppf(1 - level / sides) + stats.norm.ppf(power))
    if null_sd == 0:
        return NAN
    g = z**2 / pairs
    return float((g + np.sqrt(g**2 + 4 * (z * null_sd) ** 2)) / 2)


def few_terms(n: int, level: float, sides: int, what: str) -> str:
    """Why no pattern of signs can reach the level, if it cannot."""
    if n == 0:
        return "all scores are equal in both arms"
    smallest = min(1.0, sides * 2.0**-n)
    return f"only {n} {what}: the smallest possible p-value is {smallest:.2g}" if smallest > level else ""
