"""Honest variants: how wide the statistics really spread, and whether any raises an alarm.

Every variant is an honest kernel at a case of the quick tier with a fresh seed, a drawn order of summation
and one of the contract's profiles. Two results: the number of false alarms with the calibrated limits in
force, and the inflation each statistic would need (1 where the model is wide enough).

Catches: a noise model that is too narrow. Cannot catch: one that is too wide (the mean square says so, and
``qualify`` does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from validation.contracts import contract_named
from validation.contracts.arena import Arena
from validation.contracts.contract import Case
from validation.faults.catalogue import honest
from validation.faults.orders import honest_order
from validation.faults.qualify import SHARE
from validation.judge import assess, observe, on_device, predict
from validation.numerics.choices import Choice
from validation.numerics.scores import Statistic
from validation.providers import Implementation

PROFILES = ("stock", "specialized")


@dataclass
class Spread:
    """What the honest variants of one operation showed. ``needed``: output -> statistic -> inflation
    factor."""

    op: str
    variants: int = 0
    unserved: int = 0  # cases of the tier that the provider refuses: none of their variants is run
    needed: dict[str, dict[str, float]] = field(default_factory=dict)
    largest: dict[str, dict[str, float]] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    squares: dict[str, float] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)

    def mean_squares(self) -> dict[str, float]:
        """Mean square of the scores by output; 1 where the noise is as predicted."""
        return {name: self.squares[name] / self.elements[name] for name in self.squares}


def variants(
    op: str, count: int, seed: int, provider: Implementation | None = None
) -> Iterator[tuple[Case, Implementation]]:
    """``count`` cases of fresh seeds, each with an honest kernel in a drawn order, or with ``provider``'s:
    then of those that it serves, which may be none."""
    cases = served(op, provider)
    for number in range(count if cases else 0):
        draw = seed * 100_000 + number
        case = replace(cases[number % len(cases)], seed=1_000_000 + draw)
        profile = PROFILES[(number // len(cases)) % len(PROFILES)]
        yield case, provider or honest(op, profile, honest_order(draw))


def served(op: str, provider: Implementation | None) -> list[Case]:
    """The cases of the quick tier that ``provider`` does not refuse; all of them without a provider."""
    cases = contract_named(op).cases("quick")
    return [case for case in cases if provider is None or not provider.refuses(case)]


def spread(
    op: str,
    count: int,
    seed: int,
    device: str,
    progress: Callable[[], None] = lambda: None,
    provider: Implementation | None = None,
) -> Spread:
    """Run ``count`` honest variants of one operation, or ``count`` cases of a provider taken to be honest."""
    result = Spread(op, unserved=len(contract_named(op).cases("quick")) - len(served(op, provider)))
    for case, kernel in variants(op, count, seed, provider):
        _variant(result, case, kernel, device, count)
        progress()
    return result


def _variant(result: Spread, case: Case, kernel: Implementation, device: str, count: int) -> None:
    contract = contract_named(case.op)
    clean = on_device(contract.build(case), device)
    arena = Arena(contract, clean, device)
    kernel.function(arena.arguments)
    label = f"{case.line()} ({kernel.provider}, {kernel.profile})"
    result.variants += 1
    result.alarms += [f"{label}: {v.message}" for v in arena.check()]
    observed = observe(contract, arena.outcome())
    made = contract.adopt(clean, arena.outcome())
    predicted = predict(contract, kernel.profile, device, "profile", made)
    for output in contract.outputs:
        if output.name not in predicted:
            continue
        seen = observed[output.name]
        for statistic in assess(contract, output, seen, predicted, SHARE):
            if statistic.failed:
                result.alarms.append(f"{label}: {output.name} {statistic.name} {statistic.detail}")
        if output.exact or isinstance(predicted[output.name], Choice):
            continue
        for statistic in assess(contract, output, seen, predicted, SHARE, raw=True):
            _note(result, output.name, statistic, count)


def _note(result: Spread, output: str, statistic: Statistic, count: int) -> None:
    needed = result.needed.setdefault(output, {})
    largest = result.largest.setdefault(output, {})
    ratio = statistic.value / statistic.limit if statistic.limit > 0 else 0.0
    largest[statistic.name] = max(largest.get(statistic.name, 0.0), ratio)
    needed[statistic.name] = max(needed.get(statistic.name, 1.0), needed_factor(statistic, count))
    if statistic.mean_square is not None:
        result.squares[output] = result.squares.get(output, 0.0) + statistic.mean_square
        result.elements[output] = result.elements.get(output, 0) + 1


def needed_factor(statistic: Statistic, count: int) -> float:
    """The inflation that puts this value where the largest of ``count`` honest ones is expected.

    A statistic's limit belongs to level x = ln(2 tests / share); the largest of ``count`` variants is
    expected near the limit of level x_n = ln(2 tests count). Deviations grow as the square root of the level
    (of a mean square's excess over 1: at most in proportion).
    """
    if statistic.level <= 0 or statistic.share <= 0 or statistic.limit <= 0:
        return 1.0
    expected = max(statistic.level + math.log(statistic.share * count), 1.0) / statistic.level
    expected = min(expected, 1.0)
    if statistic.name == "mean_square":
        return max(1.0, math.sqrt(statistic.value / (1 + (statistic.limit - 1) * expected)))
    return max(1.0, statistic.value / statistic.limit / math.sqrt(expected))
