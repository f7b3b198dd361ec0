"""Lines of a journal: one response each, with a checksum in front, arrays as base64 of little-endian numbers.

What this catches: a last line cut short by a kill (no line end) and lines changed afterwards (CRC-32).
What it cannot catch: a line removed as a whole; its request is asked again.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from evals.store.row import Row

ARRAYS = {
    "token_ids": "<i4",
    "logprobs": "<f8",
    "top_ids": "<i4",
    "top_logprobs": "<f8",
    "accepted": "<i4",
}


@dataclass
class Lines:
    """A journal read back. ``damaged``: lines that are not what was written; ``cut``: the last has no end."""

    rows: list[Row]
    damaged: list[bytes]
    cut: bool = False


def line(row: Row) -> bytes:
    """One line, ready to be appended."""
    plain = {field.name: getattr(row, field.name) for field in fields(Row)}
    for name, kind in ARRAYS.items():
        array = np.ascontiguousarray(plain[name], kind)
        plain[name] = [list(array.shape), base64.b64encode(array.tobytes()).decode()]
    data = json.dumps(plain).encode()
    return b"%08x %b\n" % (zlib.crc32(data), data)


def read(path: Path) -> Lines:
    """All rows of a journal, in order.

    What cannot be read is told, never raised; OSError if the file cannot.
    """
    *whole, rest = path.read_bytes().split(b"\n")
    lines = Lines([], [], cut=bool(rest))
    for each in whole:
        row = _row(each)
        if row is None:
            lines.damaged.append(each)
        else:
            lines.rows.append(row)
    return lines


def _row(data: bytes) -> Row | None:
    head, _, body = data.partition(b" ")
    try:
        if int(head, 16) != zlib.crc32(body):
            return None
        plain: dict[str, Any] = json.loads(body)
        for name, kind in ARRAYS.items():
            shape, text = plain[name]
            native = np.dtype(kind).newbyteorder("=")
            plain[name] = np.frombuffer(base64.b64decode(text), kind).reshape(shape).astype(native)
        return Row(**plain)
    except (ValueError, KeyError, TypeError):
        return None
