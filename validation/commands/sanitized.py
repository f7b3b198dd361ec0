"""What ``lockstep sanitize`` prints: a table of operations and tools, the reports, what proves nothing.

What this catches: nothing; it shows what the document says. All reports are in results.json.
"""

from __future__ import annotations

import functools

from rich.console import Console
from rich.table import Table
from rich.text import Text

from validation.report.schema import CaseResult, Document
from validation.report.terminal import STYLE, print_table
from validation.report.words import count, duration, finding_words
from validation.sanitize.blame import tool_of, worst


def show(document: Document, console: Console, folder: str, tools: list[str]) -> None:
    """One row an operation, one column a tool; then every report, once a kernel, and what proves nothing."""
    by = {tool: [r for r in document.cases if tool_of(r) == tool] for tool in tools}
    print_table(console, _table(by))
    say = functools.partial(console.print, soft_wrap=True, highlight=False, markup=False)
    known = set()
    for finding in document.findings:
        if (key := (finding.op, finding.statistic, finding.output, finding.where)) not in known:
            known.add(key)
            say(f"\n{finding.op} by {finding.provider}: {finding_words(finding)}\n  {finding.replay}")
    for note in dict.fromkeys(r.note for r in document.cases if r.note):
        say(f"note: {note}")
    for control in document.controls:
        state = (
            f"reported ({control['notes'][0]})" if control["flagged"] else f"MISSED: {control['notes'][0]}"
        )
        say(f"planted fault for {control['provider']}: {state}")
    if folder:
        say(f"report: {folder}")
    cases = count(len({r.case for r in document.cases}), "case")
    under = f"{cases} under {count(len(tools), 'tool')}"
    say(f"{document.verdict.upper()}: {under}, in {duration(document.seconds)}")


def _table(by: dict[str, list[CaseResult]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("operation", "cases", *by):
        table.add_column(name, justify="right" if name == "cases" else "left")
    for op in dict.fromkeys(r.op for results in by.values() for r in results):
        of_op = {tool: [r for r in results if r.op == op] for tool, results in by.items()}
        states = [worst(results) for results in of_op.values()]
        cells = [Text(word, STYLE[word]) for word in states]
        table.add_row(op, str(max(len(results) for results in of_op.values())), *cells)
    return table
