"""``lockstep sanitize``: compute-sanitizer's memcheck, racecheck, initcheck and synccheck over the kernels.

What this catches, and what it cannot: see ``validation.sanitize.tools``. Exit status 0 if no tool reports
anything and every tool has reported its planted fault; 1 for a report; 2 where a tool proves nothing; 3 where
there is no GPU or no compute-sanitizer: that is no pass.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from validation.commands.outcome import check_outputs, conclude, seconds
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.report.schema import Document
    from validation.sanitize.examine import Examination

NAMES = ("memcheck", "racecheck", "initcheck", "synccheck")
LIMIT = 240.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add = parser.add_argument
    add(
        "--tool", action="append", default=[], choices=NAMES, help="only this tool (repeatable; default: all)"
    )
    add("--op", action="append", default=[], metavar="NAME", help="only this operation (repeatable)")
    add("--provider", metavar="NAME", help="whose kernels (default: triton)")
    add("--plugin", action="append", default=[], metavar="FILE.py", help="load a provider from a file")
    add("--case", action="append", default=[], metavar="CASE", help="only this case (repeatable)")
    add(
        "--limit",
        type=seconds,
        default=LIMIT,
        metavar="S",
        help=f"seconds of one process (default: {LIMIT:g})",
    )
    add("--sanitizer", type=Path, metavar="FILE", help="compute-sanitizer (default: where it is found)")
    add("--list", action="store_true", help="list tools, what they cannot see, and the cases, and stop")
    add("--json", type=Path, metavar="FILE", help="write the results document here too")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML here too")
    add("--report-dir", type=Path, metavar="DIR", help="folder of all reports (default: reports)")


def main(options: argparse.Namespace, command: str) -> int:
    """Choose, run, report."""
    check_outputs(options)
    if options.list:
        return _list(options)
    _need_gpu()
    from validation.sanitize import binary

    executable = binary.find(options.sanitizer)
    version = binary.version(executable)
    provider, cases = _cases(options, "cuda")
    return _run(options, command, executable, version, provider, cases)


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            "sanitize needs a GPU, and there is none here (torch.cuda.is_available() is false): nothing was "
            "checked; run it where there is one"
        )


def _cases(options: argparse.Namespace, device: str) -> tuple[str, list[Case]]:
    """The provider and its cases: those named, or a few of every tactic."""
    from validation import contracts, providers
    from validation.contracts.contract import Case
    from validation.run import choose_device
    from validation.sanitize.choice import chosen

    choose_device(device)
    ops = [contracts.contract_named(name).name for name in options.op] or list(contracts.contracts())
    names = [options.provider] if options.provider else [] if options.plugin else ["triton"]
    provider = providers.load(names, options.plugin, device).providers[0]
    if options.case:
        return provider, [Case.parse(line) for line in options.case]
    served = [op for op in ops if op in providers.implemented_by(provider)]
    cases = [case for op in served for case in chosen(providers.implementation(op, provider))]
    if not cases:
        raise UserError(f"nothing to run: {provider} has none of {', '.join(ops)}")
    return provider, cases


def _run(
    options: argparse.Namespace, command: str, executable: str, version: str, provider: str, cases: list[Case]
) -> int:
    from validation.commands.measured import counted
    from validation.commands.sanitized import show
    from validation.run import REPORTS, new_folder, write
    from validation.sanitize.examine import Examination, groups_at_a_time, new_watch
    from validation.sanitize.tools import TOOLS

    tools = [tool for tool in TOOLS if tool.name in (options.tool or NAMES)]
    folder = new_folder(options.report_dir or REPORTS, _hash(provider, cases))
    plugins = [str(Path(path).resolve()) for path in options.plugin]
    watch = new_watch(executable, folder / "processes", options.limit)
    together = groups_at_a_time(os.cpu_count() or 1)
    examination = Examination(provider, plugins, cases, tools, watch, together)
    began, interrupted = time.monotonic(), False
    try:
        with counted("processes", examination.steps()) as advance:
            examination.run(advance)
    except KeyboardInterrupt:
        interrupted = True
    document = _document(command, examination, interrupted)
    document.seconds = time.monotonic() - began
    document.details = {
        "compute_sanitizer": version,
        "tools": {
            t.name: {"options": list(t.options), "sees": t.sees, "cannot_see": t.cannot} for t in tools
        },
    }
    trouble = write(document, folder)
    shown = functools.partial(show, tools=[tool.name for tool in tools])
    return conclude(document, options, folder, shown, interrupted, trouble)


def _hash(provider: str, cases: list[Case]) -> str:
    import hashlib

    text = "\n".join([provider, *(case.line() for case in cases)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _document(command: str, examination: Examination, interrupted: bool) -> Document:
    from validation.execution.environment import collect
    from validation.execution.plan import Settings
    from validation.report.schema import Document
    from validation.sanitize.blame import worst

    ops = tuple(dict.fromkeys(case.op for case in examination.cases))
    settings = Settings(ops=ops, providers=(examination.provider,), device="cuda")
    results, controls = examination.results, examination.controls
    decided = worst(results)
    if interrupted and decided == "pass":
        decided = "undecided"
    notes = [
        f"{c['provider']} did not report {c['op']}: {c['notes'][0]}" for c in controls if not c["flagged"]
    ]
    return Document(command, decided, collect(settings), results, controls=controls, notes=notes)


def _list(options: argparse.Namespace) -> int:
    """What would run, without a GPU too."""
    import textwrap

    from validation.sanitize.tools import TOOLS

    for tool in TOOLS:
        print(f"{tool.name}: {tool.sees}")
        print(textwrap.fill(f"cannot see: {tool.cannot}", 100, initial_indent="  ", subsequent_indent="  "))
    provider, cases = _cases(options, "cpu")
    print(f"{len(cases)} cases of {provider}")
    for case in cases:
        print(f"  {case.line()}")
    return 0
