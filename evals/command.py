"""``lockstep evals``: compare two backends end to end.

Exit status 0 pass (equivalent within the margins), 1 fail (different), 2 undecided (too little evidence; the
report says what it would take), 3 error (confounded, infrastructure, bad input).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from validation.errors import UserError

if TYPE_CHECKING:
    from evals.arms.config import Comparison
    from evals.running.progress import Progress
    from evals.running.selection import Selection
    from validation.report.schema import Document

SELECTION = ("arms", "tasks", "limit", "k", "data", "forced_tokens")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--arms", metavar="FILE", help="arms file, or the name of a ready one (default: offline)"
    )
    parser.add_argument("--tasks", nargs="+", metavar="NAME", help="only these tasks of the arms file")
    parser.add_argument("--limit", type=int, metavar="N", help="questions of each task")
    parser.add_argument(
        "--k", type=int, metavar="K", help="replies to each question (default: as the arms file says)"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="'mirrored' (default offline), 'hub', or a folder of local files"
    )
    parser.add_argument(
        "--forced-tokens", type=int, metavar="N", help="tokens to walk; 0 leaves the walks out"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with an interrupted run: its report folder"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results document here too")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML here too")
    parser.add_argument(
        "--report-dir", type=Path, metavar="DIR", help="folder of all reports (default: reports)"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the ready arms files and their tasks, and stop"
    )


def main(options: argparse.Namespace, command: str) -> int:
    """Select, estimate, carry out, judge, report."""
    if options.list:
        return _list()
    from evals.engines.smollm2 import cache_folder
    from evals.running import estimate, selection
    from evals.running.progress import Progress
    from validation import run
    from validation.commands.outcome import check_outputs, conclude

    check_outputs(options)
    _quiet()
    chosen = _resumed(options) if options.resume else _selected(options)
    comparison = chosen.comparison()
    folder = options.resume or run.new_folder(
        options.report_dir or run.REPORTS, comparison.configuration_hash[:8]
    )
    selection.save(chosen, folder)
    progress = Progress()
    for line in estimate.lines(comparison, chosen, cache_folder()):
        progress.say(line)
    began = time.monotonic()
    try:
        document = carry_out(command, comparison, chosen, folder, progress)
    except KeyboardInterrupt:
        print(f"lockstep: interrupted; go on with: lockstep evals --resume {folder}", file=sys.stderr)
        return 130
    document.seconds = time.monotonic() - began
    if not options.resume:
        estimate.remember(cache_folder(), comparison, chosen, document.seconds)
    from evals.report.show import as_text, show

    trouble = run.write(document, folder, as_text)
    return conclude(document, options, folder, show, False, trouble)


def carry_out(
    command: str, comparison: Comparison, chosen: Selection, folder: Path, progress: Progress
) -> Document:
    """Both arms and the judgement, as a document."""
    from evals.judging.judge import judge
    from evals.report.document import document
    from evals.running.evaluate import RERUN
    from evals.running.session import carry_out as both
    from evals.running.session import kept

    gone = both(comparison, chosen, folder, progress)
    facts = dict(zip(("reference", "candidate"), gone.facts, strict=False))
    replay = f"lockstep evals --resume {folder}"
    if gone.comparability.differences or len(gone.answers) < 2:
        return document(command, comparison, [], [], gone.comparability, facts, {}, replay)
    grades = (gone.answers[0].grades, gone.answers[1].grades)
    found = judge(comparison, kept(folder), grades, gone.walks, gone.facts, RERUN)
    return document(
        command, comparison, found.decided, found.planted, gone.comparability, facts, found.details, replay
    )


def _selected(options: argparse.Namespace) -> Selection:
    from evals.running.selection import OFFLINE, Selection

    given = {name: getattr(options, name) for name in ("limit", "k") if getattr(options, name) is not None}
    # Whole paths: --resume may be called in another folder.
    arms, data = (
        str(Path(name).resolve()) if Path(name).exists() else name
        for name in (options.arms or OFFLINE, options.data or "mirrored")
    )
    return Selection(arms, tuple(options.tasks or ()), data=data, forced=options.forced_tokens, **given)


def _resumed(options: argparse.Namespace) -> Selection:
    from evals.running.selection import load

    if given := [name for name in SELECTION if getattr(options, name) not in (None, [])]:
        option = given[0].replace("_", "-")
        raise UserError(f"--resume takes the selection of the earlier run; leave out --{option}")
    return load(options.resume)


def _list() -> int:
    from evals.arms.read import read_arms, ready_files

    for name in ready_files():
        try:
            comparison = read_arms(name)
        except UserError as error:
            print(f"{name:<26} {error}")
            continue
        tasks = ", ".join(f"{t.name} (K = {t.repeats})" for t in comparison.tasks.values())
        print(f"{name:<26} factor {comparison.factor}; {tasks}")
    return 0


def _quiet() -> None:
    """No chatter from libraries, and no network that nobody asked for."""
    import logging

    # Threads that spin are many times slower beside other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("TOKENIZERS_PARALLELISM", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
        os.environ.setdefault(name, "false" if name.startswith("TOK") else "1")
    for name in ("lm_eval", "transformers", "math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.suppress(ImportError):
        import warnings

        warnings.filterwarnings("ignore", category=DeprecationWarning)
