"""Is a case that somebody typed one of its operation's kind? Asked before anything is built.

What this catches: sizes that are missing, unknown or given twice, and sizes out of the range of the
contract's own cases (up to ten times their largest). What it cannot catch: sizes that do not go together;
building the case does, and says so in one line.
"""

from __future__ import annotations

from validation.contracts.contract import Case, Contract, Tier
from validation.errors import UserError
from validation.trace import shortened

TIERS: tuple[Tier, ...] = ("quick", "full")
BEYOND = 10  # times the largest of the contract's own cases


def check_case(case: Case, contract: Contract) -> None:
    """Raise UserError unless the case has a regime of the contract and sizes such as its own cases have."""
    contract.regime(case.regime)
    own = [c for tier in TIERS for c in contract.cases(tier)]
    names = [name for name, _ in case.shape]
    line = shortened(case.line())
    every = set.intersection(*({name for name, _ in c.shape} for c in own))
    ranges = _ranges(own)
    if not every <= set(names) <= set(ranges) or len(names) > len(set(names)):
        raise UserError(f"'{line}' does not have the sizes of {case.op}, which are {_form(ranges, every)}")
    for name, size in case.shape:
        low, high = ranges[name]
        if not low <= size <= high:
            raise UserError(f"'{line}': {name} of {case.op} must be from {low} to {high}")


def _ranges(own: list[Case]) -> dict[str, tuple[int, int]]:
    """Smallest and largest accepted value of each size; 0 and -1 only where the contract's cases use them."""
    sizes: dict[str, list[int]] = {}
    for case in own:
        for name, size in case.shape:
            sizes.setdefault(name, []).append(size)
    return {name: (min(1, *found), BEYOND * max(1, *found)) for name, found in sizes.items()}


def _form(ranges: dict[str, tuple[int, int]], every: set[str]) -> str:
    words = ",".join(f"{name}=N" for name in ranges if name in every)
    optional = ", ".join(name for name in ranges if name not in every)
    return words + (f" (and, where they apply, {optional})" if optional else "")
