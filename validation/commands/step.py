"""``lockstep step``: whole decode steps against the vanilla step, operation by operation and free-running.

What this catches: see ``validation.step``. What it cannot catch: waits between ranks and streams.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from validation.commands.outcome import check_outputs, conclude, seconds
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.report.schema import CaseResult, Document
    from validation.step.crew import Setup
    from validation.step.items import Item

DEFAULT = ("torch", "triton")
TIERS = ("quick", "full")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add = parser.add_argument
    add(
        "--provider",
        action="append",
        default=[],
        metavar="NAME",
        help="default: torch and triton (repeatable)",
    )
    add("--plugin", action="append", default=[], metavar="FILE.py", help="load a provider from a file")
    add("--tier", choices=TIERS, default="quick", help="which walks (default: quick)")
    add("--only", action="append", default=[], metavar="WALK", help="only this walk (repeatable)")
    add("--steps", type=int, metavar="N", help="steps of the free-running and the long walk")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to walk (default: cpu)")
    add("--widths", choices=("scaled", "real"), default="scaled", help="real: the long walk at TP8's widths")
    add("--layers", type=int, metavar="N", help="layers of the models")
    add("--workers", type=int, default=2, metavar="N", help="processes on a CPU (default: 2)")
    add("--judged", type=int, metavar="N", help="steps of the long walk that are judged in full")
    add("--seed", type=int, default=0, metavar="N", help="of weights, tokens and slots (default: 0)")
    add("--weights", type=Path, metavar="FILE", help="safetensors of the 14-layer scaled-down model")
    add("--faults", action="store_true", help="plant every fault of steps, say who is blamed, and stop")
    add("--ranks", type=int, metavar="N", help="N ranks as processes, compared bit for bit, and stop")
    add(
        "--exchange",
        choices=("gloo", "mailboxes"),
        help="of --ranks (default: mailboxes for GPUs and triton)",
    )
    add("--seconds", type=seconds, metavar="S", help="time for --ranks through mailboxes")
    add("--replay", type=Path, metavar="CAPTURE", help="judge a captured operation again, and stop")
    add("--json", type=Path, metavar="FILE", help="write the results document here too")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML here too")
    add("--report-dir", type=Path, metavar="DIR", help="folder of all reports (default: reports)")


def main(options: argparse.Namespace, command: str) -> int:
    """Walk, judge, report."""
    if options.steps is not None and options.steps < 4:
        raise UserError(f"--steps {options.steps}: at least 4")
    if options.workers < 1:
        raise UserError(f"--workers {options.workers}: at least 1")
    if options.judged is not None and options.judged < 0:
        raise UserError(f"--judged {options.judged}: at least 0")
    if options.layers is not None and not 3 <= options.layers <= 16:
        raise UserError(f"--layers {options.layers}: from 3 to 16")
    if not 0 <= options.seed < 2**31:
        raise UserError(f"--seed {options.seed}: from 0 to {2**31 - 1}")
    alone = [n for n in ("faults", "ranks", "replay") if getattr(options, n) not in (None, False)]
    if len(alone) > 1:
        raise UserError(f"--{' and --'.join(alone)}: each stops after its own work; give one of them")
    if options.ranks is None and (options.exchange or options.seconds):
        raise UserError(
            f"--{'exchange' if options.exchange else 'seconds'} is of --ranks alone: leave it out"
        )
    if (options.replay and (options.json or options.junit)) or (options.faults and options.junit):
        raise UserError(f"--{alone[0]} writes no such document: leave out --json and --junit")
    check_outputs(options)
    from validation.run import choose_device

    choose_device(options.device)
    if options.faults:
        from validation.commands import step_faults

        return step_faults.main(options, command)
    if options.ranks is not None:
        from validation.commands import step_ranks

        return step_ranks.main(options, command)
    if options.replay:
        return _replay(options)
    return _run(options, command)


def _run(options: argparse.Namespace, command: str) -> int:
    from validation import providers
    from validation.report.terminal import show
    from validation.run import REPORTS, new_folder, write
    from validation.step.crew import Setup, session_of, work_of

    names = options.provider or ([] if options.plugin else list(DEFAULT))
    loaded = providers.load(names, options.plugin, options.device)
    setup = Setup(
        loaded.providers, options.plugin, options.tier, options.only, options.steps, options.seed,
        str(options.weights or ""), "", options.device, options.widths, options.layers, options.judged,
        options.workers,
    )  # fmt: skip
    work = work_of(setup)
    if not work:
        raise UserError("nothing to walk: no selected provider has one of the selected walks")
    if options.judged is not None and all(item.scenario != "long" for item, _ in work):
        raise UserError("--judged is of the long walk alone: leave it out, or add --only long")
    session_of(setup)  # weights that do not fit are refused before anything runs
    folder = new_folder(options.report_dir or REPORTS, _hash(work, options.seed))
    setup.folder = str(folder)
    began = time.monotonic()
    results: dict[int, CaseResult] = {}
    interrupted, stopped = False, ""
    try:
        _walk(setup, work, results)
    except KeyboardInterrupt:
        interrupted = True
    except UserError as error:  # of one walk: what the others gave is kept
        if not results:
            raise
        stopped = str(error)
    ordered = [results[index] for index in sorted(results)]
    document = _document(command, ordered, len(work), work, options)
    document.notes = [*filter(None, [stopped]), *document.notes]
    document.skipped = dict(loaded.skipped)
    document.seconds = time.monotonic() - began
    trouble = "; ".join(filter(None, [stopped, write(document, folder)]))
    return conclude(document, options, folder, show, interrupted, trouble)


def _walk(setup: Setup, work: list[tuple[Item, str]], results: dict[int, CaseResult]) -> None:
    """Carry out every walk under a progress bar; the first divergence of each is said at once."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=len(work))
        # One process owns a GPU; and a single walk needs no other.
        here = len(work) == 1 or setup.device != "cpu"
        found = _here(setup, work, lambda words: bar.update(task, description=words))
        for index, result in found if here else _together(setup, work):
            results[index] = result
            bar.update(task, advance=1, description=f"{result.op} by {result.provider}: {result.verdict}")
            if result.findings:
                first = result.findings[0]
                said = f"{result.op} by {result.provider}: {first.where}: {first.output}"
                bar.console.print(said, highlight=False)


