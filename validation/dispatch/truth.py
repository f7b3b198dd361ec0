"""The truth table of sections 5.1 to 5.3 asked of an implementation.

Catches: every row on which ``plan`` or ``refuses`` say something else. Cannot catch: decisions that depend on
what no row varies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from validation.subjects.kimi_k3.deployment import ACCEPTED, REFUSED, Deployment, refusal
from validation.subjects.kimi_k3.steps import TRUTH, StepKind


@dataclass(frozen=True)
class Answer:
    """One row: what must be said and what was said."""

    what: str
    expected: str
    why: str
    given: str

    @property
    def agrees(self) -> bool:
        return self.expected == self.given


def compare(
    plan: Callable[[StepKind], int | None], refuses: Callable[[Deployment], str | None]
) -> list[Answer]:
    """Every deployment and every step of the table, in its order."""
    found = []
    for deployment in (*REFUSED, *ACCEPTED):
        expected = _refused(refusal(deployment))
        given = _refused(_asked(refuses, deployment))
        # The reason is part of the answer; an implementation may say more.
        agreed = expected if expected != "accepted" and expected.removeprefix("refused: ") in given else given
        found.append(Answer(changed(deployment), expected, "deployment", agreed))
    for row in TRUTH:
        given = _served(_asked(plan, row.step))
        found.append(Answer(row.step.name, _served(row.tokens or None), row.why, given))
    return found


def changed(deployment: Deployment) -> str:
    """What differs from the accepted default."""
    default = Deployment()
    pairs = [(f.name, getattr(deployment, f.name)) for f in fields(deployment)]
    return ", ".join(f"{n}={v}" for n, v in pairs if v != getattr(default, n)) or "the default"


def _asked(function: Callable[[Any], Any], question: Any) -> Any:
    """An implementation that raises ValueError refuses with that reason, as the subject does."""
    try:
        return function(question)
    except ValueError as error:
        return str(error)


def _refused(reason: str | None) -> str:
    return f"refused: {reason}" if reason else "accepted"


def _served(tokens: Any) -> str:
    return f"specialised, q = {tokens}" if tokens else "fallback"
