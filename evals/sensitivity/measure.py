"""False alarms of the forced comparison on an arm with itself, and the tokens after which planted faults are
found.

A run compares two replicates of each arm over the first N tokens by the crossed statistic over the most
likely tokens, at a level of 1 %. Every walk has a prompt of its own and counts as one sequence. Runs of the
arm with itself take disjoint pairs of replicates; several share their tokens, none its roundings.

What this catches: a comparison that raises more alarms than it says, or that has gone blunt. What it cannot
say: how it does on other models; the command runs on those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evals.engines.in_process import InProcessEngine
from evals.forced.walk import Walk
from evals.sensitivity.planted import Planted
from evals.sensitivity.walks import arrays, replicate
from evals.store.row import Row
from validation.variance.forced import crossed
from validation.variance.rates import upper_limit

LEVEL = 0.01
POWER = 0.80
CHECKPOINTS = (100, 300, 1000, 3000)
ROUNDS = 1999
Tick = Callable[[int], None]


@dataclass(frozen=True)
class Size:
    """``sets`` of walks of ``tokens`` tokens; ``groups`` runs of the arm with itself on each set."""

    tokens: int = 3000
    sets: int = 50
    groups: int = 4

    @property
    def checkpoints(self) -> list[int]:
        return [n for n in CHECKPOINTS if n <= self.tokens]

    @property
    def replicates(self) -> int:
        """Different ones that are needed: four a group, and two of every fault."""
        return 4 * self.groups + 2


@dataclass
class Rates:
    """Alarms by number of tokens, of ``runs``. ``rms``: the systematic difference found at the last
    checkpoint, nats."""

    name: str
    runs: int
    alarms: dict[int, int] = field(default_factory=dict)
    rms: float = math.nan
    within: int = 0

    @property
    def found_within(self) -> int | None:
        """Tokens after which at least 80 % of the runs found it, then and later."""
        found = None
        for tokens, alarms in sorted(self.alarms.items(), reverse=True):
            if alarms < POWER * self.runs:
                break
            found = tokens
        return found

    def missed(self, tokens: int) -> bool:
        """A promise that a run of ``tokens`` tokens could show and did not."""
        if not 0 < self.within <= tokens:
            return False
        return self.found_within is None or self.found_within > self.within

    def limit(self, tokens: int) -> float:
        """Upper 95 % limit of the rate."""
        return upper_limit(self.alarms[tokens], self.runs)


def with_itself(
    engine: InProcessEngine, sets: Sequence[list[Walk]], size: Size, seed: int, tick: Tick
) -> tuple[Rates, list[list[list[Row]]]]:
    """A/A runs. Also the first two replicates of every set, which planted faults are compared with."""
    rates = Rates("the arm with itself", 0, dict.fromkeys(size.checkpoints, 0))
    reference: list[list[list[Row]]] = [[] for _ in sets]
    flat = [walk for group in sets for walk in group]
    found = []
    for group in range(size.groups):
        rows = [replicate(engine, flat, 4 * group + r, tick) for r in range(4)]
        for s, cut in enumerate(_cuts(sets)):
            own = [each[cut] for each in rows]
            if group == 0:
                reference[s] = own[:2]
            rates.runs += 1
            found.append(_count(rates, own[:2], own[2:], seed + rates.runs))
    rates.rms = sum(found) / len(found)
    return rates, reference


def with_fault(
    engine: InProcessEngine,
    fault: Planted,
    sets: Sequence[list[Walk]],
    reference: Sequence[list[list[Row]]],
    size: Size,
    seed: int,
    tick: Tick,
) -> Rates:
    """The same comparison, the candidate's replicates computed with the fault in the model."""
    rates = Rates(fault.name, len(sets), dict.fromkeys(size.checkpoints, 0), within=fault.within)
    flat = [walk for group in sets for walk in group]
    first = 4 * size.groups
    with fault.plant(engine.model):
        rows = [replicate(engine, flat, first + r, tick) for r in range(2)]
    found = []
    for s, cut in enumerate(_cuts(sets)):
        found.append(_count(rates, reference[s], [each[cut] for each in rows], seed + s))
    rates.rms = sum(found) / len(found)
    return rates


def _count(rates: Rates, a: Sequence[Sequence[Row]], b: Sequence[Sequence[Row]], seed: int) -> float:
    effect = math.nan
    both = arrays(a, b)
    for tokens in rates.alarms:
        test = crossed(both.first(tokens), level=LEVEL, rounds=ROUNDS, seed=seed)
        rates.alarms[tokens] += test.p_value <= LEVEL
        effect = test.effect
    return effect


def _cuts(sets: Sequence[list[Walk]]) -> list[slice]:
    cuts, start = [], 0
    for group in sets:
        cuts.append(slice(start, start + len(group)))
        start += len(group)
    return cuts
