"""Checks between operations and steps, each shown to fail on the smallest change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from step_case import Case, small

from validation.step import between
from validation.step.executor import provider
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding
from validation.subjects.kimi_k3.state import State


def _stepped(**more: object) -> tuple[Case, Binding]:
    case = Case(small(**more))  # type: ignore[arg-type]
    case.step(provider("torch"), case.ids())
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


@pytest.mark.parametrize(
    ("name", "tensor", "column"),
    [
        ("embedded", "embedded", lambda c: 3),
        ("latent query and key", "mla_projected", lambda c: c.gate_start - 1),
        ("decay gate", "kda_projected", lambda c: 4 * c.kda_width + c.gate_rank - 1),
    ],
)
def test_replicated_columns_are_compared(name: str, tensor: str, column: Callable[[Config], int]) -> None:
    case, b = _stepped()
    assert between.ranks(0, b) == []
    place = 1, 1, column(case.config)
    part = getattr(case.scratch, tensor).view(torch.int16)
    part[place] ^= 1
    assert [d.output for d in between.ranks(0, b)] == [name]
    part[place] ^= 1


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


def test_every_slot_of_a_new_request_is_reset() -> None:
    case = Case(small(drafts=1))
    request = case.pool.admit(case.state)
    assert between.admission(0, case.state, request) == []
    for slot in request.slots:
        case.state.recurrent[2][1, slot, 0, 3, 3] = 1.0
        (found,) = between.admission(0, case.state, request)
        assert (found.layer, found.output, found.where) == (2, "recurrent", f"slot {slot}")
        case.state.recurrent[2][1, slot] = 0.0


def test_all_of_a_resumed_request_is_what_was_saved() -> None:
    case, _ = _stepped(drafts=1)
    old, saved = case.requests[0], case.state.clone()

    def found(now: State) -> list[tuple[str, int]]:
        return [(d.output, d.layer) for d in between.restored(0, saved, old, now, old)]

    def page(position: int) -> tuple[int, int, int]:
        return 1, old.pages[1][position // case.config.page], position % case.config.page

    assert found(saved.clone()) == []
    for kind, layer in (("conv", 1), ("recurrent", 0)):
        for slot in old.slots:
            now = saved.clone()
            getattr(now, kind)[layer][1, slot, -1] = 9.0
            assert found(now) == [(kind, layer)]
    for position, seen in ((0, [("kv", 3)]), (old.length - 1, [("kv", 3)]), (old.length, [])):
        now = saved.clone()
        now.kv[3][page(position)][0] ^= 1
        assert found(now) == seen, position


def test_what_the_next_step_reads_must_be_finite_and_rejected_drafts_need_not() -> None:
    case = Case(small(drafts=2))
    case.step(provider("torch"), case.ids(3), [2, 2])
    request = case.requests[0]
    for kind, place, seen in (
        ("recurrent", (0, request.slots[1]), True),
        ("recurrent", (0, request.slots[2]), False),
        ("conv", (0, request.slots[0], 3, 3), True),
        ("conv", (0, request.slots[0], 3, 0), False),
    ):
        state = case.state.clone()
        getattr(state, kind)[1][place] = torch.inf
        assert [d.output for d in between.finite(0, state, case.requests)] == [kind] * seen, (kind, place)


def test_staging_names_the_field() -> None:
    case = Case(small(drafts=1))
    right = batch_of(case.config, case.requests, [[1, 2]] * 2, padded=3)
    told = right.clone()
    told.lengths[1, 2] = 7
    (found,) = between.staging(0, told, right)
    assert (found.output, found.where) == ("lengths", "[1, 2]")
