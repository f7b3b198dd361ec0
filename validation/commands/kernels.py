"""``lockstep kernels``: judge the implementations of single operations.

What this catches: see ``validation.judge``. What it cannot catch: faults between operations, steps or ranks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from validation.commands import dispatching, timing
from validation.commands.outcome import carry_out, check_outputs, common_arguments
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.execution.plan import Settings

TIERS = ("quick", "full")
# What decides the numbers of a run, and is therefore taken from the run that is resumed.
SELECTION = ("op", "provider", "plugin", "tier", "device", "seed", "mode", "report_dir")
# What does something else than judge, and the only options that count with it.
ALONE = {
    "list": ("op", "provider", "plugin", "device"),
    "dispatch": ("op", "provider", "plugin", "device"),
    "time": ("op", "device", "json", *timing.OPTIONS),
}
OPTIONS = ("resume", "case_timeout", "ledger", "json", "junit", *SELECTION, *timing.OPTIONS, *ALONE)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="only this operation (repeatable)"
    )
    parser.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="NAME",
        help="only this provider (repeatable; default: those of --plugin, else all built in)",
    )
    parser.add_argument("--tier", choices=TIERS, help="how many cases (default: quick)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU, else cpu")
    parser.add_argument("--seed", type=int, metavar="N", help="shift the seeds of all cases (default: 0)")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with an interrupted run: its report folder"
    )
    parser.add_argument("--list", action="store_true", help="list operations, providers and tiers, and stop")
    parser.add_argument("--dispatch", action="store_true", help="print the dispatch tables, and stop")
    common_arguments(parser)
    timing.arguments(parser)


def main(options: argparse.Namespace, command: str) -> int:
    """Plan, run, report."""
    _check_together(options)
    if options.list:
        return _list(options)
    if options.dispatch:
        return dispatching.main(options)
    if options.time:
        return timing.main(options, command)
    check_outputs(options)
    from validation.execution.plan import make_plan
    from validation.report.terminal import show

    plan = make_plan(_resumed(options) if options.resume else _settings(options))
    return carry_out(plan, options, command, show, options.resume)


def _check_together(options: argparse.Namespace) -> None:
    """Raise UserError for options of which one would be ignored."""
    given = [name for name in OPTIONS if _given(getattr(options, name))]
    alone = next((name for name in ALONE if name in given), None)
    if alone is None:
        if timed := [name for name in given if name in timing.OPTIONS]:
            raise UserError(f"{_dashed(timed[0])} counts only with --time")
        return
    if other := [name for name in given if name not in (alone, *ALONE[alone])]:
        takes = ", ".join(map(_dashed, ALONE[alone]))
        raise UserError(f"--{alone} does not go with {_dashed(other[0])}; it takes {takes}")


def _given(value: object) -> bool:
    return value is not None and value is not False and value != []


def _dashed(option: str) -> str:
    return "--" + option.replace("_", "-")


def _settings(options: argparse.Namespace) -> Settings:
    from validation.execution.plan import Settings
    from validation.run import choose_device

    return Settings(
        ops=tuple(options.op),
        providers=tuple(options.provider),
        plugins=tuple(options.plugin),
        tier=options.tier or "quick",
        device=choose_device(options.device),
        seed=options.seed or 0,
        mode=options.mode or "profile",
        case_timeout=options.case_timeout,
    )


def _resumed(options: argparse.Namespace) -> Settings:
    """The settings of the run that is resumed."""
    from dataclasses import replace

    from validation.execution.journal import reopen
    from validation.run import choose_device

    if given := [name for name in SELECTION if getattr(options, name) not in (None, [])]:
        raise UserError(f"--resume takes the selection of the earlier run; leave out {_dashed(given[0])}")
    journal = reopen(options.resume)
    journal.close()
    settings = journal.header.settings
    choose_device(settings.device)
    return replace(settings, case_timeout=options.case_timeout or settings.case_timeout)


def _list(options: argparse.Namespace) -> int:
    """Operations, providers and what can run here."""
    from validation import contracts, providers
    from validation.errors import Unavailable
    from validation.run import choose_device

    chosen = [contracts.contract_named(name) for name in options.op] or contracts.contracts().values()
    device = choose_device(options.device)
    for path in options.plugin:
        providers.load_plugin(Path(path))
    known = providers.known_providers()
    if unknown := [name for name in options.provider if name not in (*known, *providers.FURTHER)]:
        raise UserError(f"unknown provider '{unknown[0]}'; known: {', '.join(known)}")
    print("operations")
    for contract in chosen:
        counts = ", ".join(f"{len(contract.cases(tier))} {tier}" for tier in TIERS)  # type: ignore[arg-type]
        print(f"  {contract.name:<16} {counts} cases: {' '.join(contract.summary.split())}")
    print(f"providers on {device}")
    for name in options.provider or known:
        try:
            providers.load([name], [], device)
            print(f"  {name:<16} {', '.join(providers.implemented_by(name))}")
        except Unavailable as error:
            print(f"  {name:<16} not here: {error}")
    return 0
