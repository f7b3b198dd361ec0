"""What a test says: one frozen record, the same for every test.

What this catches: a p-value outside [0, 1] (a mistake in the test). What it cannot catch: a wrong one inside.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

NAN = float("nan")
LEVEL = 0.05
POWER = 0.80


@dataclass(frozen=True)
class Test:
    """One test of one comparison.

    ``effect`` (candidate minus reference, or their ratio: ``unit`` says) has the interval [``low``, ``high``]
    with coverage ``coverage``. ``mde`` is the effect that the test finds at its level with 80 % power, in the
    effect's unit. ``repeats_needed``: repeats a question (for forced comparisons: tokens) after which the
    stated margin is detected or decided. ``n``: what is counted (questions, pairs, sequences). NaN: not
    available, and ``note`` says why.
    """

    __test__ = False  # not a test class of pytest

    name: str
    statistic: float = NAN
    p_value: float = NAN
    effect: float = NAN
    low: float = NAN
    high: float = NAN
    mde: float = NAN
    repeats_needed: float = NAN
    n: int = 0
    unit: str = ""
    coverage: float = 1 - LEVEL
    reference: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not math.isnan(self.p_value) and not 0 <= self.p_value <= 1:
            raise ValueError(f"{self.name}: p-value {self.p_value}")

    def to_dict(self) -> dict[str, str | float | int | None]:
        """Plain values for JSON; NaN and infinities become None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in dataclasses.asdict(self).items()
        }


def nothing(name: str, note: str, n: int = 0, reference: str = "") -> Test:
    """A test that could not be made: everything NaN, and why."""
    return Test(name, n=n, reference=reference, note=note)


def join(*notes: str) -> str:
    """Notes that are not empty, in one line."""
    return "; ".join(note for note in notes if note)
