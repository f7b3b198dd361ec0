"""The results document as a file.

What this catches: files that are damaged, cut short, or written by something else; each ends in one line
that says what to do. What it cannot catch: a document edited by hand into another valid one.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from validation.errors import UserError
from validation.report.plain import MalformedError, from_plain, to_plain
from validation.report.schema import SCHEMA, Document


def to_json(document: Document) -> str:
    """The document as standard JSON text."""
    return json.dumps(to_plain(document), indent=1, allow_nan=False) + "\n"


def from_json(text: str, name: str = "the text") -> Document:
    """Inverse of ``to_json``. Raises UserError if the text is damaged or no results document."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{name} is damaged: {_one_line(error)}; run again to write it anew") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        found = f"its schema is '{schema}'" if schema else "it names no schema"
        raise UserError(f"{name} is not a results document: {found}, expected '{SCHEMA}'")
    try:
        return from_plain(Document, data)
    except MalformedError as error:
        raise UserError(f"{name} is damaged: {error}; run again to write it anew") from None


def load(path: Path) -> Document:
    """Read a results document from a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None
    return from_json(text, str(path))


def save(text: str, path: Path) -> None:
    """Write a report file, or say in one line why not; one that is cut short is removed."""
    opened = False
    try:
        with path.open("w", encoding="utf-8") as file:
            opened = True
            file.write(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            if opened and path.is_file():
                path.unlink()
        raise UserError(f"cannot write {path}: {reason(error)}") from None


def check_writable(path: Path, option: str) -> None:
    """Raise UserError now if ``path`` could not be written after the run. Leaves nothing behind."""
    existed = path.exists()
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UserError(f"cannot write {option} {path}: {reason(error)}") from None
    if not existed:
        path.unlink()


def reason(error: Any) -> str:
    """The words of an operating-system error without its number and path."""
    return (getattr(error, "strerror", None) or _one_line(error)).lower()


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())
