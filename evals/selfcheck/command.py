"""``lockstep selfcheck``: compare an arm with itself on real replies, many times over.

Exit status 0 if no test's false-alarm rate exceeds its level beyond chance (lower 95 % limit), 1 otherwise.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.errors import UserError

if TYPE_CHECKING:
    from evals.arms.config import Comparison
    from evals.selfcheck.measure import Alarms


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--arms", default="offline", metavar="FILE", help="its reference arm is taken (default: offline)"
    )
    parser.add_argument(
        "--tasks", nargs="+", default=[], metavar="NAME", help="only these tasks of the arms file"
    )
    parser.add_argument("--comparisons", type=int, default=50, metavar="N", help="how many (default: 50)")
    parser.add_argument(
        "--limit", type=int, default=8, metavar="N", help="questions of each task (default: 8)"
    )
    parser.add_argument(
        "--k", type=int, default=2, metavar="K", help="replies to each question and side (default: 2)"
    )
    parser.add_argument(
        "--forced-tokens", type=int, default=300, metavar="N", help="tokens a comparison walks"
    )
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on in this report folder")
    parser.add_argument(
        "--report-dir", type=Path, metavar="DIR", help="folder of all reports (default: reports)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")


def main(options: argparse.Namespace, command: str) -> int:
    """Ask once, compare many times, count."""
    from evals.command import _quiet
    from evals.running.selection import Selection
    from validation import run
    from validation.commands.measured import write_json
    from validation.report.document import check_writable

    if min(options.comparisons, options.limit, options.k) < 1:
        raise UserError("--comparisons, --limit and --k must be at least 1")
    if options.json:
        check_writable(options.json, "--json")
    _quiet()
    selection = Selection(
        options.arms, tuple(options.tasks), options.limit, options.k, "mirrored", options.forced_tokens
    )
    comparison = selection.comparison()
    folder = options.resume or run.new_folder(
        options.report_dir or run.REPORTS, comparison.configuration_hash[:8]
    )
    found, facts = measured(comparison, selection, folder, options.comparisons)
    passed = show(found, comparison.alpha)
    if options.json:
        write_json(options.json, record(command, comparison, found, facts, passed))
    return 0 if passed else 1


def measured(
    comparison: Comparison, selection: Any, folder: Path, runs: int
) -> tuple[Alarms, dict[str, Any]]:
    """Replies and walks of the reference arm for all runs, then the runs."""
    from evals.arms.config import sampled_settings, with_repeats
    from evals.running.evaluate import Side
    from evals.running.opening import opened
    from evals.running.progress import Progress
    from evals.running.session import SAMPLES, kept
    from evals.selfcheck.measure import alarms, walks_of
    from evals.store.store import Store

    k = next(iter(comparison.tasks.values())).repeats
    many = with_repeats(comparison, 2 * k * runs)
    arm, progress = comparison.reference, Progress()
    settings = sampled_settings(comparison)
    with (
        Store(folder / SAMPLES, comparison.configuration_hash, folder.name, settings) as store,
        opened(arm, folder / f"{arm.name}.log") as engine,
    ):
        chosen = replace(selection, k=2 * k * runs)
        side = Side(many, chosen, arm, engine, store, kept(folder), progress)
        answers = side.answer()
        forced, free = comparison.forced, [row for row in kept(folder) if row.kind == "free"]
        walks = []
        if forced:
            walks = walks_of(answers.asked, free, forced.tokens, forced.length, k, runs)
            side.walk([each for own in walks for each in own], range(4))
        facts = engine.facts()
    progress.close()
    print(f"samples: {folder}")
    return alarms(comparison, kept(folder), answers.grades, walks, k, runs), facts


def show(found: Alarms, level: float) -> bool:
    """A table of the tests; whether none alarms too often beyond chance (Bonferroni over the tests)."""
    from validation.variance.intervals import clopper_pearson

    print(f"{'comparison':<14} {'test':<58} {'alarms':>12} {'upper limit':>12}")
    worst, coverage = 0.0, 1 - 0.05 / max(len(found.made), 1)  # all tests together may fail by chance in 5 %
    for which, made in found.made.items():
        raised = found.raised[which]
        worst = max(worst, clopper_pearson(raised, made, coverage)[0])
        print(f"{which[0]:<14} {which[1][:58]:<58} {f'{raised} of {made}':>12} {found.limit(which):>12.1%}")
    print(f"runs in which anything was called different: {found.different} of {found.runs}")
    for reason in found.reasons:
        print(f"  {reason}")
    return worst <= level and clopper_pearson(found.different, found.runs)[0] <= level


def record(
    command: str, comparison: Comparison, found: Alarms, facts: dict[str, Any], passed: bool
) -> dict[str, Any]:
    """The figures with where they come from."""
    from evals.report.document import environment
    from validation.commands.measured import _without_outputs

    tests = [
        {
            "comparison": which[0],
            "test": which[1],
            "runs": made,
            "alarms": found.raised[which],
            "upper_limit": found.limit(which),
        }
        for which, made in found.made.items()
    ]
    return {
        "schema": "lockstep.measurement/1",
        "command": _without_outputs(command),
        "environment": environment(comparison),
        "facts": facts,
        "level": comparison.alpha,
        "runs": found.runs,
        "runs_called_different": found.different,
        "reasons": found.reasons,
        "tests": tests,
        "passed": passed,
    }
