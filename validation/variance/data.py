"""Paired scores: the same questions, the same repeats, two arms.

Catches: arms with different questions or repeats, no repeats (K = 0), scores that are not numbers. A pair
with a missing side (NaN: an infrastructure failure left no score) is dropped, a question without any pair
too, and both are counted. Cannot catch: questions in another order in the two arms (compare their hashes
before).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from validation.errors import UserError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Paired:
    """Scores [questions, repeats] of the reference arm ``a`` and of the candidate ``b``.

    ``span``: the range of a score (1 for shares and right or wrong), None where it has no bound (lengths).
    After construction both arrays are NaN at the same places, every question has a pair, and ``dropped`` says
    how many pairs were lost. Raises UserError for shapes that do not match or are empty.
    """

    a: Array
    b: Array
    span: float | None = 1.0
    dropped: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        a, b = _scores(self.a, "reference"), _scores(self.b, "candidate")
        if a.shape != b.shape:
            raise UserError(
                f"the arms have different questions or repeats ({a.shape} and {b.shape}); "
                "score both arms on the same questions with the same number of repeats"
            )
        if a.shape[1] == 0:
            raise UserError("the arms have no repeats (K = 0); run at least one repeat a question")
        missing = ~(np.isfinite(a) & np.isfinite(b))
        a, b = (np.where(missing, np.nan, x)[~missing.all(axis=1)] for x in (a, b))
        if self.span is not None and a.size and np.nanmax(np.abs([a, b])) > self.span:
            raise UserError(
                f"a score lies outside its range of {self.span:g}; state the range of the scores (span)"
            )
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", b)
        object.__setattr__(self, "dropped", int(missing.sum()))

    @property
    def questions(self) -> int:
        return int(self.a.shape[0])

    @property
    def repeats(self) -> int:
        """Repeats a question as planned (missing ones counted)."""
        return int(self.a.shape[1])

    @property
    def pairs(self) -> int:
        return int(np.isfinite(self.a).sum())

    @property
    def counts(self) -> Array:
        """Valid pairs of every question."""
        return np.isfinite(self.a).sum(axis=1).astype(float)

    @property
    def differences(self) -> Array:
        """b - a, [questions, repeats], NaN where a pair is missing."""
        return self.b - self.a

    def by_question(self) -> Array:
        """Mean difference of every question, [questions]: each question counts the same."""
        return np.asarray(np.nansum(self.differences, axis=1) / self.counts)

    def all_equal(self) -> bool:
        """Not one pair differs."""
        return bool((self.differences[np.isfinite(self.a)] == 0).all())

    def lost(self) -> str:
        """How many pairs had a missing side, in words; empty if none."""
        return f"{self.dropped} pairs without a score left out" if self.dropped else ""


def _scores(values: ArrayLike, arm: str) -> Array:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError):
        raise UserError(f"the {arm} arm has scores that are not numbers; use NaN for a missing one") from None
    if array.ndim != 2:
        raise UserError(f"the {arm} arm has {array.ndim} axes; scores are [questions, repeats]")
    return array
