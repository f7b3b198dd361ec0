"""What commands that run cases share: execute, write where asked, print, exit status.

What this catches: output paths that cannot be written, before the run begins; a disk that fills up during the
run, after which what is done is shown, and kept where there was room. What it cannot catch: a disk that loses
what it took.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from validation import streams
from validation.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from validation.execution.plan import Plan
    from validation.report.schema import Document

ERROR, INTERRUPTED = 3, 130
RESUMABLE = ("kernels", "evals")


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
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
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
        document = run.run(plan, journal, folder, command, known)
    except run.Stopped as stopped:
        trouble, interrupted = stopped.trouble, stopped.interrupted
        return conclude(stopped.document, options, folder, show, interrupted, trouble)
    return conclude(document, options, folder, show, False)


def conclude(
    document: Document,
    options: argparse.Namespace,
    folder: Path,
    show: Callable[[Document, Console, str], None],
    interrupted: bool,
    trouble: str = "",
) -> int:
    """Files first, then the terminal: a closed pipe must not cost the results.

    ``trouble`` says what could not be written before; whatever it is makes the exit status 3.
    """
    from validation.report.schema import EXIT_STATUS

    troubles = [trouble, *_copies(document, options), _shown(document, folder, show)]
    trouble = "; ".join(filter(None, troubles))
    resumed = options.name in RESUMABLE
    hint = f"go on with: lockstep {options.name} --resume {folder}" if resumed else ""
    remedy = f"put that right and {hint}" if hint else "make room, or choose another place"
    if interrupted:
        streams.say("lockstep: " + "; ".join(filter(None, ["interrupted", trouble, hint])))
        return INTERRUPTED
    if trouble:
        streams.say(f"lockstep: {trouble}; {remedy}")
        return ERROR
    return EXIT_STATUS[document.verdict]


def _copies(document: Document, options: argparse.Namespace) -> list[str]:
    """Write --json and --junit; what could not be written."""
    from validation.report.document import save, to_json
    from validation.report.junit import to_junit

    troubles = []
    for path, make in ((options.json, to_json), (options.junit, to_junit)):
        try:
            if path:
                save(make(document), path)
        except UserError as error:
            troubles.append(str(error))
    return troubles


def _shown(document: Document, folder: Path, show: Callable[[Document, Console, str], None]) -> str:
    """The report on stdout; why not, unless it is only that nobody reads it."""
    from validation.report.document import reason
    from validation.report.terminal import Screen

    try:
        show(document, Screen(file=sys.stdout, highlight=False), str(folder))
        sys.stdout.flush()
    except BrokenPipeError:
        streams.silence(sys.stdout)
    except OSError as error:
        streams.silence(sys.stdout)
        return f"cannot write the report to stdout: {reason(error)}"
    return ""


def need_gpus(ranks: int) -> None:
    """Raise UserError where there are fewer GPUs than ranks."""
    import torch

    if torch.cuda.device_count() < ranks:
        raise UserError(
            f"--ranks {ranks}: there are {torch.cuda.device_count()} GPUs here, and a rank needs its own"
        )
