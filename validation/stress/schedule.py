"""Every step of one rank as places in one table of acts, with what is planted in it.

What this catches: nothing. What it cannot say: times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from validation.stress.faults import VICTIM, Planted
from validation.stress.job import Job, batches_of
from validation.stress.layout import Layout
from validation.stress.script import STAGED, Step, acts
from validation.sync.exchange import Subject
from validation.sync.fault import planted
from validation.sync.kimi_k3 import subject
from validation.sync.setting import Setting, check

# Delays between a publication that overtakes and those that it has overtaken, in every fourth step.
LATE = 32


@dataclass(frozen=True)
class Schedule:
    """``variants``: lists of acts, one after another in the table. ``variant_of``, ``starts``, ``counts`` and
    ``batches``: of each step."""

    variants: list[list[Step]]
    rows_of: list[int]
    variant_of: list[int]
    batches: list[int]

    @property
    def offsets(self) -> list[int]:
        """Where each variant begins in the table."""
        found, at = [], 0
        for steps in self.variants:
            found.append(at)
            at += len(steps)
        return found

    @property
    def starts(self) -> list[int]:
        offsets = self.offsets
        return [offsets[variant] for variant in self.variant_of]

    @property
    def counts(self) -> list[int]:
        return [len(self.variants[variant]) for variant in self.variant_of]

    def act(self, number: int) -> Step:
        """An act by its number in the table."""
        for offset, steps in zip(self.offsets, self.variants, strict=True):
            if offset <= number < offset + len(steps):
                return steps[number - offset]
        raise IndexError(number)

    def order(self, step: int, number: int) -> int:
        """How many acts of its step come before an act of the table."""
        return number - self.offsets[self.variant_of[step]]

    def launches(self) -> Iterator[tuple[list[int], list[int], int]]:
        """(first act, acts) of each launch of a variant, and its rows."""
        for offset, steps, rows in zip(self.offsets, self.variants, self.rows_of, strict=True):
            starts, counts = [], []
            for i, step in enumerate(steps):
                if not i or step.launch != steps[i - 1].launch:
                    starts.append(offset + i)
                    counts.append(0)
                counts[-1] += 1
            yield starts, counts, rows


@lru_cache(maxsize=16)
def scheduled(job: Job, rank: int, layout: Layout, fault: Planted | None) -> Schedule:
    """The schedule of one rank, faulty or not. Raises UserError for layers or batches that cannot be."""
    check(Setting(layout.ranks, job.layers, tuple(job.batches), job.plan, job.dcp, barrier=False))
    protocols = planted(subject(), fault.edits) if fault else subject()
    keys: dict[tuple[int, bool, bool], int] = {}
    variants: list[list[Step]] = []
    variant_of, rows_of, batches = [], [], batches_of(job)
    for step, batch in enumerate(batches):
        wrong = bool(fault) and _errs(fault, step)  # type: ignore[arg-type]
        rows = fault.rows if fault and fault.rows and wrong and rank == VICTIM else batch
        silent = bool(job.hang) and job.hang[:2] == (rank, step)  # type: ignore[index]
        key = (rows, wrong, silent)
        if key not in keys:
            keys[key] = len(variants)
            made = _acts(protocols, job, rows, layout, rank)
            if wrong and fault and fault.change:
                made = fault.change(made, rank, layout)
            if silent and job.hang:
                made = without_publication(made, job.hang[2])
            variants.append(made)
            rows_of.append(rows)
        variant_of.append(keys[key])
        batches[step] = rows
    return Schedule(variants, rows_of, variant_of, batches)


def _errs(fault: Planted, step: int) -> bool:
    return step == fault.since if fault.once else step >= fault.since


def _acts(protocols: Subject, job: Job, rows: int, layout: Layout, rank: int) -> list[Step]:
    setting = Setting(layout.ranks, job.layers, (rows,), job.plan, job.dcp, barrier=False)
    made = acts(protocols, setting, rows, layout, rank, job.skew.seed)
    if job.skew.reordered and rank % 2:
        made = reordered(made)
    if not job.skew.staged:
        return made
    return [
        replace(step, flags=step.flags | STAGED) if step.verb == "publish" and step.relays < 0 else step
        for step in made
    ]


def reordered(steps: list[Step]) -> list[Step]:
    """The acts with publications that follow each other in a kernel the other way round.

    No wait and no re-arm lies between them, so that nothing but the order of the program, which a weak memory
    model does not keep, says which arrives first; now and then long before the others. A sum that is passed
    on stays right behind its wait.
    """
    found: list[Step] = []
    for _, group in groupby(steps, lambda step: (step.launch, step.verb == "publish" and step.relays < 0)):
        first, *rest = run = list(group)
        if first.verb == "publish" and rest:
            last, *others = run[::-1]
            run = [last, *(replace(step, late=LATE) for step in others)]
        found += run
    return found


def without_publication(steps: list[Step], number: int) -> list[Step]:
    """The acts with one publication left out, the ``number``-th modulo how many there are."""
    at = [i for i, step in enumerate(steps) if step.verb == "publish"]
    drop = at[number % len(at)]
    return [step for i, step in enumerate(steps) if i != drop]
