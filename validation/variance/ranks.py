"""Wilcoxon's signed-rank test by question, for bimodal scores (an MRCR answer is verbatim or nothing).

Catches: a change in most questions, however the size of a change is distributed. Cannot catch: few large
losses among many small gains; the mean difference is the test for that.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from validation.variance.data import Array, Paired
from validation.variance.difference import FEW, repeats_for
from validation.variance.permutation import ROUNDS, few_terms, flip_test
from validation.variance.result import LEVEL, NAN, POWER, Test, join, nothing

REFERENCE = "Wilcoxon 1945; Pratt 1959"


def signed_ranks(d: Array) -> Array:
    """Signed ranks of |d|, ties averaged; zeros take the lowest ranks and then count 0 (Pratt, J. Am. Stat.
    Assoc. 54, 1959), so that many unchanged questions do not inflate the changed ones."""
    size = np.round(np.abs(d), 12)
    return np.asarray(stats.rankdata(size) * np.sign(np.where(size == 0, 0, d)))


def wilcoxon(
    pairs: Paired,
    margin: float | None = None,
    level: float = LEVEL,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Test:
    """Permutation of the signs of the ranks: exact for up to 13 changed questions, Monte Carlo otherwise, so
    ties, zeros and small samples do not matter.

    The effect is the matched-pairs rank-biserial correlation, sum of signed ranks / sum of all ranks of
    changed and unchanged questions, in [-1, 1] (Kerby 2014); its interval a t interval over questions. The
    MDE is (z_level + z_power) x its standard deviation under the null, widened by the effect itself
    (Noether, J. Am. Stat. Assoc. 82, 1987, for the idea).
    """
    n, d = pairs.questions, pairs.by_question()
    if n < 2:
        return nothing("Wilcoxon signed rank", join(FEW, pairs.lost()), n, REFERENCE)
    ranks = signed_ranks(d)
    p, _ = flip_test(ranks, rounds, np.random.default_rng(seed))
    whole = n * (n + 1) / 2
    effect = float(ranks.sum() / whole)
    z = float(stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER))
    null_sd = float(np.sqrt((ranks**2).sum()) / whole)
    still = float(np.mean(ranks == 0))  # a question that starts to change brings a rank of up to n
    g = z**2 * 2 * still / (n + 1)
    found = float((g + np.sqrt(g**2 + 4 * (z * null_sd) ** 2)) / 2) if null_sd > 0 else NAN
    half = float(stats.t.ppf(1 - level / 2, n - 1) * np.std(ranks, ddof=1) * np.sqrt(n) / whole)
    return Test(
        "Wilcoxon signed rank",
        float(ranks[ranks > 0].sum()),
        p,
        effect,
        max(-1.0, effect - half) if half > 0 else -1.0,
        min(1.0, effect + half) if half > 0 else 1.0,
        found if found < 1 else NAN,
        repeats_for(pairs.repeats, found, margin),
        n,
        "rank-biserial correlation",
        1 - level,
        REFERENCE,
        join(pairs.lost(), few_terms(int(np.count_nonzero(ranks)), level, 2, "questions changed")),
    )
