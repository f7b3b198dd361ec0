"""The comparison in the terminal: verdicts first, then what each test says, signals, speed.

What this catches: nothing; it shows what the document holds.
"""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from validation.report.schema import Document
from validation.report.terminal import STYLE
from validation.report.words import count, duration

WIDE = 170  # report.txt: every test on one line
VERDICT_STYLE = {"equivalent": "green", "different": "bold red", "undecided": "yellow", "error": "magenta"}
SPEED = (
    ("arm", "arm", ""),
    ("task", "task", ""),
    ("input_tokens", "in", ".0f"),
    ("output_tokens", "out", ".0f"),
    ("batch", "rows", "d"),
    ("decode_median", "decode tok/s", ".1f"),
    ("first_token_median", "first token s", ".2f"),
    ("latency_median", "latency s", ".1f"),
    ("output", "output tok/s", ".0f"),
    ("speculation", "speculation", ""),
    ("synthetic_acceptance", "synthetic", ""),
)


def as_text(document: Document) -> str:
    """The report without colours, for report.txt."""
    buffer = io.StringIO()
    show(document, Console(file=buffer, width=WIDE, color_system=None, highlight=False), every=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def show(document: Document, console: Console, folder: str = "", every: bool = False) -> None:
    """Print the report: tests that decide, or ``every`` one."""
    details = document.details
    _line(console, _arms(details))
    console.print(_scores(details))
    console.print(_tests(details, every))
    if quiet := 0 if every else sum(not _decides(row) for row in details.get("tests", [])):
        _line(console, f"{count(quiet, 'further test')} found nothing (report.txt lists them)")
    console.print(_speed(details))
    for line in [*details.get("declared_differences", []), *_controls(document)]:
        _line(console, line)
    for note in document.notes:
        _line(console, f"note: {note}")
    if folder:
        _line(console, f"report: {folder}")
    tail = f"{count(len(document.cases), 'test')}, in {duration(document.seconds)}"
    _line(console, f"{document.verdict.upper()}: {tail}", STYLE[document.verdict])


def _arms(details: dict[str, Any]) -> str:
    return f"reference: {details.get('reference', '-')}    candidate: {details.get('candidate', '-')}"


def _scores(details: dict[str, Any]) -> Table:
    """One line a task and arm: score as this suite counts it and as others do, and what became of the
    replies."""
    table = _table(
        "task", "arm", "questions", "k", "score", "cut = 0", "unparsed", "cut", "failed", "tokens", "loops"
    )
    for row in details.get("scores", []):
        shares = [_percent(row[name]) for name in ("unparsed", "truncated", "failed")]
        points = ["-" if row[n] is None else f"{100 * row[n]:.1f}" for n in ("score", "score_cut_0")]
        length = "-" if row["length"] is None else f"{row['length']:.0f}"
        head = row["task"], row["arm"], str(row["questions"]), str(row["repeats"])
        table.add_row(*head, *points, *shares, length, _percent(row["loop"]))
    return table


def _decides(row: dict[str, Any]) -> bool:
    """Whether the verdict rests on it: a margin to hold, or a difference found."""
    return bool(row["gating"]) or row["verdict"] != "undecided"


def _tests(details: dict[str, Any], every: bool) -> Table:
    titles = ("comparison", "test", "effect", "interval", "verdict")
    table = _table(*titles[:4], *(("unit", "p", "Holm", "would find") if every else ()), titles[4])
    for row in details.get("tests", []):
        if not (every or _decides(row)):
            continue
        low, high = row["low"], row["high"]
        interval = f"[{_number(low)}, {_number(high)}]" if low is not None and high is not None else "-"
        verdict = row["verdict"] if _decides(row) else "nothing found"
        cells = [row["comparison"], row["name"], _number(row["effect"]), interval]
        if every:
            cells += [row["unit"], *(_number(row[name]) for name in ("p_value", "adjusted_p", "mde"))]
        table.add_row(*cells, Text(verdict, VERDICT_STYLE.get(verdict, "")))
    return table


def _speed(details: dict[str, Any]) -> Table:
    table = _table(*(title for _, title, _ in SPEED))
    for row in details.get("speed", []):
        cells = []
        for name, _, form in SPEED:
            value = row.get(name)
            known = isinstance(value, int | float)  # a server may not tell
            cells.append(f"{value:{form}}" if form and known else "-" if value is None else str(value))
        table.add_row(*cells)
    return table


def _controls(document: Document) -> list[str]:
    flagged = sum(bool(each["flagged"]) for each in document.controls)
    lines = [f"negative controls: {flagged} of {count(len(document.controls), 'planted difference')} noticed"]
    return lines + [f"  missed: {c['op']}: {c['provider']}" for c in document.controls if not c["flagged"]]


def _table(*titles: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i < 2 or title == "verdict" else "right")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}"


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style), soft_wrap=True)
