"""A dispatch table: for how many rows which kernels are launched, with which settings.

What this catches: a number of rows that no route serves, before anything is launched. What it cannot catch:
a kernel that was launched and is not in the table (``validation.dispatch.launches`` does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from validation.errors import UserError


@dataclass(frozen=True)
class Route:
    """Up to ``rows`` rows (tokens of the step): these kernels, in order of launch, with these settings.

    ``when`` is a further condition in words ("16 ranks", "two-shot"); ``settings`` go to the launcher.
    """

    rows: int
    kernels: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    when: str = ""


def route(table: Sequence[Route], rows: int, when: str = "") -> Route:
    """The first route of ``table`` (ascending in rows) that serves ``rows`` under the condition ``when``.

    Raises UserError that names the largest supported number of rows.
    """
    serving = [r for r in table if r.when == when]
    for candidate in serving:
        if rows <= candidate.rows:
            return candidate
    most = max((r.rows for r in serving), default=0)
    condition = f" ({when})" if when else ""
    raise UserError(f"no kernel is dispatched for {rows} rows{condition}; at most {most}")
