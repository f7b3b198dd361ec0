"""``lockstep variance``: check the statistics themselves, and plan a comparison.

``simulate`` measures every test's false-alarm rate on an arm against itself and its detection rate at the
minimum detectable effect that it prints. Exit status 0 if no test alarms more often than its level, every
printed effect is found in at least 78 % of the runs, and the planted bad test is flagged; 1 otherwise.
``power`` prints minimum detectable effects and the repeats that equivalence needs, before anything runs.

Catches: statistics that lie, designs that are too small. Cannot catch: data unlike those simulated.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.errors import UserError

if TYPE_CHECKING:
    from validation.variance.simulate import Rate

REPEATS = (1, 4, 8, 16, 32, 64)
MARGINS = (0.03, 0.02, 0.01)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    check = actions.add_parser("simulate", help="measure false-alarm and detection rates of all tests")
    check.add_argument("--runs", type=int, default=2000, metavar="N", help="comparisons a test")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the simulation")
    check.add_argument("--jobs", type=int, metavar="N", help="processes (default: one a core)")
    check.add_argument(
        "--scenario", action="append", default=[], metavar="NAME", help="only this one (repeatable)"
    )
    check.add_argument("--no-power", action="store_true", help="false-alarm rates only")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the measurement record here")
    plan = actions.add_parser("power", help="minimum detectable effects and repeats needed of a design")
    plan.add_argument("--mix", metavar="NAME", help="difficulty mix: aime25 or gpqa_diamond (default: both)")
    plan.add_argument(
        "--k", type=int, nargs="+", default=list(REPEATS), metavar="K", help="repeats a question"
    )
    plan.add_argument("--sides", type=int, choices=(1, 2), default=1, help="1: only a drop is looked for")


def main(options: argparse.Namespace, command: str) -> int:
    """Simulate or plan; the exit status."""
    return _simulate(options, command) if options.action == "simulate" else _power(options)


def _simulate(options: argparse.Namespace, command: str) -> int:
    if options.runs < 20:
        raise UserError(f"--runs must be at least 20, not {options.runs}: fewer show no rate")
    if options.seed < 0 or (options.jobs is not None and options.jobs < 1):
        raise UserError("--seed must not be negative and --jobs must be at least 1")
    from validation.report.document import check_writable
    from validation.variance.scenarios import SCENARIOS
    from validation.variance.simulate import simulate, verdict

    if unknown := [name for name in options.scenario if name not in SCENARIOS]:
        raise UserError(f"no scenario '{unknown[0]}'; there are {', '.join(SCENARIOS)}")
    if options.json:
        check_writable(options.json, "--json")
    names = tuple(options.scenario or SCENARIOS)
    with _progress(names, options.runs) as advance:
        jobs = options.jobs or os.cpu_count() or 1
        rates = simulate(options.runs, options.seed, jobs, advance, names, not options.no_power)
    reasons = verdict(rates)
    _show(rates)
    for reason in reasons:
        print(f"FAIL: {reason}")
    if options.json:
        _write(options, command, rates, reasons)
    print(_summary(rates, options.runs))
    return 1 if reasons else 0


def _write(options: argparse.Namespace, command: str, rates: list[Rate], reasons: list[str]) -> None:
    from dataclasses import asdict
    from math import isnan

    from validation.commands.measured import record, write_json

    rows: list[dict[str, Any]] = [
        {key: None if isinstance(v, float) and isnan(v) else v for key, v in asdict(r).items()}
        | {"rate": round(r.rate, 4) if r.runs else None}
        for r in rates
    ]
    results = {"runs": options.runs, "seed": options.seed, "rates": rows, "failures": reasons}
    write_json(options.json, record(command, [], "cpu", results))


def _progress(names: tuple[str, ...], runs: int) -> Any:
    """A progress bar over scenarios on stderr; the context gives ``advance(scenario, comparisons)``."""
    from collections.abc import Callable, Iterator
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[done]:,} comparisons"),
    )

    @contextmanager
    def bar() -> Iterator[Callable[[str, int], None]]:
        done: dict[str, int] = {}
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown:
            task = shown.add_task("scenarios", total=len(names), done=0)

            def advance(name: str, n: int) -> None:
                done[name] = done.get(name, 0) + n
                total = sum(done.values())
                shown.update(task, description=name, completed=len(done) - 1, done=total)

            yield advance

    return bar()


def _show(rates: list[Rate]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="")
    for heading in ("scenario", "test", "false alarms", "upper limit", "MDE", "found at MDE", ""):
        table.add_column(heading, justify="left" if heading in ("scenario", "test", "") else "right")
    powers = {(r.scenario, r.test): r for r in rates if r.kind == "power"}
    for r in (r for r in rates if r.kind == "level"):
        p = powers.get((r.scenario, r.test))
        found = ("out of reach" if not p.runs else f"{p.rate:.1%}") if p else ""
        word = "negative control" if r.control else ""
        flag = "flagged" if r.failed or (p and p.failed) else ""
        table.add_row(
            r.scenario,
            r.test,
            f"{r.rate:.1%}",
            f"{r.high:.1%}",
            f"{p.mde:.4g}" if p else "",
            found,
            f"{word} {flag}".strip(),
        )
    Console(file=sys.stdout, highlight=False, width=150).print(table)


def _summary(rates: list[Rate], runs: int) -> str:
    level = [r for r in rates if r.kind == "level" and not r.control]
    power = [r for r in rates if r.kind == "power" and r.runs]
    worst = max(level, key=lambda r: r.rate)
    text = f"{runs} runs each: {len(level)} false-alarm rates, the largest {worst.rate:.1%}"
    text += f" (at most {worst.high:.1%} with 95 % confidence; {worst.scenario}, {worst.test})"
    if power:
        least = min(power, key=lambda r: r.rate)
        text += f"; {len(power)} printed effects, the least found {least.rate:.1%}"
        text += f" ({least.scenario}, {least.test})"
    return text


def _power(options: argparse.Namespace) -> int:
    from validation.variance.planning import (
        ALTERNATIVES,
        MIXES,
        difficulty,
        honest_mde,
        mde,
        repeats_for_equivalence,
        within_question_se,
    )

    if min(options.k) < 1:
        raise UserError(f"--k needs at least 1 repeat, not {min(options.k)}")
    for mix in [options.mix] if options.mix else list(MIXES):
        p = difficulty(mix)
        print(
            f"{mix}: {len(p)} questions, mean score {p.mean():.3f}; points of 100, {options.sides}-sided 5 %,"
        )
        print(
            "  80 % power; textbook: noise under no effect; the others with the noise that the effect brings"
        )
        rows: list[tuple[str, list[float]]] = [
            ("standard error", [within_question_se(p, k) for k in options.k]),
            ("MDE, textbook", [mde(p, k, options.sides) for k in options.k]),
        ]
        for alternative in ALTERNATIVES:
            for name, weighted in (("plain", False), ("stratified", True)):
                values = [honest_mde(p, k, alternative, weighted, options.sides) for k in options.k]
                rows.append((f"MDE {name}, {alternative.name}", values))
        print(f"  {'repeats K':52}" + "".join(f"{k:8d}" for k in options.k))
        for label, values in rows:
            print(f"  {label:52}" + "".join(f"{100 * value:8.2f}" for value in values))
        needed = [repeats_for_equivalence(p, m) for m in MARGINS]
        words = ", ".join(
            f"+-{100 * m:g}: {-(-k // 1):.0f} ({k:.1f})" for m, k in zip(MARGINS, needed, strict=True)
        )
        print(f"  repeats for equivalence (TOST 5 %, 90 % power, no true difference): {words}")
    return 0
