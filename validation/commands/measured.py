"""What ``qualify`` and ``calibrate`` share: their options, a progress bar, and the record they write.

What this catches: unknown operations and output paths that cannot be written, before the work begins.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = "lockstep.measurement/1"


def measured_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of both commands."""
    parser.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="only this operation (repeatable)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU, else cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurement record here")


def selected(options: argparse.Namespace) -> tuple[list[str], str]:
    """Operations and device; raises UserError for unknown ones and for an unwritable record."""
    from validation.contracts import contract_named, contracts
    from validation.report.document import check_writable
    from validation.run import choose_device

    if options.json:
        check_writable(options.json, "--json")
    ops = [contract_named(name).name for name in options.op] or list(contracts())
    return ops, choose_device(options.device)


def record(command: str, ops: list[str], device: str, results: dict[str, Any]) -> dict[str, Any]:
    """A measurement record: command, environment, results."""
    from validation.execution.environment import collect
    from validation.execution.plan import Settings

    environment = collect(Settings(ops=tuple(ops), device=device))
    return {
        "schema": SCHEMA,
        "command": _without_outputs(command),
        "environment": environment,
        "results": results,
    }


def _without_outputs(command: str) -> str:
    """The command without --json FILE: where a record was written says nothing about what it holds."""
    words = shlex.split(command)
    kept = [w for i, w in enumerate(words) if "--json" not in (w.split("=")[0], words[i - 1] if i else "")]
    return shlex.join(kept)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write one document. Raises UserError if the path cannot be written."""
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another path") from None


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar with an estimate on stderr; yields the function that advances it, by one or by a
    number."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps=1: bar.advance(task, steps)
