"""The report a tired person reads: one table, the worst finding of each failing pair, one last line.

What this catches: nothing; it shows what the document says. What it cannot show: all findings (results.json
has them; ``lockstep replay`` prints all of one case, see ``replay.py``).
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from validation.report.schema import CaseResult, Document
from validation.report.words import count, duration, finding_words, largest_score, score_words

WIDTH, UNBOUNDED = 110, 10_000
STYLE = {"pass": "green", "fail": "bold red", "undecided": "yellow", "error": "magenta", "known": "cyan"}
Pairs = dict[tuple[str, str], list[CaseResult]]


class Screen(Console):
    """A console that leaves a closed pipe to its caller; rich would exit with 1, which is a verdict here.

    As wide as the terminal, or as COLUMNS says; in a file or a pipe without it, ``width``.
    """

    def __init__(self, file: IO[str], width: int = WIDTH, **more: Any) -> None:
        free = not file.isatty() and not os.environ.get("COLUMNS", "").isdigit()
        super().__init__(file=file, width=width if free else None, **more)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def as_text(document: Document) -> str:
    """The report without colours, for report.txt."""
    buffer = io.StringIO()
    show(document, Console(file=buffer, width=WIDTH, color_system=None, highlight=False))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def show(document: Document, console: Console, folder: str = "") -> None:
    """Print the whole report."""
    pairs: Pairs = defaultdict(list)
    for result in document.cases:
        pairs[result.op, result.provider].append(result)
    print_table(console, _table(pairs))
    for (op, provider), results in pairs.items():
        _show_worst(console, f"{op} by {provider}", results)
    _show_aside(console, document)
    _show_last(console, document, folder)


def state(results: list[CaseResult]) -> str:
    """The verdict of one pair of operation and provider."""
    verdicts = {"known" if r.excused else r.verdict for r in results}
    order = ("fail", "error", "undecided", "known", "pass")
    if "pass" in verdicts and "undecided" in verdicts:
        verdicts.discard("undecided")
    return next(v for v in order if v in verdicts)


def print_table(console: Console, table: Table) -> None:
    """A table as wide as its longest words need, even where the terminal is narrower: no word is cut."""
    for column in table.columns:
        cells = (column.header, *column.cells)
        column.min_width = max(console.measure(cell).minimum for cell in cells)
    needed = console.measure(table, options=console.options.update(width=UNBOUNDED)).minimum
    console.print(table, width=max(needed, console.width), crop=False)


def _table(pairs: Pairs) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("operation", "provider", "cases", "largest score / limit", "of", "verdict"):
        justify: Any = "right" if name in ("cases", "largest score / limit") else "left"
        table.add_column(name, justify=justify)
    for (op, provider), results in pairs.items():
        score = largest_score(results)
        largest = (score_words(score), f"{score.output} {score.statistic}") if score else ("-", "-")
        verdict = state(results)
        table.add_row(op, provider, f"{len(results):,}", *largest, Text(verdict, STYLE[verdict]))
    return table


def _show_worst(console: Console, pair: str, results: list[CaseResult]) -> None:
    """The worst finding in words, the line that replays it, and how many more there are."""
    findings = [f for r in results for f in r.findings]
    new = [f for f in findings if not f.known]
    verdict = state(results)
    if verdict in ("pass", "known"):
        return
    _line(console, "")
    _line(console, f"{pair}: {verdict}", STYLE[verdict])
    if new:
        # A walk has them in its own order, and the first is the cause of the others.
        worst = new[0] if new[0].layer == "step" else max(new, key=lambda f: f.telling)
        _line(console, f"  {finding_words(worst)}")
        _line(console, f"  {worst.replay}", "bold")
        if len(new) > 1:
            wrong = sum(any(not f.known for f in r.findings) for r in results)
            more = count(len(new) - 1, "further finding")
            _line(console, f"  and {more}; {wrong} of {count(len(results), 'case')} failed")
    for note in dict.fromkeys(r.note for r in results if r.note and r.verdict in ("error", "undecided")):
        _line(console, f"  {note}")


def _show_aside(console: Console, document: Document) -> None:
    """Skipped providers, negative controls, ledger, notes."""
    _line(console, "")
    for name, reason in document.skipped.items():
        _line(console, f"skipped {name}: {reason}", "dim")
    for line in control_lines(document):
        _line(console, line)
    for record in document.ledger:
        loud = record["state"] in ("expired", "fixed")
        _line(console, f"ledger {record['entry']}: {record['message']}", STYLE["fail"] if loud else "")
    for note in document.notes:
        if not note.startswith("ledger entry"):
            _line(console, f"note: {note}")


def control_lines(document: Document) -> list[str]:
    """How often the suite noticed what it had to notice."""
    planted = sum(r.controls_planted for r in document.cases)
    caught = sum(r.controls_caught for r in document.cases)
    lines = [f"negative controls: {caught} of {count(planted, 'planted fault')} noticed"]
    by_provider: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for control in document.controls:
        by_provider[control["provider"]].append(control)
    for provider, group in by_provider.items():
        flagged = sum(bool(c["flagged"]) for c in group)
        missed = ", ".join(c["op"] for c in group if not c["flagged"])
        line = f"negative control {provider}: flagged on {flagged} of {count(len(group), 'operation')}"
        lines.append(line + (f"; missed on {missed}" if missed else ""))
    return lines


def _show_last(console: Console, document: Document, folder: str) -> None:
    failed = sum(r.verdict == "fail" and not r.excused for r in document.cases)
    known = sum(r.excused for r in document.cases)
    parts = [count(len(document.cases), "case")]
    parts += [f"{failed} failed"] if failed else []
    parts += [count(known, "known failure")] if known else []
    parts.append(f"in {duration(document.seconds)}")
    if folder:
        _line(console, f"report: {folder}")
    _line(console, f"{document.verdict.upper()}: {', '.join(parts)}", STYLE[document.verdict])


def _line(console: Console, text: str, style: str = "") -> None:
    """One line, whole: a replay line that is wrapped cannot be copied."""
    console.print(Text(text, style), soft_wrap=True)
