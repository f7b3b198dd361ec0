"""Planted differences: would this run have noticed them?

The candidate's own results are spoiled after the fact and judged again by the same tests at the level of the
run, adjusted for the number of its tests. What goes unnoticed makes the run undecided.

What this catches: a comparison that could not have found anything. What it cannot show: faults smaller than
those planted; the minimum detectable effects say those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.forced.gather import Gathered
from evals.judging.scores import Pair
from validation.variance.data import Paired
from validation.variance.difference import paired_difference
from validation.variance.forced import Forced, crossed

NATS = (
    0.3  # about a third of what noise of 4-bit size in all weights does to SmolLM2-135M (rms over the top 20)
)
TIMES = 3.0  # of the minimum detectable effect


@dataclass(frozen=True)
class Control:
    """One planted difference and whether it was noticed."""

    comparison: str
    planted: str
    noticed: bool
    note: str = ""


def controls(
    pairs: Sequence[Pair], gathered: Gathered | None, level: float, tests: int, seed: int = 0
) -> list[Control]:
    """One for every task, one for the walks. ``tests``: of the run; each control has to pass Bonferroni's
    bar."""
    bar = level / max(tests, 1)
    planted = [spoiled_scores(pair, bar, seed) for pair in pairs if np.isfinite(pair.candidate.scores).any()]
    if gathered and gathered.chosen:
        planted.insert(0, noisy_walks(gathered.top or gathered.chosen, bar, seed))
    return planted


def noisy_walks(forced: Forced, bar: float, seed: int) -> Control:
    """A fixed error of NATS in the candidate's log-probabilities, the same in all its replicates."""
    rng = np.random.default_rng(seed)
    spoiled = [np.asarray(each) + NATS * rng.standard_normal(np.shape(each)[1:])[None] for each in forced.b]
    test = crossed(Forced(forced.a, spoiled, forced.weights), level=bar)
    return Control(
        "forced", f"an error of {NATS} nats in every log-probability", test.p_value <= bar, test.note
    )


def spoiled_scores(pair: Pair, bar: float, seed: int) -> Control:
    """Replies of the candidate spoiled at random until the mean has dropped by TIMES the detectable
    effect."""
    a, b = pair.reference.scores, pair.candidate.scores
    clean = paired_difference(Paired(a, b), level=bar)
    mean = float(np.nanmean(b))
    wanted = TIMES * clean.mde if math.isfinite(clean.mde) else mean
    drop = min(wanted, mean)
    share = drop / mean if mean > 0 else 0.0
    lost = np.random.default_rng(seed).random(b.shape) < share
    test = paired_difference(Paired(a, np.where(lost & np.isfinite(b), 0.0, b)), level=bar)
    note = "" if mean > 0 else "the candidate's mean score is 0: no drop can be shown; take easier questions"
    return Control(pair.task, f"a drop of {100 * drop:.0f} points", bool(test.p_value <= bar), note)
