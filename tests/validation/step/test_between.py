"""Checks between operations and steps, each shown to fail on the smallest change."""

from __future__ import annotations

import torch
from step_case import Case, small

from validation.step import between
from validation.step.executor import provider
from validation.subjects.kimi_k3.batch import batch_of


def _stepped(**more: object) -> tuple[Case, object]:
    case = Case(small(**more))  # type: ignore[arg-type]
    case.step(provider("torch"), case.ids())
    return case, case.binding(batch_of(case.config, case.requests, case.ids()))


def test_ranks_part_by_one_bit() -> None:
    case = Case(small())
    ids = case.ids()
    batch = batch_of(case.config, case.requests, ids)
    case.step(provider("torch"), ids)
    b = case.binding(batch)
    assert between.ranks(0, b) == []
    case.scratch.logits[1, 0, 5] = -case.scratch.logits[1, 0, 5]
    (found,) = between.ranks(0, b)
    assert (found.output, found.message) == ("logits", "rank 1 parts from rank 0")
    case.scratch.logits[1, 0, 5] = -case.scratch.logits[1, 0, 5]
    row = case.requests[1].pages[1][0]
    case.state.kv[4][1, row, 0, 3] ^= 1
    (found,) = between.ranks(0, b)
    assert (found.output, found.layer) == ("keys", 4)
    case.state.kv[4][1, row, 1] ^= 1  # behind the last key: nobody's
    case.state.kv[4][1, row, 0, 3] ^= 1
    assert between.ranks(0, b) == []


def test_a_zero_that_changes_its_sign_between_steps_is_seen() -> None:
    case, _ = _stepped()
    before = case.state.clone()
    slot = case.requests[0].slots[0]
    case.state.recurrent[1][0, slot, 0, 0, 0] = 0.0
    before.recurrent[1][0, slot, 0, 0, 0] = -0.0
    (found,) = between.continuity(3, before, case.state)
    assert (found.step, found.layer, found.output) == (3, 1, "recurrent")
    assert found.where == f"rank 0, slot {slot}"


def test_a_free_page_that_is_written_is_seen() -> None:
    case, _ = _stepped()
    before = case.state.clone()
    page = case.pool.free_pages[1][0]
    case.state.kv[3][1, page, 2, 7] = 1
    (found,) = between.continuity(0, before, case.state)
    assert found.where == f"rank 1, page {page}"


def test_live_slots_must_be_finite_and_free_ones_need_not() -> None:
    case, _ = _stepped()
    assert between.finite(0, case.state, case.requests) == []
    assert case.state.recurrent[0].isnan().any()
    case.state.conv[2][0, case.requests[1].slots[0], 3, 2] = torch.inf
    (found,) = between.finite(0, case.state, case.requests)
    assert (found.layer, found.output) == (2, "conv")


def test_staging_names_the_field() -> None:
    case = Case(small(drafts=1))
    right = batch_of(case.config, case.requests, [[1, 2]] * 2, padded=3)
    told = right.clone()
    told.lengths[1, 2] = 7
    (found,) = between.staging(0, told, right)
    assert (found.output, found.where) == ("lengths", "[1, 2]")
