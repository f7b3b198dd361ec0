"""From results to one verdict.

What this catches: findings that no ledger entry excuses, infrastructure errors, negative controls that went
unnoticed, pairs without any decisive case. What it cannot catch: faults that no case shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from validation.execution.ledger import violated
from validation.report.schema import CaseResult, Verdict

# Ways to end without an output; they do not show that the judge would have noticed a wrong one.
NO_OUTPUT = ("crash", "hang", "exception")


def verdict(
    cases: Sequence[CaseResult],
    controls: Sequence[dict[str, Any]] = (),
    ledger: Sequence[dict[str, Any]] = (),
    unserved: Sequence[str] = (),
) -> tuple[Verdict, list[str]]:
    """The verdict of a whole run, and what of it no single case shows, one reason a line.

    ``fail`` if any finding is not in the ledger, or the ledger itself is broken; ``error`` if any case
    could not be judged; ``undecided`` if a control was missed, a pair of operation and provider has nothing
    decisive, or nothing ran of an operation (``unserved``); ``pass`` otherwise.
    """
    reasons = [f"ledger entry {record['entry']}: {record['message']}" for record in violated(ledger)]
    if reasons or any(r.verdict == "fail" and not r.excused for r in cases):
        return "fail", reasons
    if errors := [r for r in cases if r.verdict == "error"]:
        return "error", [f"{_count(len(errors), 'case')} could not be judged, the first: {errors[0].note}"]
    if doubts := [*missed_controls(controls), *_doubts(cases), *unserved]:
        return "undecided", doubts
    return "pass", []


def missed_controls(controls: Sequence[dict[str, Any]]) -> list[str]:
    """Providers that had to be flagged and were not."""
    return [
        f"the negative control {control['provider']} was not flagged on {control['op']}"
        for control in controls
        if not control["flagged"]
    ]


def judge_controls(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Provider-level negative controls: per operation, on how many of their cases they were flagged."""
    return [
        {
            "provider": provider,
            "op": op,
            "cases": len(group),
            "flagged": sum(any(f.statistic not in NO_OUTPUT for f in r.findings) for r in group),
            "notes": sorted({r.note for r in group if r.note}),
        }
        for (op, provider), group in by_pair(results).items()
    ]


def by_pair(results: Sequence[CaseResult]) -> dict[tuple[str, str], list[CaseResult]]:
    """Results by operation and provider, in their order."""
    groups: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for result in results:
        groups[result.op, result.provider].append(result)
    return dict(groups)


def _doubts(cases: Sequence[CaseResult]) -> list[str]:
    """Why passes prove nothing: no decisive case, no fault planted, a planted fault not noticed."""
    doubts = [] if cases else ["no case ran"]
    for (op, provider), group in by_pair(cases).items():
        planted, caught = sum(r.controls_planted for r in group), sum(r.controls_caught for r in group)
        pair = f"{op} by {provider}"
        if not any(r.verdict in ("pass", "fail") for r in group):
            doubts.append(f"{pair}: nothing decisive: {group[0].note or 'no reason given'}")
        elif all(r.verdict == "fail" for r in group):
            continue  # known failures: that it can fail is shown
        elif not planted:
            doubts.append(f"{pair}: no fault was planted, so nothing shows that one would be noticed")
        elif caught < planted:
            doubts.append(f"{pair}: {_count(planted - caught, 'planted fault')} of {planted} went unnoticed")
    return doubts


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
