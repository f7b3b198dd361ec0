"""Faults are planted where they say: on one rank, from one step on or in that step alone."""

from __future__ import annotations

from dataclasses import replace

from validation.stress.faults import FAULTS, VICTIM, fault_named
from validation.stress.job import Job
from validation.stress.layout import layout
from validation.stress.schedule import scheduled
from validation.stress.script import Step, reaches
from validation.stress.skew import QUIET, only
from validation.sync.kimi_k3 import subject

BOXES = layout(reaches(subject()), 2, 1)


def test_a_fault_of_one_rank_changes_that_rank_alone_and_that_step_alone() -> None:
    fault = fault_named("publication_missing")
    job = Job("x", fault.layers, batches=(8,), steps=6, fault=fault.name)
    honest, wrong = (scheduled(job, rank, BOXES, fault) for rank in (1 - VICTIM, VICTIM))
    assert len({len(variant) for variant in honest.variants}) == 1
    counts = wrong.counts
    assert counts == [counts[0]] * 3 + [counts[0] - 1] + [counts[0]] * 2


def test_every_fault_changes_something() -> None:
    for fault in FAULTS:
        job = Job("x", fault.layers, batches=fault.batches, in_turn=True, steps=6, dcp=fault.dcp)
        clean = [scheduled(job, rank, BOXES, None) for rank in (0, 1)]
        wrong = [scheduled(job, rank, BOXES, fault) for rank in (0, 1)]
        assert fault.memory or clean != wrong, fault.name


def test_a_withheld_publication_is_one_act_less() -> None:
    job = Job("x", "DKA", batches=(8,), steps=6, hang=(0, 4, 7))
    found = scheduled(job, 0, BOXES, None).counts
    assert [count - found[0] for count in found] == [0, 0, 0, 0, -1, 0]
    assert len(set(scheduled(job, 1, BOXES, None).counts)) == 1


def test_a_flag_overtakes_its_payload_on_every_second_rank() -> None:
    job = Job("x", "AA", batches=(8,), dcp=True, skew=only("order", "cpu", 0))
    even, odd = (scheduled(job, rank, BOXES, None).variants[0] for rank in (0, 1))

    def order(steps: list[Step]) -> list[str]:
        return [s.exchange for s in steps if s.verb == "publish" and s.exchange.startswith("dcp")]

    assert order(even) == ["dcp_q", "dcp_partial", "dcp_lse"] * 2
    assert order(odd) == ["dcp_q", "dcp_lse", "dcp_partial"] * 2
    assert {s.exchange for s in odd if s.late} == {"dcp_partial"}
    assert not any(s.late for s in even)
    assert sorted(map(str, (replace(s, late=0) for s in odd if s.verb == "publish"))) == sorted(
        str(s) for s in scheduled(replace(job, skew=QUIET), 1, BOXES, None).variants[0] if s.verb == "publish"
    )


def test_a_sum_that_is_passed_on_is_not_overtaken() -> None:
    for batch in (1, 4, 8, 33, 64):
        for plan in (8, 16):
            quiet = Job("x", "DKA", plan, (batch,))
            plain = scheduled(quiet, 1, BOXES, None).variants[0]
            other = scheduled(replace(quiet, skew=only("order", "cpu", 0)), 1, BOXES, None).variants[0]
            assert [i for i, s in enumerate(plain) if s.relays >= 0] == [
                i for i, s in enumerate(other) if s.relays >= 0
            ]


def test_launches_cover_every_act_once_in_order() -> None:
    found = scheduled(Job("x", "DKA", batches=(8, 64), in_turn=True, steps=2), 0, BOXES, None)
    seen = [
        start + i
        for starts, counts, _ in found.launches()
        for start, count in zip(starts, counts, strict=True)
        for i in range(count)
    ]
    assert seen == list(range(sum(len(variant) for variant in found.variants)))
