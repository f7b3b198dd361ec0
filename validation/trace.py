"""Exceptions and dumps of crashed interpreters in one line: what, and where in whose file.

What this catches: the innermost line that belongs to the user or to this suite, not to an installed package
or the standard library. What it cannot catch: frames of native code, which Python does not record.
"""

from __future__ import annotations

import os
import re
import site
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from validation.errors import UserError

FOREIGN = tuple(
    {
        *site.getsitepackages(),
        *(sysconfig.get_path(p) for p in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)
DUMP_LINE = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
LONGEST = 300
DUMP_STACK = "(most recent call first):"
DUMP_START = re.compile(r"^(Fatal Python error: |(Current t|T)hread 0x|Stack \(most recent)", re.MULTILINE)


def describe(error: BaseException, source: Path | None = None) -> str:
    """An exception in one line, with the line of ``source`` where it arose."""
    text = str(error)
    if text.startswith("CUDA error:"):
        text = text.splitlines()[0]  # advice on debugging follows
    text = shortened(" ".join(text.split()))
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: SyntaxError: {error.msg}"
    kind = type(error).__name__
    words = text if isinstance(error, UserError) else f"{kind}: {text}" if text else kind
    where = line_in(error, source) if source else ""
    return f"{where}: {words}" if where else words


def shortened(text: str, most: int = LONGEST) -> str:
    """At most ``most`` characters; the rest is in the worker's log, or known to whoever typed it."""
    return text if len(text) <= most else text[: most - 4] + " ..."


def line_in(error: BaseException, source: Path) -> str:
    """The line of ``source`` through which the exception came."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(source)]
    return f"line {lines[-1]}" if lines else ""


def place(error: BaseException) -> str:
    """File and line where an exception arose, in code that is neither installed nor the standard library."""
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost([(f.filename, int(f.lineno or 0), f.name) for f in reversed(frames)])


def dumped_place(stderr: str) -> str:
    """The same, from what ``faulthandler`` wrote when the interpreter crashed or was asked where it is."""
    start = stderr.rfind(DUMP_STACK)
    frames = DUMP_LINE.finditer(stderr, start) if start >= 0 else ()
    return _innermost([(m["file"], int(m["line"]), m["name"]) for m in frames])


def last_words(stderr: str) -> str:
    """The last line a process wrote to stderr before any dump of its interpreter."""
    start = DUMP_START.search(stderr)
    lines = [line.strip() for line in stderr[: start.start() if start else None].splitlines()]
    return shortened(next((line for line in reversed(lines) if line), ""))


def _innermost(frames: Sequence[tuple[str, int, str]]) -> str:
    """``frames`` are innermost first."""
    if not frames:
        return ""
    own = [f for f in frames if not f[0].startswith(("<", *FOREIGN))]
    file, line, name = (own or list(frames))[0]
    return f"{name}, {os.path.basename(file)} line {line}"
