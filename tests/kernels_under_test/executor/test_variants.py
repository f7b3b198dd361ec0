"""Whole steps against their operations one by one: right designs leave the same bytes, planted faults of
graphs and side streams do not, and bisection names the operation that first parts."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels_under_test.executor.schedule import FETCH, SHARED, beginning, schedule
from kernels_under_test.executor.specialised import Design, Whole
from validation.step.executor import provider, vanilla
from validation.step.long_run import Pace, Paths, long_run
from validation.step.walk import Walk, forced
from validation.subjects.kimi_k3.program import program
from validation.subjects.kimi_k3.weights import random_weights

sys.path.append(str(Path(__file__).parents[2] / "validation" / "walks"))
from step_case import small

# Which operation of a whole step is the first to be wrong.
BLAMED = {
    "stale_slots": "kda_decode",
    "stale_lengths": "mla_attention",
    "stale_accepted": "kda_verify",
    "padding_lives": "kda_decode",
    "shared_not_joined": "moe_tail",
}


@functools.cache
def _weights():  # type: ignore[no-untyped-def]
    return random_weights(small())


def _whole(design: Design | None = None) -> Whole:
    kernels = provider("inductor")
    return Whole("whole", kernels.profile, kernels.run, design=design or Design())


def test_side_work_is_ahead_of_the_router_and_joined_by_the_tail() -> None:
    entries = schedule(program(small()))
    names = [e.operation.op if e.operation else "fetch" for e in entries]
    shared = next(i for i, e in enumerate(entries) if e.stream == SHARED)
    assert names[shared : shared + 2] == ["shared_expert", "moe_front"]
    tail = names.index("moe_tail", shared)
    assert entries[tail].joins == (SHARED,)
    assert sorted(e.layer for e in entries if e.stream == FETCH) == [1, 2, 3, 4]
    assert len(entries) == len(program(small())) + 4
    assert [e.operation for e in beginning(entries, 3)] == [e.operation for e in entries[:3]]


@pytest.mark.parametrize("early", [False, True])
def test_right_designs_leave_the_bytes_of_single_operations(early: bool) -> None:
    walk = Walk(small(), _weights(), _whole(Design(early=early)), None, checks=False, twice=True, most=3)
    for _ in range(3):
        walk.admit()
    for ids in forced(small(), 3, 3):
        walk.requests.reverse()
        walk.step(ids, padded=4)
    assert walk.found == []


def test_a_right_design_passes_drafted_windows_that_are_padded() -> None:
    """One prepared batch for each number of rows and of tokens."""
    config, executor = small(3), _whole()
    pace = Pace(6, window=3, renewed=1, counts=(3, 2), sizes=(2, 4), twice=1)
    paths = Paths(executor, provider("inductor"), {}, 1e-8)
    run = long_run(config, random_weights(config), paths, pace)
    assert run.found == []
    assert (run.verified, run.twice) == (4, 4)
    prepared = {key[:2] for one in executor.built.values() for key in one.prepared}
    assert prepared == {(4 * 4, 4), (4, 1), (2 * 4, 4), (2, 1)}
    assert {line for one in executor.built.values() for line in one.log} == {"specialised"}


@pytest.mark.parametrize("name", list(BLAMED))
def test_planted_faults_are_found_and_blamed_on_their_operation(name: str) -> None:
    executor, right = _whole().variants()[name]
    assert not right
    drafts = 3 if name == "stale_accepted" else 0
    config = small(drafts)
    pace = Pace(6, window=3, renewed=2 if drafts else 1, counts=(3, 2), sizes=(4,), twice=3)
    paths = Paths(executor, provider("inductor"), {}, 1e-8)
    run = long_run(config, random_weights(config) if drafts else _weights(), paths, pace)
    assert run.found[0].op == BLAMED[name]
    assert run.found[0].statistic == "replay"
    assert run.place is not None
    assert run.place.judged is not None
    assert run.place.judged.failed


def test_an_executor_of_another_design_prepares_its_own_batches() -> None:
    one = _whole()
    walk = Walk(small(), _weights(), one, None, checks=False)
    walk.admit()
    walk.step(forced(small(), 1, 1)[0])
    assert len(one.built) == 1
    assert replace(one, design=Design(early=True)).built == {}


def test_a_prompt_falls_back_to_the_vanilla_forward() -> None:
    one = _whole()
    walks = [Walk(small(), _weights(), e, None, checks=False) for e in (one, vanilla("stock"))]
    rows = [walk.prefill(walk.admit(), [3, 1, 4, 1, 5]) for walk in walks]
    assert torch.equal(rows[0], rows[1])
    assert one.built == {}
