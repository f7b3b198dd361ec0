"""``lockstep step --ranks N`` through mailboxes: a long decode on ranks apart, against one process.

Exit status 0 if every rank held the same bits as the one process after every step and every planted fault was
noticed; 1 if one parted or a wait ran out; 2 if a planted fault went unnoticed or the time was too short; 3
if ranks could not be started or died.

What this catches and cannot catch: see ``validation.stress.decode.run``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from validation import streams
from validation.commands.outcome import conclude, need_gpus
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.report.schema import Document
    from validation.stress.decode.run import Results
    from validation.stress.job import Decode

RANKS = {"cpu": (2, 3, 4), "cuda": (2, 3, 4, 8)}
STEPS = {"cpu": 100, "cuda": 10_000}
INTERPRETED = {"steps": 4, "layers": 4, "counts": (1, 2), "sizes": (1, 2), "renewed": 3, "chunk": 2}
ON_CPU = {"layers": 5, "renewed": 50, "chunk": 25}
# Seconds of a wait that counts as hanging. Interpreted, the others may be long about an operation.
PATIENCE = {"cpu": 60.0, "cuda": 8.0}
SHOWN = 10  # checkpoints


def main(options: argparse.Namespace, command: str, name: str) -> int:
    """Walk, compare, report."""
    job = _job(options, name)
    from validation import providers
    from validation.run import REPORTS, new_folder, write
    from validation.stress.decode.run import Results, decode

    providers.load([name], options.plugin, options.device)
    folder = new_folder(options.report_dir or REPORTS, _hash(job))
    results, interrupted = Results(job, options.device), False
    try:
        decode(results, options.seconds or float("inf"), lambda line: streams.say(f"lockstep: {line}"))
    except KeyboardInterrupt:
        interrupted = True
    document = _document(results, command, interrupted)
    trouble = write(document, folder)
    return conclude(document, options, folder, _show(results), interrupted, trouble)


def _job(options: argparse.Namespace, name: str) -> Decode:
    """What is asked for. Raises UserError where it cannot be."""
    import os

    from validation.step.items import SLOW
    from validation.stress.job import Decode

    device = options.device
    if options.ranks not in RANKS[device]:
        *others, last = RANKS[device]
        raise UserError(f"--ranks {options.ranks}: {', '.join(map(str, others))} or {last} on {device}")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError("ranks that exchange through mailboxes start by themselves; leave out torchrun")
    if device == "cuda":
        need_gpus(options.ranks)
    more: dict[str, Any] = {"patience": PATIENCE[device]}
    if device == "cpu":
        more |= INTERPRETED if name in SLOW else ON_CPU
    layers = options.layers or more.pop("layers", 14)
    steps = options.steps or more.pop("steps", STEPS[device])
    more |= {"layers": layers, "block": 3 if layers > 8 else 2, "steps": steps}
    return Decode(name, options.ranks, seed=options.seed, plugins=tuple(options.plugin), **more)


def _line(results: Results) -> str:
    job = results.job
    return f"step/ranks:ranks={job.ranks},layers={job.layers},steps={job.steps}:{job.seed}"


def _document(results: Results, command: str, interrupted: bool) -> Document:
    from validation.execution.environment import collect
    from validation.execution.plan import Settings
    from validation.report.schema import CaseResult, Document, Finding
    from validation.subjects.kimi_k3.config import scaled

    job = results.job
    settings = Settings(ops=("step",), providers=(job.provider,), device=results.device, seed=job.seed)
    stopped = ["stopped before the end"] if interrupted else []
    verdict = "undecided" if stopped and not results.failures else results.verdict
    case = CaseResult("ranks", job.provider, _line(results), verdict, seconds=results.seconds.get("all", 0.0))
    case.findings = [
        Finding(
            "step", "ranks", job.provider, case.case, "bits", "", 1.0, 0.0, line.split(":")[0], line, command
        )
        for line in results.failures
    ]
    case.controls_planted, case.controls_caught = (
        len(results.noticed),
        sum(map(bool, results.noticed.values())),
    )
    case.note = "; ".join(_lines(results))
    config = scaled(job.ranks, layers=job.layers, block=job.block)
    environment = collect(settings) | {"models": {"ranks": config.digest()}}
    controls = [
        {"provider": name, "op": "ranks", "flagged": bool(words), "as": words}
        for name, words in results.noticed.items()
    ]
    details = {"steps": results.steps, "exchanges": results.exchanges, "seconds": results.seconds}
    details["checkpoints"] = {str(step): digest for step, digest in results.checkpoints.items()}
    notes = [*stopped, *results.failures, *results.errors, *results.doubts]
    return Document(
        command, verdict, environment, [case], controls=controls, notes=notes,
        seconds=results.seconds.get("all", 0.0), details=details,
    )  # fmt: skip


def _lines(results: Results) -> Iterator[str]:
    """What was done, in words."""
    job, seconds = results.job, results.seconds
    yield (
        f"{job.ranks} ranks by {job.provider}, {job.layers} layers: {results.steps:,} steps and "
        f"{results.exchanges:,} exchanges a rank, bit-equal to one process for all after every step"
    )
    if results.steps and seconds:
        each = {name: 1000 * seconds[name] / results.steps for name in ("ranks", "one process")}
        yield ", ".join(f"{name} {ms:.2f} ms a step" for name, ms in each.items())
    if results.checkpoints:
        shown = sorted(results.checkpoints)[-SHOWN:]
        states = ", ".join(f"{step:,}: {results.checkpoints[step]}" for step in shown)
        yield f"all that is held, compared at {len(results.checkpoints)} checkpoints, after {states}"


def _show(results: Results) -> Any:
    def show(document: Document, console: Any, folder: str) -> None:
        for line in _lines(results):
            console.print(line, markup=False, soft_wrap=True)
        for name, words in results.noticed.items():
            console.print(f"planted {name}: {words or 'NOT NOTICED'}", markup=False, soft_wrap=True)
        for line in document.notes:
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"report: {folder}", soft_wrap=True)
        caught = sum(map(bool, results.noticed.values()))
        said = (
            document.notes[0] if document.notes else f"{results.steps:,} steps on {results.job.ranks} ranks"
        )
        said += f", {caught} of {len(results.noticed)} planted faults noticed"
        console.print(f"{document.verdict.upper()}: {said}, in {document.seconds:.0f} s", markup=False)

    return show


def _hash(job: Decode) -> str:
    import hashlib

    return hashlib.sha256(repr(job).encode()).hexdigest()[:8]
