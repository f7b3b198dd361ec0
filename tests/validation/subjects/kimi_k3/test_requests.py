"""Pools of slots and pages, and what a batch stages of them."""

from __future__ import annotations

import pytest
import torch
from step_case import Case, small

from validation.errors import UserError
from validation.step.executor import vanilla
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.state import differences


def test_nobody_shares_and_nobody_owns_null() -> None:
    case = Case(small(drafts=3), requests=4)
    slots = [slot for r in case.requests for slot in r.slots]
    assert len(set(slots)) == len(slots) == 16
    assert 0 not in slots
    for rank in range(2):
        pages = [page for r in case.requests for page in r.pages[rank]]
        assert len(set(pages)) == len(pages)
        assert 0 not in pages


def test_no_room_is_said() -> None:
    case = Case(small(), requests=1)
    for _ in range(3):
        case.pool.admit(case.state)
    with pytest.raises(UserError, match="no free slot"):
        case.pool.admit(case.state)
    case.requests[0].length = 64
    with pytest.raises(UserError, match="65 tokens does not fit 4 pages of 16"):
        batch_of(case.config, case.requests, [[1]])


def test_a_released_slot_is_poisoned_and_the_next_tenant_starts_from_zero() -> None:
    case = Case(small(), requests=1)
    one = vanilla()
    first, ids = case.step(one, [[5]]), [[7]]
    case.step(one, ids)
    case.pool.release(case.requests[0], case.state)
    assert case.state.recurrent[1][:, case.requests[0].slots].isnan().all()
    tenant = case.pool.admit(case.state)
    assert tenant.slots == case.requests[0].slots
    case.requests = [tenant]
    assert torch.equal(case.step(one, [[5]]), first)


def test_a_sharded_cache_stores_every_key_once() -> None:
    case = Case(small(drafts=3, dcp=True))
    case.requests[0].length = 5
    b = batch_of(case.config, case.requests, [[1, 2, 3, 4]] * 2)
    assert b.lengths[:, 0].tolist() == [5, 4]
    assert ((b.kv_slot >= 0).sum(0) == 1).all()
    assert b.totals.tolist() == [9, 4]


def test_padding_is_null() -> None:
    case = Case(small(drafts=1))
    b = batch_of(case.config, case.requests, [[1, 2]] * 2, padded=4)
    assert (b.rows, b.live) == (8, 2)
    assert b.slots[2:].tolist() == [[0, 0]] * 2
    assert b.accepted[2:].tolist() == [1, 1]
    assert (b.kv_slot[:, 4:] == -1).all()
    with pytest.raises(UserError, match="equally many tokens"):
        batch_of(case.config, case.requests, [[1], [1, 2]])


def test_differences_name_the_buffer_and_the_slot() -> None:
    case = Case(small())
    other = case.state.clone()
    assert differences(case.state, other) == []
    slot = case.requests[0].slots[0]
    other.recurrent[1][1, slot, 0, 0, 0] = -0.0
    ((kind, layer, where),) = differences(case.state, other)
    assert (kind, layer, where.nonzero().tolist()) == ("recurrent", 1, [[1, slot]])
