"""Simulated comparisons: an arm with itself, or with a fault of a stated strength.

A scenario draws one comparison and names the tests that apply to it. Strength 0 is A/A: both arms draw from
the same distribution, independently.

Catches (with ``simulate``): tests whose level or power is not what they print, on data as awkward as real
ones: few unsure questions among sure ones, scores near 0 or 1, skewed lengths, heavy-tailed rounding noise
that depends on the sequence. Cannot catch: awkwardness that is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from validation.variance import distributions, forced, forced_tests, mmd, ranks, rates, spread
from validation.variance.bootstrap import bootstrap
from validation.variance.data import Array, Paired
from validation.variance.difference import naive_difference, paired_difference
from validation.variance.equivalence import tost
from validation.variance.mcnemar import mcnemar
from validation.variance.permutation import sign_flip, stratified
from validation.variance.planning import difficulty
from validation.variance.result import Test

ROUNDS = 399  # (1 + r) / 400 has exact steps of 0.25 %
Run = Callable[[Any, int], Test]


@dataclass(frozen=True)
class Scenario:
    """``draw(rng, strength)`` gives the data of one comparison, ``tests`` take it and a seed."""

    name: str
    draw: Callable[[np.random.Generator, float], Any]
    tests: Mapping[str, Run]
    strongest: float = 0.5
    control: tuple[str, ...] = ()
    level_only: tuple[str, ...] = ()  # tests whose MDE is for another kind of change
    planted: float = 0.0  # strength of the draws whose rejections are false alarms (TOST at its margin)


def binary(rng: np.random.Generator, strength: float, mix: str, repeats: int) -> Paired:
    """Right or wrong; a share ``strength`` of the candidate's replies is spoiled."""
    p = difficulty(mix)[:, None] * np.ones(repeats)
    a, b = rng.random(p.shape) < p, rng.random(p.shape) < p * (1 - strength)
    return Paired(a.astype(float), b.astype(float))


def bimodal(rng: np.random.Generator, strength: float, questions: int = 80, repeats: int = 4) -> Paired:
    """MRCR-like: verbatim (1) with a probability that differs by question, else a small ratio."""
    p = rng.beta(1.5, 0.6, (questions, 1))

    def arm(p: Array) -> Array:
        right = rng.random((questions, repeats)) < p
        return np.where(right, 1.0, rng.beta(1, 15, right.shape))

    return Paired(arm(p), arm(p * (1 - strength)))


def lengths(rng: np.random.Generator, strength: float, questions: int = 60, repeats: int = 8) -> Paired:
    """Tokens a reply, log-normal around a mean of the question; the candidate's grow by ``strength``."""
    middle = rng.normal(7.5, 0.8, (questions, 1))

    def arm(scale: float) -> Array:
        return np.ceil(scale * np.exp(middle + 0.45 * rng.standard_normal((questions, repeats))))

    return Paired(arm(1.0), arm(1.0 + strength), span=None)


def spread_lengths(rng: np.random.Generator, strength: float) -> Paired:
    """Lengths whose spread around the question's mean grows by ``strength``."""
    middle = rng.normal(2000, 500, (60, 1))

    def arm(scale: float) -> Array:
        return middle + scale * 300 * (rng.gamma(2.0, 1.0, (60, 8)) - 2)

    return Paired(arm(1.0), arm(1.0 + strength), span=None)


def loops(rng: np.random.Generator, strength: float) -> Paired:
    """Whether a reply loops: 3 % on average, more on some questions, ``strength`` more in the candidate."""
    p = rng.beta(0.5, 16, (60, 1)) * np.ones(8)
    a, b = rng.random(p.shape) < p, rng.random(p.shape) < p + strength * (1 - p)
    return Paired(a.astype(float), b.astype(float))


def copied(rng: np.random.Generator, strength: float) -> Paired:
    """Seeds that hardly reach the server: nine of ten repeats copy the question's first reply."""
    p = rng.beta(4, 2, (60, 1))

    def arm(p: Array) -> Array:
        drawn = (rng.random((60, 8)) < p).astype(float)
        return np.where(rng.random(drawn.shape) < 0.9, drawn[:, :1], drawn)

    return Paired(arm(p), arm(p * (1 - strength)))


