"""What a run gave: records of all ranks in words, the first of them, and who is to blame.

The culprit of a hang is the publisher that the earliest wait missed: acts of a step have one order on all
ranks, and a rank that waits later does so because of the first gap. A rank whose process ended is the
culprit whatever the others miss.

What this catches: parted hashes, wrong words, hangs, deaths. What it cannot do: tell a rank that is slow from
one that hangs before a wait's patience is over.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from validation.report.schema import Verdict
from validation.stress.faults import fault_named
from validation.stress.job import Answer, Job
from validation.stress.layout import COLUMNS, Layout
from validation.stress.schedule import Schedule, scheduled

WRONG, HANG = 1, 2


@dataclass(frozen=True)
class Death:
    """A rank that is gone: its exit status (None: it does not answer, or failed), and its last line."""

    rank: int
    status: int | None
    last: str = ""

    def words(self) -> str:
        if self.status is None:
            return (
                f"rank {self.rank} does not answer"
                if not self.last
                else f"rank {self.rank} failed: {self.last}"
            )
        if self.status < 0:
            return f"rank {self.rank} was killed by {signal.Signals(-self.status).name}"
        ending = f"rank {self.rank} ended with status {self.status}"
        return f"{ending}: {self.last}" if self.last else ending


@dataclass(frozen=True)
class Fault:
    """The first thing that went wrong in a lane of a rank. ``order``: acts before it in its step."""

    rank: int
    lane: int
    kind: int
    step: int
    order: int
    layer: int
    exchange: str
    kernel: str
    source: int
    parity: int
    index: int
    expected: int
    found: int
    wrong: int

    @property
    def place(self) -> str:
        """Rank, step, layer, exchange, parity."""
        where = f"rank {self.rank}, step {self.step}, layer {self.layer}, {self.exchange} in {self.kernel}"
        return f"{where}, parity {self.parity}"

    def words(self) -> str:
        row, column = divmod(self.index, COLUMNS)
        at = f"row {row}, column {2 * (self.lane * COLUMNS + column)}"
        if self.kind == HANG:
            return f"hang: {self.place}: waits for rank {self.source}, whose publication is missing ({at})"
        word = f"found {self.found & 0xFFFFFFFF:08x}, expected {self.expected & 0xFFFFFFFF:08x}"
        return f"wrong word: {self.place}: from rank {self.source}, {at}: {word}"


@dataclass
class Outcome:
    """One job on all ranks. ``places``: last (step, act) of each rank, where ranks are gone."""

    job: Job
    ranks: int
    answers: list[Answer] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Steps that every rank made."""
        return min((answer.steps for answer in self.answers), default=0)

    @property
    def exchanges(self) -> int:
        """Exchanges that every lane of every rank completed."""
        complete = len(self.answers) == self.ranks
        return min(answer.exchanges for answer in self.answers) if complete else 0

    def parted(self) -> list[str]:
        """Ranks whose state differs, at the first step where it does."""
        found = []
        for answer in self.answers[1:]:
            step = first_difference(self.answers[0].hashes, answer.hashes)
            if step is not None:
                found.append(
                    f"hashes: rank {answer.rank} parts from rank {self.answers[0].rank} at step {step}"
                )
        return found

    def failures(self, layout: Layout) -> list[str]:
        """Everything that is wrong, the most telling first."""
        faults = self.faults(layout)
        said = [fault.words() for fault in faults[:1]]
        return [*self.culprits(layout), *said, *self.parted(), *self.findings]

    def faults(self, layout: Layout) -> list[Fault]:
        """What went wrong in every lane, in the order of the protocol."""
        schedules = self.schedules(layout)
        found = [
            _fault(answer.rank, record, schedules[answer.rank])
            for answer in self.answers
            for record in answer.records
        ]
        if self.job.fault and any(fault.kind == WRONG for fault in found):
            found = [fault for fault in found if fault.kind == WRONG]  # the rest were told to stop
        return sorted(found, key=lambda fault: (fault.step, fault.order, fault.rank))

    def schedules(self, layout: Layout) -> list[Schedule]:
        """What each rank was to do; the victim of a fault does it with the fault."""
        planted = fault_named(self.job.fault) if self.job.fault else None
        return [scheduled(self.job, rank, layout, planted) for rank in range(self.ranks)]

    def culprits(self, layout: Layout) -> list[str]:
        """Ranks that are gone, and where they were."""
        schedules = self.schedules(layout) if self.deaths else []
        return [f"{death.words()}{self._last(death.rank, schedules, layout)}" for death in self.deaths]

    def _last(self, rank: int, schedules: list[Schedule], layout: Layout) -> str:
        missed = [f for f in self.faults(layout) if f.kind == HANG and f.source == rank]
        if missed:
            return f"; missed first by {missed[0].place}"
        step, number = self.places.get(rank, (0, -1))
        if number < 0:
            return f"; last seen after step {step}"
        act = schedules[rank].act(number)
        place = f"step {step}, layer {act.layer}, {act.exchange} ({act.verb}), parity {act.parity(step)}"
        return f"; last seen in {place}"

    def blamed(self, layout: Layout) -> int | None:
        """The rank to blame: one that is gone, else the source that the first wait missed."""
        if self.deaths:
            return min(self.deaths, key=lambda death: death.status is None).rank
        return next((fault.source for fault in self.faults(layout)), None)


def _fault(rank: int, record: list[int], schedule: Schedule) -> Fault:
    lane, wrong, kind, step, number, source, parity, index, expected, found = record[:10]
    act = schedule.act(number)
    return Fault(
        rank, lane, kind, step, _position(schedule, step, number), act.layer, act.exchange, act.kernel,
        source, parity, index, expected, found, wrong,
    )  # fmt: skip


def _position(schedule: Schedule, step: int, number: int) -> int:
    """Waits before this one in its step: an order that all ranks share, whatever else they leave out."""
    first = schedule.offsets[schedule.variant_of[step]]
    steps = schedule.variants[schedule.variant_of[step]]
    return sum(act.verb in ("poll", "read") for act in steps[: number - first])


def first_difference(one: str, other: str) -> int | None:
    """The first step of which two strings of hashes, eight digits a step, differ; None if neither does."""
    steps = min(len(one), len(other)) // 8
    if one[: steps * 8] == other[: steps * 8]:
        return None
    return next(i for i in range(steps) if one[i * 8 : i * 8 + 8] != other[i * 8 : i * 8 + 8])


def verdict(failures: Sequence[str], errors: Sequence[str], doubts: Sequence[str]) -> Verdict:
    """Of a whole run: what failed outweighs what broke, and that outweighs what it cannot vouch for."""
    if failures:
        return "fail"
    if errors:
        return "error"
    return "undecided" if doubts else "pass"
