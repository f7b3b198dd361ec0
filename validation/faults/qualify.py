"""How many planted faults the judge notices, and by how much: the sensitivity of the suite as a number.

Catches: a change of contract, noise model or statistic that lets a known fault pass. Cannot catch: faults
that nobody planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from validation.faults.catalogue import FAULTS, Fault
from validation.judge import judge_case

# The share one case of a run gets: see run.case_share.
SHARE = 1e-7


@dataclass
class Caught:
    """One planted fault: ``factor`` is its largest statistic over the limit (wrong elements where none is
    allowed)."""

    op: str
    fault: str
    what: str
    profile: str
    case: str
    caught: bool
    factor: float
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
    factor, statistic, where = 0.0, "", ""
    for score in result.scores:
        beyond = score.ratio if score.limit > 0 else score.value
        if beyond > factor:
            factor, statistic = beyond, f"{score.output} {score.statistic}".strip()
    for finding in result.findings:
        if f"{finding.output} {finding.statistic}".strip() == statistic:
            where = finding.where
    if result.findings and not statistic:
        factor, statistic = float("inf"), result.findings[0].statistic
    caught = bool(result.findings)
    return Caught(
        fault.case.op,
        fault.name,
        fault.what,
        fault.profile,
        fault.case.line(),
        caught,
        factor,
        statistic,
        where,
    )