def replies(rng: np.random.Generator, strength: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token sequences [questions, repeats, length]: a reply follows the question's usual text until it leaves
    it, then draws from its vocabulary; the candidate leaves earlier (rate times 1 + 4 x strength)."""
    questions, repeats, length = 24, 6, 40
    usual = rng.integers(0, 20, (questions, 1, length))

    def arm(rate: float) -> NDArray[np.int64]:
        leaves = rng.geometric(rate, (questions, repeats, 1))
        other = rng.integers(0, 20, (questions, repeats, length))
        return np.where(np.arange(length) < leaves, usual, other)

    return arm(0.05), arm(min(0.9, 0.05 * (1 + 4 * strength)))


def walks(rng: np.random.Generator, strength: float, top: int = 0, noisier: float = 0.0) -> forced.Forced:
    """Forced log-probabilities, 40 sequences of 48 tokens, two replicates an arm: Student-t noise with three
    degrees of freedom, correlated over tokens, of a size that differs by sequence; the candidate differs
    systematically by ``strength`` times the noise."""
    shape = (40, 4, 48, top) if top else (40, 4, 48)
    noise = rng.standard_t(3, shape)
    noise[:, :, 1:] += 0.5 * noise[:, :, :-1]
    noise *= np.exp(rng.normal(0, 0.5, 40)).reshape(-1, *[1] * (len(shape) - 1))
    noise[:, 2:] *= 1 + noisier
    base = -rng.exponential(1.0, shape[:1] + shape[2:])
    other = base + strength * rng.standard_normal(base.shape)
    a, b = base[:, None] + noise[:, :2], other[:, None] + noise[:, 2:]
    weights = np.full(base.shape, 1 / top) if top else np.ones(base.shape)
    return forced.Forced(list(a), list(b), list(weights))


def shifted_walks(rng: np.random.Generator, strength: float) -> forced.Forced:
    """The candidate's log-probabilities are lower by ``strength`` everywhere."""
    drawn = walks(rng, 0.0)
    return forced.Forced(drawn.a, [x - strength for x in drawn.b])


def hazards(rng: np.random.Generator, strength: float) -> tuple[int, int]:
    """First divergences in 20,000 tokens of either arm; the candidate's rate is 1 + 4 x strength times."""
    u = rng.random(2)  # by quantiles: the same draws at every strength
    a, b = stats.poisson.ppf(u, [30, 30 * (1 + 4 * strength)])
    return int(a), int(b)


def _seeded(test: Callable[..., Test], **options: Any) -> Run:
    return lambda data, seed: test(data, rounds=ROUNDS, seed=seed, **options)


def _plain(test: Callable[..., Test], **options: Any) -> Run:
    return lambda data, seed: test(data, **options)


def _replies_test(data: tuple[NDArray[np.int64], NDArray[np.int64]], seed: int) -> Test:
    return mmd.mmd(data[0], data[1], rounds=ROUNDS, seed=seed)


BY_QUESTION: dict[str, Run] = {
    "paired difference": _plain(paired_difference),
    "paired difference, one-sided": _plain(paired_difference, sides=1),
    "sign-flip permutation": _seeded(sign_flip),
    "bootstrap": _seeded(bootstrap),
    "Wilcoxon signed rank": _seeded(ranks.wilcoxon),
    "Brown-Forsythe within": _plain(spread.brown_forsythe),
}
BY_PAIR: dict[str, Run] = {
    "stratified difference": _seeded(stratified),
    "stratified, one-sided": _seeded(stratified, sides=1),
    "mean, pair swaps": _seeded(distributions.pair_swap),
    "variance ratio within": _seeded(spread.variance_ratio),
    "variance between questions": _seeded(spread.between_difference),
    "variance ratio of run mean": _seeded(spread.run_mean_ratio),
    "Brown-Forsythe of runs": _plain(spread.brown_forsythe_runs),
}
MCNEMAR: dict[str, Run] = {"McNemar": _plain(mcnemar)}
SHAPE: dict[str, Run] = {
    "Kolmogorov-Smirnov within": _seeded(distributions.ks_within),
    "energy distance": _seeded(mmd.energy),
}
TWO_SIDED = {name: run for name, run in BY_QUESTION.items() if "one-sided" not in name}
UNWEIGHTED = {name: run for name, run in BY_PAIR.items() if not name.startswith("stratified")}
FORCED: dict[str, Run] = {
    "crossed": _seeded(forced.crossed),
    "noise ratio": _seeded(forced_tests.noise_ratio),
    "tails": _seeded(forced_tests.tails),
    "bias": _seeded(forced_tests.bias),
}


def _at_margin(name: str, mix: str, repeats: int, margin: float) -> Scenario:
    """TOST where the true difference *is* the margin: finding equivalence is the false alarm."""
    test = {f"TOST at its margin of {margin:g}": _plain(tost, margin=margin)}
    strength = margin / float(difficulty(mix).mean())
    draw = partial(binary, mix=mix, repeats=repeats)
    return Scenario(f"{name} at margin {margin:g}", draw, test, planted=strength)


SCENARIOS: dict[str, Scenario] = {
    s.name: s
    for s in (
        Scenario(
            "aime25 K=8", partial(binary, mix="aime25", repeats=8), {**BY_QUESTION, **BY_PAIR, **MCNEMAR}
        ),
        Scenario(
            "gpqa_diamond K=8",
            partial(binary, mix="gpqa_diamond", repeats=8),
            {**BY_QUESTION, **BY_PAIR, **MCNEMAR},
        ),
        Scenario(
            "gpqa_diamond K=1",
            partial(binary, mix="gpqa_diamond", repeats=1),
            {
                k: v
                for k, v in {**BY_QUESTION, **BY_PAIR, **MCNEMAR}.items()
                if "variance ratio" not in k and "Forsythe" not in k
            },
        ),
        Scenario("mrcr K=4", bimodal, {**BY_QUESTION, **BY_PAIR, **SHAPE}, level_only=tuple(SHAPE)),
        Scenario("lengths K=8", lengths, {**TWO_SIDED, **UNWEIGHTED, **SHAPE}),
        Scenario(
            "spread of lengths K=8",
            spread_lengths,
            {
                k: v
                for k, v in {**TWO_SIDED, **UNWEIGHTED, **SHAPE}.items()
                if "variance" in k or "Forsythe" in k
            },
            strongest=4.0,
        ),
        Scenario("loop rate K=8", loops, {**TWO_SIDED, **UNWEIGHTED, **MCNEMAR}),
        Scenario(
            "copied repeats K=8",
            copied,
            {**BY_QUESTION, **MCNEMAR, "naive standard error": _plain(naive_difference)},
            control=("naive standard error",),
        ),
        Scenario("replies K=6", replies, {"MMD of replies": _replies_test}),
        Scenario("forced tokens", walks, {k: v for k, v in FORCED.items() if k != "bias"}, strongest=2.0),
        Scenario("forced top 4", partial(walks, top=4), {"crossed": FORCED["crossed"]}, strongest=2.0),
        Scenario("forced, shifted", shifted_walks, {"bias": FORCED["bias"]}),
        Scenario(
            "forced, noisier",
            lambda rng, strength: walks(rng, 0.0, noisier=strength),
            {"noise ratio": FORCED["noise ratio"]},
            strongest=4.0,
        ),
        Scenario(
            "divergences",
            hazards,
            {"hazard ratio": lambda x, seed: rates.compare_hazards(x[0], 20000, x[1], 20000)},
        ),
        _at_margin("aime25 K=4", "aime25", 4, 0.03),
        _at_margin("aime25 K=8", "aime25", 8, 0.06),
        _at_margin("gpqa_diamond K=8", "gpqa_diamond", 8, 0.03),
        _at_margin("gpqa_diamond K=1", "gpqa_diamond", 1, 0.03),
    )
}
