"""Which cases the tools see: for each tactic of the dispatch table a few small ones.

A tool makes a kernel 10 to 100 times slower, so the cases are those of the quick tier, whose sizes are small
and odd: rows that no tile divides, empty requests, padding. A tactic is told by the kernels that a case
launches and by the range of rows of the table in which it lies.

What this cannot find: a fault that only real widths show; two tactics that launch the same kernels on the
same rows (another condition of the table) count as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from validation.contracts import contract_named
from validation.contracts.contract import Case
from validation.providers import Implementation

PER_TACTIC = 2
# Storage of gigabytes, which the tools would have to shadow; offsets beyond 2**31 are the judge's business.
TOO_LARGE = ("wide_offsets", "wide_rows")

Tactic = tuple[tuple[str, ...], int]


def chosen(implementation: Implementation) -> list[Case]:
    """Of every tactic the smallest case, and the smallest of another regime and shape, in their order."""
    cases = [
        case for case in contract_named(implementation.op).cases("quick") if case.regime not in TOO_LARGE
    ]
    groups: dict[Tactic, list[Case]] = {}
    for case in sorted((c for c in cases if not implementation.refuses(c)), key=size):
        groups.setdefault(tactic(case, implementation), []).append(case)
    kept = {case.line() for group in groups.values() for case in _different(group)}
    return [case for case in cases if case.line() in kept]


def tactic(case: Case, implementation: Implementation) -> Tactic:
    """Kernels that the case launches, each once, and the upper end of its range of rows in the table."""
    kernels = implementation.kernels(case) if implementation.kernels else ()
    ends = sorted({route.rows for route in implementation.table})
    return tuple(dict.fromkeys(kernels)), next((end for end in ends if rows(case) <= end), 0)


def rows(case: Case) -> int:
    """What the dispatch tables go by: rows of the step, or the operation's own measure in their place."""
    shape = dict(case.shape)
    named = next((shape[name] for name in ("vocabulary", "wanted", "rows", "batch") if name in shape), None)
    return named if named is not None else shape.get("requests", 1) * shape.get("tokens", 1)


def size(case: Case) -> int:
    """A measure of the work."""
    return math.prod(max(1, abs(value)) for _, value in case.shape)


def _different(group: Sequence[Case]) -> list[Case]:
    """The first, and the first that differs from all before in regime and shape."""
    kept: list[Case] = []
    for case in group:
        if all(case.regime != other.regime and case.shape != other.shape for other in kept):
            kept.append(case)
    return kept[:PER_TACTIC]
