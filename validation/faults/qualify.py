"""How many planted faults the judge notices, and by how much: the sensitivity of the suite as a number.

Catches: a change of contract, noise model or statistic that lets a known fault pass. Cannot catch: faults
that nobody planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from validation.execution.plan import BUDGET, share
from validation.faults.catalogue import FAULTS, Fault
from validation.judge import judge_case

# What one case of a run gets, so that what is caught here is caught there.
SHARE = share(BUDGET, 1)


@dataclass
class Caught:
    """One planted fault: ``factor`` is its largest statistic over the limit; with ``counted``, the number of
    wrong elements where none is allowed."""

    op: str
    fault: str
    what: str
    profile: str
    case: str
    caught: bool
    factor: float
    counted: bool
    statistic: str
    where: str


def qualify(
    ops: Iterable[str], device: str, progress: Callable[[str], None] = lambda text: None
) -> list[Caught]:
    """Plant every fault of the named operations in its one case."""
    results = []
    for op in ops:
        for fault in FAULTS[op]():
            progress(f"{op}: {fault.name}")
            results.append(plant(fault, device))
    return results


def plant(fault: Fault, device: str) -> Caught:
    result = judge_case(fault.case, fault.implementation(), device, share=SHARE)
    # A statistic with a limit says how close the call was; only where there is none do wrong elements count.
    worst = max(
        result.findings,
        key=lambda f: (f.limit > 0, f.value / f.limit if f.limit > 0 else f.value),
        default=None,
    )
    # A fault that stops with an exception was not noticed by its numbers: it was planted wrongly.
    caught = worst is not None and all(f.statistic != "exception" for f in result.findings)
    factor, counted, statistic, where = 0.0, False, "", ""
    if worst:
        counted = worst.limit == 0
        factor = worst.value if counted else worst.value / worst.limit
        statistic, where = f"{worst.output} {worst.statistic}".strip(), worst.where
    return Caught(
        op=fault.case.op,
        fault=fault.name,
        what=fault.what,
        profile=fault.profile,
        case=fault.case.line(),
        caught=caught,
        factor=factor,
        counted=counted,
        statistic=statistic,
        where=where,
    )
