"""The grade of one reply: its class first, its score second.

A comparison of two arms must not mistake a reply that never came for a wrong answer, so every reply has a
class (``Outcome``) and only three classes carry a score: right, wrong and unparsed (a whole reply in which no
answer was found: 0, as everybody scores it, but counted apart because a format fault of one arm shows there
first).

How truncated replies enter. A reply cut at its length limit says nothing about its answer, only about its
length. Its score is NaN: it is left out of the compared score, and the *rate* of truncated replies is
compared by a test of its own. Counting it 0 would turn a limit that is too small into a quality loss (10 to
47 points in public reports, F58); leaving it out silently would hide an arm that never stops, which is why
the rate is always reported beside the score, together with the score that counts truncated replies as 0
(``zero_if_truncated``), which is the figure others publish. A truncated reply is not graded even if an answer
stands in it: the cut may lie in the reasoning (report id B209).

What this catches: failures that look like wrong answers. What it cannot catch: truncation by a model whose
finish reason is not known (plain strings); then the rate is 0 and the reply is graded as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from evals.graders.reply import failure_of, finish_of

Outcome = Literal[
    "right",
    "wrong",
    "unparsed",  # a whole reply without an answer that could be found: scored 0, counted apart
    "truncated",  # cut at the length limit: no score
    "timeout",
    "refused",
    "server",
    "transport",
    "context",
    "malformed",
    "grader",  # the grader raised, or reached its time or size limit: no score
]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
SCORED = ("right", "wrong", "unparsed")
FAILED = ("timeout", "refused", "server", "transport", "context", "malformed")


@dataclass(frozen=True)
class Grade:
    """``score`` in [0, 1], NaN if this reply has none; ``extracted``: the answer that was found; ``note``:
    why."""

    score: float
    outcome: Outcome
    extracted: str = ""
    note: str = ""

    @property
    def scored(self) -> bool:
        """The score enters the comparison."""
        return self.outcome in SCORED

    @property
    def zero_if_truncated(self) -> float:
        """The score as others report it: truncated is 0; a failure still has none."""
        return 0.0 if self.outcome == "truncated" else self.score

    def as_row(self) -> dict[str, Any]:
        """Plain values for a sample file; a score that does not exist is None (JSON knows no NaN)."""
        score = None if math.isnan(self.score) else self.score
        return {"score": score, "outcome": self.outcome, "extracted": self.extracted, "note": self.note}


def from_row(row: Mapping[str, Any]) -> Grade:
    """The inverse of ``Grade.as_row``."""
    score = math.nan if row["score"] is None else float(row["score"])
    return Grade(score, row["outcome"], row.get("extracted", ""), row.get("note", ""))


def unparsed(note: str) -> Grade:
    """A whole reply in which no answer was found."""
    return Grade(0.0, "unparsed", note=note)


def grade(reply: str, judge: Callable[[str], Grade]) -> Grade:
    """Class of ``reply``: failures and truncation first, then what ``judge`` says of its text.

    ``judge`` takes the text of a whole reply. Whatever it raises makes the class "grader", never a wrong
    answer.
    """
    failure = failure_of(reply)
    if failure:
        known = failure if failure in FAILED else "malformed"
        return Grade(math.nan, known, note=getattr(reply, "message", ""))  # type: ignore[arg-type]
    if finish_of(reply) == "length":
        return Grade(math.nan, "truncated", note="cut at its length limit")
    try:
        return judge(str(reply))
    except Exception as error:  # a fault of the grader must never become a wrong answer
        reason = " ".join(str(error).split())[:200]
        return Grade(math.nan, "grader", note=f"{type(error).__name__}: {reason}")
