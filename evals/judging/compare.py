"""Every test of a comparison, and its decision.

The token-level comparison comes first: it is the most sensitive. The tasks confirm it with what users see:
scores, their spread from run to run, lengths, loops, cuts, and the tokens themselves.

What this catches: see ``validation.variance``. What it cannot catch: a difference that no task asks for and
no walked token shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evals.arms.config import Comparison
from evals.forced.gather import Gathered
from evals.judging.scores import Pair
from evals.signals.divergence import Divergence
from evals.store.row import Row
from validation.variance.bootstrap import bootstrap
from validation.variance.data import Paired
from validation.variance.decision import Decision, Margin, around, at_most, decide, decide_all
from validation.variance.difference import paired_difference
from validation.variance.distributions import pair_swap
from validation.variance.equivalence import tost
from validation.variance.forced import crossed
from validation.variance.forced_tests import bias, noise_ratio, nonfinite, tails
from validation.variance.mcnemar import mcnemar
from validation.variance.mmd import energy, mmd, pad
from validation.variance.permutation import sign_flip
from validation.variance.ranks import wilcoxon
from validation.variance.rates import compare_hazards
from validation.variance.result import Test, nothing
from validation.variance.spread import brown_forsythe, run_mean_ratio, variance_ratio

FORCED = "forced"
RATES = ("truncated", "unparsed", "loop", "stuck")
Planned = tuple[str, Test, Margin | None]


@dataclass(frozen=True)
class Parting:
    """First divergences under the same seed: of the candidate from the reference, and of the reference's
    second run from its first."""

    candidate: Sequence[Divergence]
    itself: Sequence[Divergence]
    tokens: tuple[int, int]  # walked in common, same order


def decisions(
    comparison: Comparison, pairs: Sequence[Pair], gathered: Gathered | None, partings: Mapping[str, Parting]
) -> list[Decision]:
    """All decisions of a comparable run, Holm over all of them."""
    level = comparison.alpha
    planned = forced_tests(comparison, gathered) if comparison.forced else []
    for pair in pairs:
        planned += task_tests(pair, comparison.tasks[pair.task].margin / 100, level)
        if parting := partings.get(pair.task):
            planned.append((pair.task, parting_test(parting, level), None))
    made = decide_all(planned, level)
    made += impossible(comparison, pairs, gathered)
    return made


def forced_tests(comparison: Comparison, gathered: Gathered | None) -> list[Planned]:
    """Forced log-probabilities. The margin, a divergence D in nats per token, is a root mean square of
    sqrt(2 D): the crossed statistic over the most likely tokens estimates 2 D."""
    assert comparison.forced
    if gathered is None or gathered.chosen is None:
        why = next(iter(gathered.lost.values()), "nothing was walked") if gathered else "nothing was walked"
        return [(FORCED, nothing("systematic difference (crossed)", why), at_most(1.0))]
    level, margin = comparison.alpha, math.sqrt(2 * comparison.forced.margin)
    most_likely = gathered.top or gathered.chosen
    return [
        (FORCED, crossed(most_likely, margin, level), at_most(margin)),
        (FORCED, bias(gathered.chosen, None, level), None),
        noise_test(gathered, comparison.forced.noise_ratio, level),
        (FORCED, tails(gathered.chosen, level), None),
        (FORCED, nonfinite(gathered.chosen, level), None),
    ]


def noise_test(gathered: Gathered, limit: float, level: float) -> Planned:
    """The candidate's rounding noise against the reference's. Less noise is no fault, so the margin has one
    end; where an arm repeats bit for bit there is no ratio to hold."""
    assert gathered.chosen
    test = noise_ratio(gathered.chosen, limit, level)
    known = math.isfinite(test.effect) and math.isfinite(test.high)
    return FORCED, test, at_most(limit) if known else None


def task_tests(pair: Pair, margin: float, level: float) -> list[Planned]:
    """Scores, their spread, lengths, rates, tokens of one task. ``margin``: in score. Lengths and rates do
    not need scores: an arm that never stops has none."""
    found = _score_tests(pair, margin, level) + _length_tests(pair, level)
    for rate in RATES:
        one, two = (
            side.shares.get(rate, side.signals.get(rate)) for side in (pair.reference, pair.candidate)
        )
        if one is not None and two is not None and np.nansum(one) + np.nansum(two) > 0:
            test = pair_swap(Paired(one, two), level=level)
            found.append((pair.task, renamed(test, f"rate of {rate} replies"), None))
    return found + _token_test(pair, level)


def _score_tests(pair: Pair, margin: float, level: float) -> list[Planned]:
    name, scores = pair.task, Paired(pair.reference.scores, pair.candidate.scores)
    if not scores.questions:
        why = "no question has a score in both arms (failures, cuts or no replies)"
        return [(name, nothing("equivalence of scores", why), around(0, margin))]
    found: list[Planned] = [
        (name, tost(scores, margin, level), around(0, margin)),
        *[
            (name, test(scores, margin, level=level), None)
            for test in (paired_difference, sign_flip, wilcoxon)
        ],
        (name, bootstrap(scores, margin, level), None),
    ]
    if set(np.unique(scores.a[np.isfinite(scores.a)])) <= {0.0, 1.0}:
        found.append((name, mcnemar(scores, margin, level), None))
    if pair.repeats > 1:
        found += [
            (name, test(scores, level=level), None)
            for test in (variance_ratio, brown_forsythe, run_mean_ratio)
        ]
    return found


def _token_test(pair: Pair, level: float) -> list[Planned]:
    """The tokens of replies, of the questions to which both arms replied every time: a failure is no other
    text."""
    if pair.repeats < 2:
        return []
    whole = [
        i
        for i in range(len(pair.questions))
        if all((side.shares["failed"][i] == 0).all() for side in (pair.reference, pair.candidate))
    ]
    a, b = ([side.tokens[i] for i in whole] for side in (pair.reference, pair.candidate))
    longest = max((len(tokens) for side in (a, b) for row in side for tokens in row), default=0)
    return [(pair.task, mmd(pad(a, longest), pad(b, longest), level), None)] if longest else []


def _length_tests(pair: Pair, level: float) -> list[Planned]:
    lengths = Paired(pair.reference.signals["length"], pair.candidate.signals["length"], span=None)
    if not lengths.questions:
        return []
    found = [renamed(pair_swap(lengths, level=level), "mean length of replies")]
    if pair.repeats > 1:
        found.append(renamed(energy(lengths, level), "distribution of lengths"))
        found.append(renamed(variance_ratio(lengths, level=level), "variance ratio of lengths"))
    return [(pair.task, test, None) for test in found]


def parting_test(parting: Parting, level: float) -> Test:
    """Does the candidate part from the reference earlier than the reference from itself?"""
    events = [sum(each.diverged for each in group) for group in (parting.itself, parting.candidate)]
    test = compare_hazards(events[0], max(parting.tokens[1], 1), events[1], max(parting.tokens[0], 1), level)
    return renamed(test, "same-seed divergence against the reference's own")


def impossible(comparison: Comparison, pairs: Sequence[Pair], gathered: Gathered | None) -> list[Decision]:
    """What is a finding by itself, whatever its p-value: numbers that only the candidate gets wrong."""
    found = [decision for pair in pairs if (decision := incomplete(pair))]
    for pair in pairs:
        for name in ("infinite", "positive", "missing"):
            counts = [int(np.nansum(side.signals[name])) for side in (pair.reference, pair.candidate)]
            if counts[1] and not counts[0]:
                test = Test(f"{name} log-probabilities", statistic=float(counts[1]), n=counts[1])
                reason = f"{counts[1]} in the candidate's replies, none in the reference's"
                found.append(Decision(pair.task, test, math.nan, "different", reason, False))
    if gathered and gathered.chosen:
        test = nonfinite(gathered.chosen, comparison.alpha)
        bad = [
            sum(int((~np.isfinite(x)).sum()) for x in arm) for arm in (gathered.chosen.a, gathered.chosen.b)
        ]
        if bad[1] and not bad[0]:
            reason = f"{bad[1]} log-probabilities are not finite in the candidate, none in the reference"
            found.append(Decision(FORCED, test, math.nan, "different", reason, False))
    if gathered and gathered.lost:
        first, why = next(iter(gathered.lost.items()))
        reason = f"{len(gathered.lost)} walks are missing, the first: {first}: {why}"
        found.append(decide(FORCED, nothing("completeness of the walks", why), math.nan, error=reason))
    return found


def incomplete(pair: Pair) -> Decision | None:
    """Replies that one arm has and the other failed to give: no wrong answers, but what is left is a
    choice."""
    failed = [side.shares["failed"] == 1 for side in (pair.reference, pair.candidate)]
    lost = [int((own & ~other).sum()) for own, other in (failed, failed[::-1])]
    if not any(lost):
        return None
    reason = (
        f"replies that failed in one arm only: {lost[0]} in the reference, {lost[1]} in the candidate; "
        "--resume asks again for those that may come"
    )
    return decide(pair.task, nothing("completeness of the replies", reason), math.nan, error=reason)


def renamed(test: Test, name: str) -> Test:
    """The same test under the name of what it looked at."""
    from dataclasses import replace

    return replace(test, name=name)


def walked_in_common(found: Mapping[str, Divergence], rows: Mapping[str, Row]) -> int:
    """Tokens up to and including the first divergence, summed over replies: the exposure of its rate."""
    return sum(
        each.position + 1 if each.diverged else len(rows[key].token_ids) for key, each in found.items()
    )
