"""Everything about one case: the map that ``lockstep replay`` prints.

What this catches: nothing; it shows what the document says. What it cannot show: elements that the judge did
not record.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from validation.report.schema import CaseResult, Document, Element, Finding, Score
from validation.report.terminal import STYLE, control_lines
from validation.report.words import duration, finding_words, score_words


def show(document: Document, console: Console, folder: str = "") -> None:
    """All findings with their worst elements, every score, controls, verdict."""
    for result in document.cases:
        _print(console, f"{result.provider}/{result.case}", "bold")
        listed: list[Element] = []
        for finding in sorted(result.findings, key=lambda f: f.telling, reverse=True):
            _finding(console, finding, finding.worst == listed)
            listed = finding.worst or listed
        if result.scores:
            console.print(_scores(result.scores))
        _tail(console, result)
    for line in [*control_lines(document), *(f"note: {note}" for note in document.notes)]:
        _print(console, line)
    if folder:
        _print(console, f"report: {folder}")
    _print(console, document.verdict.upper(), STYLE[document.verdict])


def _finding(console: Console, finding: Finding, listed: bool) -> None:
    _print(console, f"  {finding_words(finding)}", STYLE["known" if finding.known else "fail"])
    if finding.output:
        _print(console, f"    value {finding.value:.6g}, limit {finding.limit:.6g}")
    if finding.worst and listed:
        _print(console, "    the same elements are worst")
    for element in [] if listed else finding.worst:
        _print(console, f"    {element.at}: found {element.found:.9g}, expected {element.expected:.9g}")
    if finding.known:
        _print(console, f"    known: {finding.known}")


def _scores(scores: list[Score]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2))
    table.add_column("  output")
    table.add_column("statistic")
    for name in ("value", "limit", "value / limit"):
        table.add_column(name, justify="right")
    for score in scores:
        style = STYLE["fail"] if score.ratio > 1 else ""
        unit = f" {score.unit}" if score.unit else ""
        row = (f"{score.value:.5g}{unit}", f"{score.limit:.5g}", score_words(score))
        table.add_row(f"  {score.output}", score.statistic, *row, style=style)
    return table


def _tail(console: Console, result: CaseResult) -> None:
    for output, value in result.mean_squares.items():
        _print(console, f"  {output}: mean square {value:.4g} of the predicted noise")
    if result.note:
        _print(console, f"  {result.note}")
    _print(console, f"  {result.verdict} after {duration(result.seconds)}")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style), soft_wrap=True)