def _here(
    setup: Setup, work: list[tuple[Item, str]], say: Callable[[str], None]
) -> Iterator[tuple[int, CaseResult]]:
    """Walk after walk, in this process."""
    import torch

    from validation.step.crew import session_of

    torch.set_num_threads(1)  # one order of sums on every machine
    session = session_of(setup)
    session.advance = say
    for index, one in enumerate(work):
        yield index, session.carry_out(*one)


def _together(setup: Setup, work: list[tuple[Item, str]]) -> Iterator[tuple[int, CaseResult]]:
    from validation.step.crew import carried_out
    from validation.step.items import cost

    return carried_out(setup, [cost(item, name) for item, name in work])


def _document(
    command: str,
    results: list[CaseResult],
    planned: int,
    work: list[tuple[Item, str]],
    options: argparse.Namespace,
) -> Document:
    from validation.execution.environment import collect
    from validation.execution.plan import Settings
    from validation.execution.verdict import verdict
    from validation.report.schema import Document

    settings = Settings(ops=("step",), providers=tuple(dict.fromkeys(n for _, n in work)), tier=options.tier,
                        device=options.device, seed=options.seed)  # fmt: skip
    decided, reasons = verdict(results)
    if len(results) < planned:
        decided, reasons = "undecided", [f"stopped after {len(results)} of {planned} walks", *reasons]
    environment = collect(settings) | {"models": {item.name: item.config().digest() for item, _ in work}}
    # How small an error was looked for says more of a memory than how large the scores were.
    said = [f"memory by {r.provider} {r.note}" for r in results if r.op == "memory" and r.note]
    return Document(command, decided, environment, results, notes=[*reasons, *said])


def _hash(work: list[tuple[Item, str]], seed: int) -> str:
    import hashlib

    text = "\n".join(f"{name}/{item.line(seed)}" for item, name in work)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _replay(options: argparse.Namespace) -> int:
    """Judge a capture, and run its operation again with the provider."""
    from validation import providers
    from validation.step.budget import LOCAL_SHARE
    from validation.step.capture import load_capture
    from validation.step.divergence import of_operation
    from validation.step.executor import provider
    from validation.step.items import Choice, chosen

    name = (options.provider or ["torch"])[0]
    providers.load([name], options.plugin, options.device)
    config = None  # that of the capture, unless one is named
    if options.only or options.layers or options.widths != "scaled":
        only = tuple(options.only or ["plain"])
        choice = Choice(options.tier, only, None, options.device, options.widths, options.layers)
        config = chosen(name, choice)[0].config()
    capture = load_capture(options.replay, config, options.device)
    status = 0
    for words, judged in (
        ("as captured", capture.judged(LOCAL_SHARE)),
        (f"run again by {name}", capture.rerun(provider(name), LOCAL_SHARE)),
    ):
        d = of_operation(int(capture.facts["step"]), judged)
        state = "fail" if judged.failed else "pass"
        place = f" {d.where}: {d.message}" if judged.failed else ""
        print(f"{words}: {state}: {d.words()}{place}")
        status = int(judged.failed)
    return status
