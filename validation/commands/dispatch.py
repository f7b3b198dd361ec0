"""``lockstep dispatch``: the truth table of deployments and steps, and whether an implementation agrees.

What this catches: a step that is served and must not be, or falls back and need not; a refusal that is
missing, or gives another reason. What it cannot catch: what really ran (``lockstep step`` watches launches).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from validation.errors import UserError

BUILT_IN = "kernels_under_test.executor.plan"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE.py",
        help="a file with plan(step) -> q or None, and refuses(deployment) -> reason or None "
        "(default: the executor of this suite)",
    )
    parser.add_argument("--list", action="store_true", help="print the whole table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table and the answers here")


def main(options: argparse.Namespace, command: str) -> int:
    """Ask, compare, print."""
    from validation.dispatch.truth import compare
    from validation.report.document import check_writable

    if options.json:
        check_writable(options.json, "--json")
    module = _module(options.plan)
    answers = compare(_function(module, "plan"), _function(module, "refuses"))
    wrong = [a for a in answers if not a.agrees]
    if options.json:
        from dataclasses import asdict

        from validation.commands.measured import record, write_json

        write_json(options.json, record(command, ["dispatch"], "cpu", {"rows": [asdict(a) for a in answers]}))
    for answer in answers if options.list else wrong:
        mark = "      " if answer.agrees else "WRONG "
        said = "" if answer.agrees else f"; it says {answer.given}"
        print(f"{mark}{answer.what:<44} {answer.expected} ({answer.why}){said}")
    print(f"{len(answers) - len(wrong)} of {len(answers)} rows agree: {'FAIL' if wrong else 'PASS'}")
    return int(bool(wrong))


def _module(path: Path | None) -> Any:
    """What the functions are taken from."""
    import importlib
    import runpy
    from types import SimpleNamespace

    if path is None:
        return importlib.import_module(BUILT_IN)
    from validation.plugin_file import import_file

    import_file(path)  # says in one line what is wrong with the file
    return SimpleNamespace(**runpy.run_path(str(path)))


def _function(module: Any, name: str) -> Callable[[Any], Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise UserError(f"the file of --plan has no function {name}")
    return found
