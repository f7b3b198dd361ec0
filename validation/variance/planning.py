"""How many repeats a comparison needs, before it runs.

The planning model fixes the questions: question q is answered rightly with probability p_q in both arms,
repeats are independent. Then the paired difference of the two mean scores has the within-question standard
error sqrt(2 mean(p (1 - p)) / (n K)) (Miller, arXiv 2411.00640, section 3, without the part between
questions, which cancels in pairs).

Catches: designs too small for their margin, before they cost anything. Cannot catch: a difficulty mix that is
not the model's; after the run the clustered standard error of the data replaces it.

``mde`` is the textbook value (the variance under no effect). ``honest_mde`` solves for the effect with the
variance under that effect, for a stated alternative; the two differ where most answers are right:
a fault that spoils every reply with the same probability makes sure questions unsure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from validation.errors import UserError
from validation.variance.data import Array
from validation.variance.result import LEVEL, POWER

# Assumed difficulty mixes: (probability of a right answer, number of questions).
MIXES: dict[str, tuple[tuple[float, int], ...]] = {
    "aime25": ((0.995, 22), (0.95, 4), (0.75, 2), (0.5, 2)),
    "gpqa_diamond": ((0.99, 150), (0.9, 24), (0.5, 16), (0.1, 8)),
}
# Added to the failure rate in the weights of the stratified test (stratified.py).
SOFTENER = 0.125


def difficulty(mix: str) -> Array:
    """Probability of a right answer of every question, [questions]. Raises UserError for an unknown mix."""
    if mix not in MIXES:
        raise UserError(f"no difficulty mix '{mix}'; there are {', '.join(MIXES)}")
    return np.concatenate([np.full(n, p) for p, n in MIXES[mix]])


def within_question_se(p: Array, k: float) -> float:
    """Standard error of the paired difference: sqrt(2 mean(p (1 - p)) / (n K))."""
    return math.sqrt(2 * float(np.mean(p * (1 - p))) / (len(p) * k))


def factor(sides: int = 1, level: float = LEVEL, power: float = POWER) -> float:
    """z of the level plus z of the power: 2.486 one-sided at 5 % and 80 %, 2.802 two-sided."""
    return float(stats.norm.ppf(1 - level / sides) + stats.norm.ppf(power))


def mde(p: Array, k: float, sides: int = 1, level: float = LEVEL, power: float = POWER) -> float:
    """Minimum detectable difference of mean scores, textbook formula: factor x within-question SE."""
    return factor(sides, level, power) * within_question_se(p, k)


def repeats_to_detect(p: Array, effect: float, sides: int = 1, level: float = LEVEL) -> float:
    """Repeats K (not rounded) whose textbook MDE is ``effect``."""
    return (mde(p, 1, sides, level) / effect) ** 2


def repeats_for_equivalence(p: Array, margin: float, level: float = LEVEL, power: float = 0.9) -> float:
    """Repeats K (not rounded) for TOST to hold at ``margin`` with ``power`` if there is no difference.

    K = 2 mean(p (1 - p)) (z_{1-level} + z_{(1+power)/2})^2 / (n margin^2): Julious, Stat. Med. 23 (2004),
    equivalence with true difference zero; both one-sided tests must hold, so each may fail with
    (1 - power)/2. Round up before running.
    """
    z = float(stats.norm.ppf(1 - level) + stats.norm.ppf((1 + power) / 2))
    return (z * within_question_se(p, 1) / margin) ** 2


@dataclass(frozen=True)
class Alternative:
    """How a fault lowers the scores: ``apply(p, strength)`` gives the candidate's probabilities."""

    name: str
    apply: Callable[[Array, float], Array]
    strongest: float

    def at_drop(self, p: Array, drop: float) -> Array:
        """The candidate's probabilities whose mean lies ``drop`` below that of ``p``."""
        return self.apply(
            p,
            float(
                optimize.brentq(lambda s: np.mean(p - self.apply(p, s)) - drop, 0, self.strongest, xtol=1e-10)
            ),
        )


ALTERNATIVES = (
    Alternative("spoiled replies: p (1 - f)", lambda p, f: p * (1 - f), 1.0),
    Alternative("harder questions: logit p - s", lambda p, s: special.expit(special.logit(p) - s), 20.0),
)


def honest_mde(p: Array, k: int, alternative: Alternative, weighted: bool = False, sides: int = 1) -> float:
    """Minimum detectable drop of the mean score under one alternative, with the variance it brings.

    d = factor x SE(d); ``weighted`` for the stratified test, whose weights follow the failures of both arms
    (their expected weights and the spread of the weights by the binomial distribution of 2 K replies).
    """

    def surplus(drop: float) -> float:
        signal, noise = _signal(p, alternative.at_drop(p, drop), k, weighted)
        return signal - factor(sides) * noise

    most = float(np.mean(p)) * 0.9
    return float(optimize.brentq(surplus, 1e-7, most, xtol=1e-8)) if surplus(most) > 0 else math.nan


def _signal(p: Array, q: Array, k: int, weighted: bool) -> tuple[float, float]:
    """Expected drop statistic and its standard deviation: sum over questions of weight x (a - b)."""
    levels, counts = np.unique(np.stack([p, q]), axis=1, return_counts=True)
    signal = noise = 0.0
    for (pa, pb), n in zip(levels.T, counts, strict=True):
        right = np.arange(k + 1)
        joint = np.outer(stats.binom.pmf(right, k, pa), stats.binom.pmf(right, k, pb))
        drop = (right[:, None] - right[None, :]) / k
        failures = 1 - (right[:, None] + right[None, :]) / (2 * k)
        term = drop / (failures + SOFTENER) if weighted else drop
        mean = float((joint * term).sum())
        signal += n * mean
        noise += n * float((joint * term**2).sum() - mean**2)
    return signal, math.sqrt(noise)
