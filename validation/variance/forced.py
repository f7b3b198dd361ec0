"""Log-probabilities of forced tokens: replicates of two arms over the same tokens.

Each arm walks the same sequences at least twice. A sequence is kept as sufficient statistics of its
replicates (inner products over tokens, counts beyond a threshold), so every test, its permutations and its
bootstrap cost nothing per token.

* ``crossed``: mean of (B_j - A_i)(B_j' - A_i') over distinct replicates. Its expectation is the *squared
  systematic difference*: rounding noise that differs between replicates cancels, whatever its size in either
  arm. Weighted by the reference's probabilities over the top k it estimates twice the systematic KL.
* ``bias``, ``noise_ratio``, ``tails``, ``nonfinite``: mean, run-to-run noise, rare large differences, NaN.

Permutations relabel, per sequence, which replicates count as reference: under the null hypothesis the
replicates of a sequence are exchangeable, whatever the dependence between its tokens.

Catches: systematic differences far below the noise of a single walk. Cannot catch: a difference that honest
changes of the summation order also bring, if the reference repeats bit for bit: then there is no noise to
compare with, any other rounding is a systematic difference, and only the margin says whether it matters (the
notes say so). Let the replicates differ in what may differ: batch size, row, neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from validation.errors import UserError
from validation.variance.data import Array
from validation.variance.intervals import detectable_square, satterthwaite
from validation.variance.permutation import monte_carlo_p, slack
from validation.variance.result import LEVEL, NAN, POWER, Test, join, nothing

ROUNDS = 9999
ENUMERATED = 10_000
REFERENCE = "exchangeable replicates, Fisher 1935; U-statistic as in Gretton et al. 2012 (linear kernel)"
ONE = "one sequence: no interval over sequences (split it into blocks)"


@dataclass(frozen=True)
class Forced:
    """Per sequence: log-probabilities ``a`` [replicates, tokens] or [replicates, tokens, k] of the reference,
    ``b`` of the candidate, and ``weights`` [tokens(, k)] (None: 1), the probabilities for top-k vectors.

    The number of replicates is the same in all sequences, two or more an arm. Tokens with a value that is not
    finite in any replicate are left out of all tests but ``nonfinite``. Raises UserError otherwise.
    """

    a: Sequence[Array]
    b: Sequence[Array]
    weights: Sequence[Array] | None = None

    def __post_init__(self) -> None:
        if not len(self.a) or len(self.a) != len(self.b):
            raise UserError(
                f"the arms have {len(self.a)} and {len(self.b)} sequences; force the same ones in both arms"
            )
        for x, y in zip(self.a, self.b, strict=True):
            if np.ndim(x) not in (2, 3) or np.shape(x)[1:] != np.shape(y)[1:]:
                raise UserError(
                    "a sequence has different tokens in the two arms; log-probabilities are "
                    "[replicates, tokens] or [replicates, tokens, k] in both"
                )
        shapes = {(len(x), len(y)) for x, y in zip(self.a, self.b, strict=True)}
        if len(shapes) > 1 or min(min(shapes)) < 2:
            raise UserError("every sequence needs the same number of replicates, at least two in each arm")
        if self.weights is not None and len(self.weights) != len(self.a):
            raise UserError("weights are needed for every sequence, or for none")

    @property
    def replicates(self) -> tuple[int, int]:
        return len(self.a[0]), len(self.b[0])

    def split(self, block: int) -> Forced:
        """Blocks of ``block`` tokens as sequences of their own, for few long sequences. Permutations are
        exact then only if the noise of one block says nothing about the next."""
        if block < 1:
            raise UserError("a block has at least one token")

        def cut(arrays: Sequence[Array], axis: int) -> list[Array]:
            return [
                np.take(x, range(i, min(i + block, x.shape[axis])), axis=axis)
                for x in map(np.asarray, arrays)
                for i in range(0, x.shape[axis], block)
            ]

        return Forced(cut(self.a, 1), cut(self.b, 1), cut(self.weights, 0) if self.weights else None)

    @cached_property
    def kept(self) -> list[tuple[Array, Array]]:
        """Per sequence: all replicates [m, values], centred over replicates, and weights [values]."""
        out = []
        for s, (x, y) in enumerate(zip(self.a, self.b, strict=True)):
            both = np.concatenate([x, y]).astype(float)
            both = both.reshape(*both.shape[:2], -1)
            weight = np.ones(both.shape[1:])
            if self.weights is not None:
                weight = np.asarray(self.weights[s], dtype=float).reshape(both.shape[1:])
            good = np.isfinite(both).all(axis=(0, 2))
            both, weight = both[:, good], weight[good]
            both -= both.mean(axis=0)
            out.append((both.reshape(len(both), -1), weight.ravel()))
        return out

    @cached_property
    def tokens(self) -> Array:
        """Tokens of every sequence that count, [sequences]."""
        return np.array(
            [
                np.isfinite(np.concatenate([x, y]))
                .reshape(len(x) + len(y), np.shape(x)[1], -1)
                .all(axis=(0, 2))
                .sum()
                for x, y in zip(self.a, self.b, strict=True)
            ],
            dtype=float,
        )

    @cached_property
    def gram(self) -> Array:
        """Weighted inner products of the replicates of every sequence, [sequences, m, m]."""
        return np.stack([(x * w) @ x.T for x, w in self.kept])

    @cached_property
    def degenerate(self) -> str:
        """Which arms repeat bit for bit, in words."""
        n_a, n_b = self.replicates
        still = [
            name
            for name, n, arrays in (("reference", n_a, self.a), ("candidate", n_b, self.b))
            if all(np.array_equal(x[0], x[i], equal_nan=True) for x in arrays for i in range(1, n))
        ]
        return f"{' and '.join(still)} repeat bit for bit: no noise to compare with" if still else ""


def relabelings(n_a: int, n_b: int) -> NDArray[np.bool_]:
    """All choices of the replicates that count as reference, [choices, n_a + n_b]; the first is the truth."""
    m = n_a + n_b
    rows = np.zeros((math.comb(m, n_a), m), dtype=bool)
    for row, chosen in zip(rows, combinations(range(m), n_a), strict=True):
        row[list(chosen)] = True
    return rows


def permute(
    table: Array, score: Callable[[Array], Array], rounds: int, seed: int
) -> tuple[float, float, Array]:
    """p-value of a statistic that is a sum over sequences; table [sequences, choices(, parts)].

    Choice 0 is the truth. ``score`` maps sums [rounds(, parts)] to numbers, large in the tail. Equal choices
    (the swap of all labels) stay in; all combinations are enumerated if few. Returns p,
    the smallest p that any labelling of these data gives, and the permuted scores.
    """
    n, choices = table.shape[:2]
    observed = float(score(table[:, 0].sum(axis=0)[None])[0])
    if n * math.log(choices) <= math.log(ENUMERATED):
        index = np.stack(np.meshgrid(*[np.arange(choices)] * n, indexing="ij"), -1).reshape(-1, n)
        drawn = score(_sums(table, index))
        p = float(np.mean(drawn >= observed - slack(drawn)))
    else:
        index = np.random.default_rng(seed).integers(0, choices, (rounds, n))
        drawn = score(_sums(table, index))
        p = monte_carlo_p(observed, drawn)
    smallest = float(np.mean(drawn >= drawn.max() - slack(drawn)))
    return p, smallest, drawn


def _sums(table: Array, index: NDArray[np.int64]) -> Array:
    total = np.zeros((len(index), *table.shape[2:]))
    for row, chosen in zip(table, index.T, strict=True):
        total += row[chosen]
    return total


def _small(smallest: float, level: float, sequences: int) -> str:
    if smallest <= level:
        return ""
    return f"{sequences} sequences: the smallest possible p-value is {smallest:.2g}; force more sequences"


def crossed_table(gram: Array, n_a: int, n_b: int) -> Array:
    """Unbiased squared distance of the arms' means, summed over tokens, per sequence and relabeling:
    mean off-diagonal of AA plus that of BB minus twice the mean of AB, [sequences, choices]."""
    return np.einsum("sij,lij->sl", gram, _coefficients(n_a, n_b))


def _coefficients(n_a: int, n_b: int) -> Array:
    is_a = relabelings(n_a, n_b).astype(float)
    aa, bb = is_a[:, :, None] * is_a[:, None, :], (1 - is_a)[:, :, None] * (1 - is_a)[:, None, :]
    both = aa / (n_a * (n_a - 1)) + bb / (n_b * (n_b - 1)) - (1 - aa - bb) / (n_a * n_b)
    both[:, np.arange(n_a + n_b), np.arange(n_a + n_b)] = 0
    return np.asarray(both)


def signed_root(x: float) -> float:
    """sqrt with the sign kept: an unbiased estimate of a square may be negative."""
    return math.copysign(math.sqrt(abs(x)), x)


def crossed(
    forced: Forced,
    margin: float | None = None,
    level: float = LEVEL,
    rounds: int = ROUNDS,
    seed: int = 0,
    coverage: float | None = None,
) -> Test:
    """Systematic difference of the log-probabilities as a root mean square in nats.

    ``statistic``: S, the mean over tokens of (B_j - A_i)(B_j' - A_i'), for top-k vectors summed with their
    weights (then S estimates twice the systematic KL divergence). effect = sign(S) sqrt|S|; interval:
    bootstrap over sequences; p: relabelings, one-sided; ``mde`` and ``repeats_needed`` (tokens for rms
    ``margin``): see ``detectable_rms``.
    """
    coverage = 1 - level if coverage is None else coverage
    (n_a, n_b), tokens, n = forced.replicates, forced.tokens, len(forced.tokens)
    name = "systematic difference (crossed)"
    if tokens.sum() == 0:
        return nothing(name, "no token is finite in all replicates", n, REFERENCE)
    table = crossed_table(forced.gram, n_a, n_b)
    value = float(table[:, 0].sum() / tokens.sum())
    if not table.any():
        note = join("both arms agree bit for bit", forced.degenerate)
        return Test(name, 0.0, 1.0, 0.0, n=n, unit="rms (nats)", reference=REFERENCE, note=note)
    p, smallest, _ = permute(table, lambda x: x, rounds, seed)
    low, high = bootstrap_ratio(table[:, 0], tokens, coverage, seed)
    noise = noise_model(forced)
    return Test(
        name,
        value,
        p,
        signed_root(value),
        signed_root(low),
        signed_root(high),
        detectable_rms(noise, level) if smallest <= level else NAN,
        tokens_needed(noise, margin, level) if margin else NAN,
        n,
        "rms (nats)",
        coverage,
        REFERENCE,
        join(forced.degenerate, _small(smallest, level, n), ONE if n == 1 else ""),
    )


@dataclass(frozen=True)
class NoiseModel:
    """What the crossed statistic's noise is made of, free of any systematic difference.

    ``null_variance``: variance of S if there is none; ``linear``: extra variance per unit of S;
    ``inflation``: squared share of S that the relabelings of a real difference add to the null's spread, per
    sequence; ``df``: how many sequences carry the noise (Satterthwaite).
    """

    null_variance: float
    linear: float
    inflation: float
    tokens: float
    sequences: int
    df: float


def noise_model(forced: Forced) -> NoiseModel:
    """From differences between replicates of one arm only.

    (A_i - A_i').(B_j - B_j') over a sequence is a product of noises with variance 4 v, so v follows without
    the systematic part; S has variance 2 v_aa/(n_a (n_a - 1)) + 2 v_bb/(n_b (n_b - 1)) + 4 v/(n_a n_b),
    v_aa = v N_A/N_B and v_bb = v N_B/N_A for noise levels N. A systematic rms r adds 4 r^2 (var A/n_a + var
    B/n_b) / tokens.
    """
    (n_a, n_b), g = forced.replicates, forced.gram
    total, n = float(forced.tokens.sum()), len(g)
    ia, ib = list(combinations(range(n_a), 2)), list(combinations(range(n_a, n_a + n_b), 2))
    squares = [(g[:, i, j] - g[:, i, m] - g[:, k, j] + g[:, k, m]) ** 2 for i, k in ia for j, m in ib]
    by_sequence = np.mean(squares, axis=0) / 4
    v = float(by_sequence.sum())
    var_a, var_b = (float(x.sum()) / 2 for x in noise_by_sequence(forced))  # summed over tokens
    ratio = var_a / var_b if var_a > 0 and var_b > 0 else 1.0
    null = 2 * v * ratio / (n_a * (n_a - 1)) + 2 * v / ratio / (n_b * (n_b - 1)) + 4 * v / (n_a * n_b)
    sides = np.where(np.arange(n_a + n_b) < n_a, -0.5, 0.5)
    pure = crossed_table(np.outer(sides, sides)[None], n_a, n_b)[0]
    return NoiseModel(
        null / total**2,
        4 * (var_a / n_a + var_b / n_b) / total / total,
        float(np.mean(pure**2)),
        total,
        n,
        satterthwaite(by_sequence),
    )


def detectable_rms(
    noise: NoiseModel, level: float = LEVEL, power: float = POWER, scale: float = 1.0
) -> float:
    """Systematic rms found with ``power``: see ``intervals.detectable_square``.

    ``scale``: for a run that many times as long. NaN if both arms repeat bit for bit (any difference is
    found) or if the sequences are too few for any effect.
    """
    inflation = noise.inflation / (noise.sequences * scale)
    s = detectable_square(
        noise.null_variance / scale, noise.linear / scale, inflation, level, power, noise.df * scale
    )
    return math.sqrt(s)


def tokens_needed(noise: NoiseModel, rms: float, level: float = LEVEL) -> float:
    """Tokens (with as many more sequences) after which a systematic rms is found; NaN without noise."""
    if noise.null_variance == 0 or rms <= 0:
        return NAN
    low, high = -30.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        found = detectable_rms(noise, level, scale=2.0**middle)
        low, high = (low, middle) if found <= rms else (middle, high)
    return float(math.ceil(noise.tokens * 2.0**high))


def bootstrap_ratio(
    values: Array, tokens: Array, coverage: float, seed: int, rounds: int = 1999
) -> tuple[float, float]:
    """Percentile bootstrap over sequences of sum(values) / sum(tokens), widened for few sequences as in
    ``bootstrap.expanded`` (block bootstrap with whole sequences as blocks: Kunsch, Ann. Stat. 17, 1989)."""
    from validation.variance.bootstrap import expanded

    n = len(values)
    if n < 2:
        return NAN, NAN
    index = np.random.default_rng(seed).integers(0, n, (rounds, n))
    drawn = values[index].sum(axis=1) / np.maximum(tokens[index].sum(axis=1), 1)
    tail = (1 - expanded(coverage, n)) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def noise_by_sequence(forced: Forced) -> tuple[Array, Array]:
    """Mean over replicate pairs of the squared difference, summed over tokens, [sequences], for each arm."""
    (n_a, n_b), g = forced.replicates, forced.gram

    def squares(first: int, last: int) -> Array:
        pairs = combinations(range(first, last), 2)
        return np.asarray(np.mean([g[:, i, i] + g[:, j, j] - 2 * g[:, i, j] for i, j in pairs], axis=0))

    return squares(0, n_a), squares(n_a, n_a + n_b)
