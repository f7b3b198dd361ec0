"""Bias, noise, tails and non-finite values of forced log-probabilities (data and permutations: ``forced``).

Catches: a shifted log-probability, a candidate that repeats itself worse than the reference, rare large
differences, NaN in one arm only. Cannot catch: what cancels over tokens (``forced.crossed`` does).
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from scipy import stats

from validation.variance.data import Array
from validation.variance.forced import (
    ONE,
    ROUNDS,
    Forced,
    _small,
    bootstrap_ratio,
    noise_by_sequence,
    permute,
    relabelings,
)
from validation.variance.intervals import satterthwaite
from validation.variance.result import LEVEL, NAN, POWER, Test, join, nothing
from validation.variance.spread import detectable_ratio

RELABEL = "relabelled replicates by sequence (Fisher 1935)"
EMPTY = "no token is finite in all replicates"
TAIL = 0.999


def ratio_interval(values: Array, tokens: Array, level: float) -> tuple[float, float]:
    """Standard error and half-width of sum(values)/sum(tokens), sequences as clusters (linearised ratio
    estimator, Cochran, Sampling Techniques, 1977, 6.4); NaN for one sequence."""
    n, total = len(values), tokens.sum()
    if n < 2:
        return NAN, NAN
    residual = values - values.sum() / total * tokens
    se = float(np.sqrt(n / (n - 1) * (residual**2).sum()) / total)
    return se, float(stats.t.ppf(1 - level / 2, n - 1)) * se


def bias(
    forced: Forced, margin: float | None = None, level: float = LEVEL, rounds: int = ROUNDS, seed: int = 0
) -> Test:
    """Mean over tokens of mean_j B_j - mean_i A_i, in nats; t interval with sequences as clusters; p by
    relabelling. ``repeats_needed``: tokens at which the MDE is ``margin``."""
    name, n, total = "bias of forced log-probabilities", len(forced.a), float(forced.tokens.sum())
    if total == 0:
        return nothing(name, EMPTY, n, RELABEL)
    n_a, n_b = forced.replicates
    sums = np.stack([(x * w).sum(axis=1) for x, w in forced.kept])
    is_a = relabelings(n_a, n_b)
    table = sums @ (np.where(is_a, -1 / n_a, 1 / n_b)).T
    if not forced.gram.any():
        note = "both arms agree bit for bit"
        return Test(name, 0.0, 1.0, 0.0, n=n, unit="nats", reference=RELABEL, note=note)
    p, smallest, drawn = permute(table, np.abs, rounds, seed)
    effect = float(table[:, 0].sum() / total)
    se, half = ratio_interval(table[:, 0], forced.tokens, level)
    null_se = float(np.sqrt(np.mean(drawn**2)) / total)
    z = float(stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER))
    found = z * max(null_se, 0.0 if math.isnan(se) else se) if smallest <= level else NAN
    needed = float(math.ceil(total * (found / margin) ** 2)) if margin and found > 0 else NAN
    note = join(forced.degenerate, _small(smallest, level, n), ONE if n == 1 else "")
    low, high = effect - half, effect + half
    return Test(name, effect, p, effect, low, high, found, needed, n, "nats", 1 - level, RELABEL, note)


def noise_ratio(
    forced: Forced, margin: float | None = None, level: float = LEVEL, rounds: int = ROUNDS, seed: int = 0
) -> Test:
    """Mean square difference between replicates of the candidate over that of the reference.

    p: the two arms' sets of replicates are exchanged as a whole per sequence, which holds whether or not the
    arms differ systematically (equal numbers of replicates are compared). Interval: delta method of the log
    ratio, sequences as clusters. MDE as for ``spread.variance_ratio``; ``margin``: a ratio.
    """
    name, n, total = "noise ratio of forced log-probabilities", len(forced.a), float(forced.tokens.sum())
    if total == 0:
        return nothing(name, EMPTY, n, RELABEL)
    noise_a, noise_b = noise_by_sequence(forced)
    level_a, level_b = float(noise_a.sum() / total), float(noise_b.sum() / total)
    if level_a == 0 and level_b == 0:
        note = "both arms repeat bit for bit"
        return Test(name, 0.0, 1.0, NAN, n=n, unit="ratio", reference=RELABEL, note=note)
    difference = noise_b - noise_a
    p, smallest, _ = permute(np.stack([difference, -difference], 1), np.abs, rounds, seed)
    note, low, high = forced.degenerate, 0.0, math.inf
    effect = level_b / level_a if level_a > 0 else math.inf
    if forced.replicates[0] != forced.replicates[1]:
        note = join(note, "unequal numbers of replicates: the permutation is approximate")
    if level_a > 0 and level_b > 0 and n > 1:
        _, half = ratio_interval(noise_b / level_b - noise_a / level_a, forced.tokens, level)
        low, high = effect * math.exp(-half), effect * math.exp(half)
    relative = float(np.sqrt((difference**2).sum())) / ((level_a + level_b) / 2 * total)
    found = detectable_ratio(relative, level, df=satterthwaite(difference**2)) if smallest <= level else NAN
    needed = float(math.ceil(total * ((found - 1) / (margin - 1)) ** 2)) if margin and found > 1 else NAN
    note = join(note, _small(smallest, level, n))
    return Test(
        name, level_b - level_a, p, effect, low, high, found, needed, n, "ratio", 1 - level, RELABEL, note
    )


def tails(forced: Forced, level: float = LEVEL, rounds: int = ROUNDS, seed: int = 0) -> Test:
    """Share of |B_j - A_i| beyond the 99.9 % quantile of |A_i - A_i'| (0.1 % if the arms are alike), and the
    largest difference (in the note).

    p: relabelling of 'share beyond a threshold between the arms, less the share within them', one-sided. The
    threshold of a sequence is the least, over all relabelings, of the 99.9 % quantile within the arms: no
    label enters, so the level holds, and outliers between the arms do not raise it. A single outlier lies in
    one sequence, and no relabelling of one sequence is rare:
    the largest difference has no p-value.
    """
    name, n, total = "tails of forced differences", len(forced.a), float(forced.tokens.sum())
    if total == 0:
        return nothing(name, EMPTY, n, RELABEL)
    n_a, n_b = forced.replicates
    pairs = list(combinations(range(n_a + n_b), 2))
    first, second = (list(x) for x in zip(*pairs, strict=True))
    sizes = [np.abs(x[first] - x[second]) for x, _ in forced.kept]  # [pairs, values] a sequence
    values = np.array([x.shape[1] for x in sizes], dtype=float)
    inside_a = [i for i, (_, j) in enumerate(pairs) if j < n_a]
    across = [i for i, (k, j) in enumerate(pairs) if k < n_a <= j]
    edge = float(np.quantile(np.concatenate([x[inside_a].ravel() for x in sizes]), TAIL))
    share = np.array([(x[across] > edge).mean(axis=0).sum() for x in sizes])
    is_a = relabelings(n_a, n_b)
    apart = is_a[:, first] != is_a[:, second]
    edges = [min(float(np.quantile(x[~inside].ravel(), TAIL)) for inside in apart) for x in sizes]
    beyond = np.stack([(x > t).sum(axis=1) for x, t in zip(sizes, edges, strict=True)]).astype(float)
    weights = apart / apart.sum(1, keepdims=True) - ~apart / (~apart).sum(1, keepdims=True)
    p, smallest, _ = permute(beyond @ weights.T, lambda x: x, rounds, seed)
    low, high = bootstrap_ratio(share, values, 1 - level, seed)
    largest = max(float(x[across].max(initial=0)) for x in sizes)
    own = max(float(x[inside_a].max(initial=0)) for x in sizes)
    note = f"largest |B - A| {largest:.3g} nats, largest |A - A'| {own:.3g}"
    return Test(
        name,
        float(beyond[:, apart[0]].sum()),
        p,
        float(share.sum() / values.sum()),
        low,
        high,
        NAN,
        NAN,
        n,
        "share beyond the reference's 99.9 %",
        1 - level,
        RELABEL,
        join(note, forced.degenerate, _small(smallest, level, n)),
    )


def nonfinite(forced: Forced, level: float = LEVEL, rounds: int = ROUNDS, seed: int = 0) -> Test:
    """Share of log-probabilities that are NaN or infinite, candidate less reference; p by relabelling.

    One in the candidate and none in the reference is a finding, whatever the p-value: the note counts them.
    """
    n_a, n_b = forced.replicates
    counts = np.array(
        [
            [(~np.isfinite(replicate)).sum() for arm in (x, y) for replicate in arm]
            for x, y in zip(forced.a, forced.b, strict=True)
        ],
        dtype=float,
    )
    size = float(sum(np.size(x[0]) for x in forced.a))
    in_a, in_b = int(counts[:, :n_a].sum()), int(counts[:, n_a:].sum())
    note = f"{in_a} not finite in the reference, {in_b} in the candidate" if in_a + in_b else ""
    table = counts @ np.where(relabelings(n_a, n_b), -1 / n_a, 1 / n_b).T
    p = permute(table, np.abs, rounds, seed)[0] if in_a + in_b and size else 1.0
    effect = float(table[:, 0].sum() / size) if size else NAN
    return Test(
        "non-finite log-probabilities",
        float(in_b - in_a),
        p,
        effect,
        n=len(forced.a),
        unit="share",
        coverage=1 - level,
        reference=RELABEL,
        note=note,
    )
