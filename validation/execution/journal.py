"""cases.jsonl: results as they finish, so that an interrupted run can be resumed.

What this catches: a last line cut short (dropped, its case runs again), damage anywhere else, a file of
another kind, a disk that fills up (the line that did not fit is taken back). What it cannot catch: a line
edited into another valid one.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.errors import UserError
from validation.execution.plan import Settings, Task
from validation.report.document import reason
from validation.report.plain import MalformedError, dump_line, from_plain
from validation.report.schema import CaseResult

FILE = "cases.jsonl"
SCHEMA = "lockstep.cases/1"


@dataclass
class Header:
    """First line: what the run is, so that it can be taken up again under the same limits. ``skipped`` as in
    the plan, whose settings name only what was left."""

    settings: Settings
    environment: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA
    skipped: dict[str, str] = field(default_factory=dict)


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
        self.path = folder / FILE
        self._file = _open(self.path)
        if not os.fstat(self._file).st_size:
            self._write(header)

    def add(self, task: Task, result: CaseResult) -> None:
        """Append one result. Undecided cases and errors are not kept: a resumed run tries them again."""
        if result.verdict in ("pass", "fail"):
            self._write(Line(task.role, result))

    def close(self) -> None:
        """The end of it. Where a file system only now says that it could not write: UserError."""
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError as error:
                raise UserError(f"cannot write {self.path}: {reason(error)}") from None

    def _write(self, line: Header | Line) -> None:
        """Append one line, or nothing: without a buffer, so that nothing of it comes later."""
        before = os.fstat(self._file).st_size
        rest = (dump_line(line) + "\n").encode()
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise UserError(f"cannot write {self.path}: {reason(error)}") from None


def reopen(folder: Path) -> Journal:
    """Read what is finished and continue behind it. A last line cut short is removed."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot resume {folder}: {path}: {reason(error)}") from None
    lines = data.split(b"\n")
    if cut := lines.pop():
        try:
            os.truncate(path, len(data) - len(cut))
        except OSError as error:
            raise UserError(f"cannot resume {folder}: {path}: {reason(error)}") from None
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


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from None
