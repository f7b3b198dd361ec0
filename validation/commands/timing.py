"""``lockstep kernels --time``: operations and layers of both arms under CUDA-graph replay, as a table and
JSON.

What this catches: a specialised kernel that is slower than stock, or far from the memory's speed. Exit status
0 if every row could be timed, 3 otherwise: a figure is not a verdict. What it cannot catch: wrong results.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from validation import streams
from validation.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from validation.report.terminal import Screen
    from validation.timing.measure import Arm, Row
    from validation.timing.subject import Setting

# Where the layers are; imported by name only, so that arrows point one way.
SUBJECT = "kernels_under_test.layers.pairs"
RANKS, ROWS, CONTEXT = (8,), (1, 64), 8192
OPTIONS = ("ranks", "rows", "context")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options that count with --time."""
    group = parser.add_argument_group("with --time")
    group.add_argument("--time", action="store_true", help="time the operations and layers; needs a GPU")
    group.add_argument(
        "--ranks", type=int, nargs="+", choices=(8, 16), help="ranks the model is split over (default: 8)"
    )
    group.add_argument("--rows", type=int, nargs="+", metavar="N", help="rows of the step (default: 1 64)")
    group.add_argument("--context", type=int, metavar="N", help="tokens of each request (default: 8192)")


def main(options: argparse.Namespace, command: str) -> int:
    """Measure, print, store."""
    from validation.commands.measured import record, write_json
    from validation.report.document import check_writable
    from validation.report.terminal import Screen
    from validation.timing.replay import memory_bandwidth

    _check(options)
    _need_gpu()
    if options.json:
        check_writable(options.json, "--json")
    bandwidth = memory_bandwidth()
    screen = Screen(file=sys.stdout, highlight=False)
    streams.try_to(lambda: screen.print(f"measured memory bandwidth: {bandwidth / 1e12:.2f} TB/s"))
    rows: list[Row] = []
    stopped = _all(options, bandwidth, rows, screen)
    if options.json:
        entries = {"bandwidth": bandwidth, "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
        write_json(options.json, record(command, sorted({row.name for row in rows}), "cuda", entries))
    if stopped:
        raise KeyboardInterrupt
    return 3 if any(row.error for row in rows) else 0


def _all(options: argparse.Namespace, bandwidth: float, rows: list[Row], screen: Screen) -> bool:
    """Measure into ``rows`` and show each setting's table, also of what there is when the user interrupts:
    then True."""
    for setting, names in _settings(options):
        first = len(rows)
        try:
            _fill(rows, setting, names, bandwidth)
        except KeyboardInterrupt:
            return True
        finally:
            found = rows[first:]
            streams.try_to(lambda: _show(screen, setting, found))  # noqa: B023 - called at once
    return False


def _fill(rows: list[Row], setting: Setting, names: list[str], bandwidth: float) -> None:
    """Measure one setting under a progress bar."""
    from rich.console import Console
    from rich.progress import track

    from validation.timing.measure import measured

    console = Console(stderr=True)
    found = measured(SUBJECT, names, setting, bandwidth)
    words = f"{setting.ranks} ranks, {setting.rows} rows"
    bar = track(found, words, len(names), console=console, transient=True, disable=not console.is_terminal)
    for row in bar:
        rows.append(row)  # one by one: an interrupt costs none of them


def _show(screen: Screen, setting: Setting, found: list[Row]) -> None:
    screen.print(_table(setting, found))
    for row in found:
        if row.error:
            screen.print(f"  {row.name}: {row.error}", soft_wrap=True)


def _check(options: argparse.Namespace) -> None:
    """What cannot be timed anywhere, said before a GPU is asked for."""
    if options.device == "cpu":
        raise UserError("--time needs a GPU; leave out --device cpu")
    for count in options.rows or ROWS:
        if not 1 <= count <= 64:
            raise UserError(f"--rows {count}: a decode step of the subject has 1 to 64 rows")
    if options.context is not None and options.context < 1:
        raise UserError(f"--context {options.context}: a request has at least 1 token")


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("--time needs a GPU; there is none here")


def _settings(options: argparse.Namespace) -> Iterator[tuple[Setting, list[str]]]:
    """What is timed: each setting, and the names of its operations and layers."""
    from validation.timing.subject import Setting

    subject: Any = importlib.import_module(SUBJECT)
    for ranks in options.ranks or RANKS:
        for count in options.rows or ROWS:
            setting = Setting(ranks, count, options.context or CONTEXT)
            known = subject.names(setting)
            names = [name for name in known if not options.op or name in options.op]
            if not names:
                raise UserError(
                    f"nothing to time under --op {' '.join(options.op)}; known: {', '.join(known)}"
                )
            yield setting, names


def _table(setting: Setting, rows: list[Row]) -> Table:
    from rich import box
    from rich.table import Table

    title = f"{setting.ranks} ranks, {setting.rows} rows, context {setting.context}: one rank's work"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("what")
    for name in ("specialized us", "MB", "of bandwidth", "kernels", "stock us", "MB", "kernels", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("stock by")
    for row in rows:
        s, t = row.specialized, row.stock
        ratio = f"{row.ratio:.2f}x" if s and t else ""
        table.add_row(
            row.name, *_figures(s, True), *_figures(t, False), ratio, t.uses if t else ""
        )  # fmt: skip
    return table


def _figures(arm: Arm | None, share: bool) -> tuple[str, ...]:
    if arm is None:
        return ("",) * (4 if share else 3)
    figures = [f"{arm.seconds * 1e6:.1f}", f"{arm.bytes / 1e6:.1f}"]
    if share:
        figures.append(f"{arm.share:.0%}")
    return (*figures, str(len(arm.kernels)))
