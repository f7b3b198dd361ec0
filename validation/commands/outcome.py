"""What commands that run cases share: execute, write where asked, print, exit status.

What this catches: output paths that cannot be written, before the run begins. What it cannot catch: a disk
that fills up during the run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from validation.execution.plan import Plan
    from validation.report.schema import Document

INTERRUPTED = 130


def common_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of every command that runs cases."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="load a provider from a file (repeatable)",
    )
    parser.add_argument(
        "--mode",
        choices=("profile", "accuracy"),
        help="judge roundings as declared (profile, the default), or accept any choice at optional sites",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results document here too")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML here too")
    parser.add_argument(
        "--report-dir", type=Path, metavar="DIR", help="folder of all reports (default: reports)"
    )
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="known failures (default: known_failures.toml, if present)",
    )
    parser.add_argument(
        "--case-timeout",
        type=seconds,
        metavar="S",
        help="seconds until a case counts as hanging (default: 300 on cpu, 120 on cuda)",
    )


def seconds(text: str) -> float:
    """A positive number of seconds."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def check_outputs(options: argparse.Namespace) -> None:
    """Raise UserError if a path that is written at the end cannot be."""
    from validation.report.document import check_writable

    for option in ("json", "junit"):
        if path := getattr(options, option):
            check_writable(path, f"--{option}")


def carry_out(
    plan: Plan,
    options: argparse.Namespace,
    command: str,
    show: Callable[[Document, Console, str], None],
    resume: Path | None = None,
) -> int:
    """Run the plan and report it; the exit status follows from the verdict."""
    from validation.calibration import inflation_for

    for op in {task.case.op for task in plan.tasks}:
        inflation_for(op, "", plan.settings.device)  # a damaged record is said before the run, not in it
    from validation import run
    from validation.execution import ledger

    known = ledger.load(options.ledger)
    folder = resume or run.new_folder(options.report_dir or run.REPORTS, plan.settings)
    journal = run.begin(plan, folder, resume is not None)
    try:
        document, interrupted = run.run(plan, journal, folder, command, known), False
    except run.Interrupted as stopped:
        document, interrupted = stopped.document, True
    return conclude(document, options, folder, show, interrupted)


def silence_stdout() -> None:
    """The reader of stdout has gone: what is still to be written there goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def conclude(
    document: Document,
    options: argparse.Namespace,
    folder: Path,
    show: Callable[[Document, Console, str], None],
    interrupted: bool,
) -> int:
    """Files first, then the terminal: a closed pipe must not cost the results."""
    from validation.report.document import save, to_json
    from validation.report.junit import to_junit
    from validation.report.schema import EXIT_STATUS
    from validation.report.terminal import Screen

    if options.json:
        save(to_json(document), options.json)
    if options.junit:
        save(to_junit(document), options.junit)
    try:
        show(document, Screen(file=sys.stdout, highlight=False), str(folder))
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    if interrupted:
        resumable = options.name in ("kernels", "evals")
        hint = f"; go on with: lockstep {options.name} --resume {folder}" if resumable else ""
        print(f"lockstep: interrupted{hint}", file=sys.stderr)
        return INTERRUPTED
    return EXIT_STATUS[document.verdict]
