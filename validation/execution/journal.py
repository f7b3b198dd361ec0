"""cases.jsonl: results as they finish, so that an interrupted run can be resumed.

What this catches: a last line cut short (dropped, its case runs again), damage anywhere else, a file of
another kind. What it cannot catch: a line edited into another valid one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from validation.errors import UserError
from validation.execution.plan import Settings, Task
from validation.report.document import reason
from validation.report.plain import MalformedError, dump_line, from_plain
from validation.report.schema import CaseResult

FILE = "cases.jsonl"
SCHEMA = "lockstep.cases/1"


@dataclass
class Header:
    """First line: what the run is, so that it can be taken up again under the same limits."""

    settings: Settings
    environment: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA


@dataclass
class Line:
    """One finished case."""

    role: str
    result: CaseResult


class Journal:
    """An open cases.jsonl."""

    def __init__(self, folder: Path, header: Header, finished: dict[str, CaseResult] | None = None) -> None:
        self.header = header
        self.finished = finished or {}
        self._file: IO[str] = _open(folder / FILE)
        if self._file.tell() == 0:
            self._write(header)

    def add(self, task: Task, result: CaseResult) -> None:
        """Append one result. Undecided cases and errors are not kept: a resumed run tries them again."""
        if result.verdict in ("pass", "fail"):
            self._write(Line(task.role, result))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Header | Line) -> None:
        try:
            self._file.write(dump_line(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"cannot write {self._file.name}: {reason(error)}") from None


def reopen(folder: Path) -> Journal:
    """Read what is finished and continue behind it. A last line cut short is removed."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot resume {folder}: {path}: {reason(error)}") from None
    lines = data.split(b"\n")
    if cut := lines.pop():
        with path.open("r+b") as file:
            file.truncate(len(data) - len(cut))
    parsed = [_parse(path, i, line) for i, line in enumerate(lines, start=1)]
    if not parsed or not isinstance(parsed[0], Header):
        raise UserError(f"cannot resume {folder}: {path} does not begin as a run does; start a new run")
    finished = {_key(line.result): line.result for line in parsed[1:] if isinstance(line, Line)}
    return Journal(folder, parsed[0], finished)


def _parse(path: Path, number: int, line: bytes) -> Header | Line:
    try:
        data = json.loads(line)
        if number > 1:
            return from_plain(Line, data, "the result")
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise MalformedError(f"its first line does not name the schema '{SCHEMA}'")
        return from_plain(Header, data, "the header")
    except ValueError as error:
        what = " ".join(str(error).split())
        remedy = "start a new run" if number == 1 else "remove that line, its case then runs again"
        raise UserError(f"cannot resume: {path} is damaged in line {number} ({what}); {remedy}") from None


def _key(result: CaseResult) -> str:
    return f"{result.provider}/{result.case}"


def _open(path: Path) -> IO[str]:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from None
