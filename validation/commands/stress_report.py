"""The report of ``lockstep stress``: cases, controls and details of its document, and its lines.

What this catches: nothing; it shows what the run gave. What it cannot show: every lane's record; the document
has the first of each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from validation.report.schema import CaseResult, Document, Finding
from validation.stress.campaign import CONTRACT, Plan, Results
from validation.stress.outcome import Outcome
from validation.stress.repeats import CONTRACT as STEPS_CONTRACT

if TYPE_CHECKING:
    from validation.report.schema import Verdict


def cases(results: Results) -> list[CaseResult]:
    """One case a run that should not fail."""
    return [_case(outcome, results) for outcome in (*results.runs, *results.quiet)]


def _case(outcome: Outcome, results: Results) -> CaseResult:
    from validation.stress.layout import layout
    from validation.stress.script import reaches
    from validation.sync.kimi_k3 import subject

    plan, job = results.plan, outcome.job
    said = outcome.failures(layout(reaches(subject()), plan.ranks, plan.lanes))
    verdict: Verdict = "error" if outcome.deaths else "fail" if said else "pass"
    words = f"ranks={plan.ranks},layers={job.layers},steps={job.steps},seed={job.seed}"
    case = CaseResult(job.name, "triton", words, verdict, seconds=outcome.seconds)
    case.note = f"{outcome.exchanges:,} exchanges" + (f"; {said[0]}" if outcome.deaths else "")
    if verdict == "fail":
        case.findings = [_finding(job.name, words, line, plan) for line in said[:8]]
    return case


def _finding(name: str, words: str, line: str, plan: Plan) -> Finding:
    statistic, _, rest = line.partition(": ")
    again = f"lockstep stress --device {plan.device} --ranks {plan.ranks} --lanes {plan.lanes}"
    again += f" --layers {plan.layers} --batches {' '.join(map(str, plan.batches))} --seed {plan.seed}"
    return Finding(
        "stress", name, "triton", words, statistic, "", 1.0, 0.0, rest.split(":")[0], line,
        again,
    )  # fmt: skip


def controls(results: Results) -> list[dict[str, Any]]:
    """Planted faults, and drills of the watchdog."""
    found: list[dict[str, Any]] = [
        {
            "provider": c.fault.name,
            "op": "stress",
            "flagged": c.found,
            "kind": c.fault.kind,
            "modes": list(c.fault.modes),
            "exchanges": c.after,
            "as": c.words,
            "seconds": c.seconds,
        }
        for c in results.controls
    ]
    return found + [
        {
            "provider": d.kind,
            "op": "watchdog",
            "flagged": d.right,
            "victim": d.victim,
            "as": d.words,
            "seconds": d.seconds,
        }
        for d in results.drills
    ]


def details(results: Results) -> dict[str, Any]:
    """What only this layer has."""
    from validation.stress import bound

    plan = results.plan
    skewed = sum(run.seconds for run in results.runs)
    return {
        "exchanges": results.exchanges,
        "lane_exchanges": results.exchanges * plan.lanes,
        "wanted": plan.exchanges,
        "rate_below": bound.upper_rate(results.exchanges),
        "seconds_skewed": skewed,
        "microseconds": skewed / results.exchanges * 1e6 if results.exchanges else 0.0,
        "exchanges_a_step": results.a_step,
        "steps": {run.job.name: run.steps for run in (*results.runs, *results.quiet)},
        "determinism": determinism(results),
        "timed_us": results.timed,
        "fused": results.fused[0].exchanges if results.fused else 0,
        "tensors": results.tensors[0].exchanges if results.tensors else 0,
    }


def determinism(results: Results) -> dict[str, Any]:
    """The two contracts, and over how many steps each was kept, by run or backend."""
    steps = [
        {
            "backend": one.backend,
            "device": one.device,
            "steps": one.steps,
            "walks": list(one.walks),
            "parted": one.parted,
            "flipped_bit_noticed": one.noticed,
        }
        for one in results.repeats
    ]
    return {
        "exchanges": {"contract": CONTRACT, "compared_steps": results.compared},
        "decode_steps": {"contract": STEPS_CONTRACT, "backends": steps},
    }


def lines(results: Results, document: Document) -> Iterator[str]:
    """The report on a terminal."""
    plan = results.plan
    words = f"{plan.ranks} ranks, {plan.lanes * 64} columns, {len(plan.layers)} layers"
    fewest = ", ".join(f"{count} ({name})" for name, count in results.a_step.items())
    yield f"{words}, at least {fewest} exchanges a step, on {document.environment['device']}"
    for run in (*results.runs, *results.quiet):
        each = run.seconds / run.exchanges * 1e6 if run.exchanges else 0.0
        yield f"{run.job.name:20} {run.steps:9,} steps {run.exchanges:12,} exchanges {each:10,.1f} us each"
    if results.compared:
        yield f"contract: {CONTRACT}"
    for name, steps in results.compared.items():
        yield f"{name:20} bit-equal to the quiet run over {steps:,} steps, on every rank"
    if results.repeats:
        yield f"contract: {STEPS_CONTRACT}"
    for repeat in results.repeats:
        words = "bit-equal, twice and under load" if not repeat.parted else repeat.parted[0]
        flipped = "a flipped bit is noticed" if repeat.noticed else "a flipped bit is NOT noticed"
        yield f"decode steps by {repeat.backend}, {repeat.steps} of them: {words}; {flipped}"
    for name, us in results.timed.items():
        yield f"{name:32} {us:8.2f} us"
    for control in results.controls:
        state = f"found after {control.after:,} exchanges" if control.found else "NOT FOUND"
        yield f"{control.fault.name:28} {control.fault.kind} {', '.join(control.fault.modes):12} {state}"
    for drill in results.drills:
        named = "named" if drill.right else "NOT named"
        yield f"{drill.kind:12} rank {drill.victim}: {named} in {drill.seconds:.1f} s"
    found = sum(c.found for c in results.controls)
    yield f"negative controls: {found} of {len(results.controls)} planted faults found"
    yield from document.notes
