"""Real comparisons of an arm with itself.

The arm answers every question 2 K N times, each with a seed of its own; comparison i takes its own 2 K
replies, half for either side, and its own walks in four replicates. No reply is used twice.

What this catches: a test that alarms more often than its level says, on real replies and real rounding. What
it cannot catch: what only many more comparisons would show; ``lockstep variance simulate`` runs 2,000 drawn
ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from evals.arms.config import Comparison
from evals.forced.gather import Gathered, gather
from evals.forced.walk import TASK, Walk, choose, replicate_numbers
from evals.judging.compare import decisions
from evals.judging.scores import Graded, Pair, pair
from evals.lm import Asked
from evals.store.row import Row
from validation.variance.rates import upper_limit


@dataclass
class Alarms:
    """``made`` and ``raised`` by (comparison, test): runs with a p-value, and those with one at most the
    level. ``different``: runs in which anything was called different after Holm."""

    runs: int = 0
    different: int = 0
    made: Counter[tuple[str, str]] = field(default_factory=Counter)
    raised: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)

    def limit(self, which: tuple[str, str]) -> float:
        """Upper 95 % limit of the false-alarm rate of one test."""
        return upper_limit(self.raised[which], self.made[which])


def half(repeats: int, run: int, side: int) -> range:
    """Repeats that belong to one side of one run."""
    start = (2 * run + side) * repeats
    return range(start, start + repeats)


def walks_of(
    asked: Sequence[Asked], rows: Sequence[Row], tokens: int, longest: int, repeats: int, runs: int
) -> list[list[Walk]]:
    """Walks of every run, from the replies of its own reference half."""
    requests = [each.request for each in asked]
    return [
        choose(requests, [row for row in rows if row.repeat in half(repeats, run, 0)], tokens, longest)
        for run in range(runs)
    ]


def alarms(
    comparison: Comparison,
    rows: Sequence[Row],
    grades: Mapping[str, Graded],
    walks: Sequence[Sequence[Walk]],
    repeats: int,
    runs: int,
) -> Alarms:
    """Judge every run. ``rows``: free and forced ones of the one arm; ``grades``: by task of the arms
    file."""
    found = Alarms()
    for run in range(runs):
        pairs = [_pair(task, grades[task], rows, repeats, run) for task in comparison.tasks]
        gathered = _gathered(rows, walks[run]) if comparison.forced else None
        decided = decisions(comparison, pairs, gathered, {})
        found.runs += 1
        different = [each for each in decided if each.verdict == "different"]
        found.different += bool(different)
        found.reasons += [f"run {run}: {d.comparison}, {d.test.name}: {d.reason}" for d in different]
        for each in decided:
            if each.test.p_value == each.test.p_value and not each.test.name.startswith("equivalence"):
                which = each.comparison, each.test.name
                found.made[which] += 1
                found.raised[which] += each.test.p_value <= comparison.alpha
    return found


def _pair(task: str, graded: Graded, rows: Sequence[Row], repeats: int, run: int) -> Pair:
    sides, cut = [], []
    names = {name for name, _ in graded}
    for side in (0, 1):
        own = half(repeats, run, side)
        sides.append({key: [grades[k] for k in own] for key, grades in graded.items()})
        mine = [r for r in rows if r.kind == "free" and r.task in names and r.repeat in own]
        cut.append([replace(row, repeat=row.repeat - own.start) for row in mine])
    return pair(task, (sides[0], sides[1]), (cut[0], cut[1]), repeats)


def _gathered(rows: Sequence[Row], walks: Sequence[Walk]) -> Gathered:
    walked = [row for row in rows if row.task == TASK]
    wanted = {each.key: each.tokens for each in walks}
    return gather(wanted, walked, walked, (replicate_numbers(0, 2), replicate_numbers(1, 2)))
