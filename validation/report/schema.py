"""The results document: what one run says, as plain data that round-trips through JSON.

Terminal, JUnit and Markdown reports are made from it, never the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = "lockstep.results/1"

Verdict = Literal["pass", "fail", "undecided", "error"]
# Exit status by verdict (design of the command): CI reads this.
EXIT_STATUS: dict[str, int] = {"pass": 0, "fail": 1, "undecided": 2, "error": 3}


# Statistics over many elements at once: they say that something is wrong, not where.
SUMS = ("flips", "mean_square", "bias", "projection")


# Every name that a finding of a kernel can have: of an output, of memory, of returned values, of the run.
STATISTICS = (
    *("nonfinite", "excess", *SUMS, "bits", "choice"),
    *(
        "unwritten",
        "input_changed",
        "untouched_changed",
        "red_zone",
        "replaced",
        "not_repeatable",
        "dispatch",
    ),
    *("signature", "shape", "dtype", "device"),
    *("exception", "crash", "hang"),
)


@dataclass
class Score:
    """One statistic of one output: ``value`` over ``limit`` above 1 is a finding. A limit of 0 means
    that none is allowed; ``value`` then counts elements. Units: see ``unit``."""

    output: str
    statistic: str
    value: float
    limit: float
    unit: str = ""

    @property
    def ratio(self) -> float:
        return ratio(self.value, self.limit)


@dataclass
class Element:
    """One wrong element: its place in words, what was found and what was expected."""

    at: str
    found: float
    expected: float


@dataclass
class Finding:
    """One violated expectation: what, where in words, how far beyond its limit, and how to replay it.

    ``worst`` lists the worst elements (for the map of a replay). ``known`` is the issue of the ledger entry
    that excuses it, if any.
    """

    layer: str
    op: str
    provider: str
    case: str
    statistic: str
    output: str
    value: float
    limit: float
    where: str
    message: str
    replay: str
    worst: list[Element] = field(default_factory=list)
    known: str = ""

    @property
    def telling(self) -> tuple[bool, float]:
        """Order of findings, most telling last: those that name elements before sums over many, then by
        size."""
        return self.statistic not in SUMS, self.ratio

    @property
    def ratio(self) -> float:
        return ratio(self.value, self.limit)


@dataclass
class CaseResult:
    """One case of one provider. ``controls``: faults planted in its outputs, and those noticed.
    ``mean_squares``: mean squared score by output, 1 where the noise is as predicted. ``kernels``: the Triton
    kernels that were launched, in order; ``device_kernels``: everything that a GPU ran, each name once, where
    it was watched (the first case of an operation)."""

    op: str
    provider: str
    case: str
    verdict: Verdict
    scores: list[Score] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    controls_planted: int = 0
    controls_caught: int = 0
    mean_squares: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""
    kernels: list[str] = field(default_factory=list)
    device_kernels: list[str] = field(default_factory=list)

    @property
    def excused(self) -> bool:
        """Failed, and every finding is in the ledger."""
        return self.verdict == "fail" and bool(self.findings) and all(f.known for f in self.findings)


@dataclass
class Document:
    """One run. ``skipped``: provider -> reason. ``controls``: provider-level negative controls. ``details``:
    what only one layer has (tests with their intervals, facts of both arms, speed, signals), as plain
    data."""

    command: str
    verdict: Verdict
    environment: dict[str, Any]
    cases: list[CaseResult]
    skipped: dict[str, str] = field(default_factory=dict)
    controls: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def findings(self) -> list[Finding]:
        return [finding for case in self.cases for finding in case.findings]


def ratio(value: float, limit: float) -> float:
    """How many times its limit a value is; infinite for a NaN or a limit of zero."""
    if value != value:
        return float("inf")
    return value / limit if limit > 0 else (0.0 if value == 0 else float("inf"))
