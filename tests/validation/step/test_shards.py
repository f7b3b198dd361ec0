"""Shards of a step: all of them together give the bits of the whole operations, and an exchange joins what
one rank sends with what the others receive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from validation.step import shards
from validation.step.executor import Executor, provider
from validation.step.walk import Walk, forced
from validation.subjects.kimi_k3.config import scaled
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.weights import random_weights

sys.path.append(str(Path(__file__).parents[1] / "walks"))
from step_case import Case, small


def walked(ranks: int, executor: Executor) -> tuple[str, torch.Tensor]:
    config = scaled(ranks, layers=4, block=2)
    walk = Walk(config, random_weights(config), executor, None, checks=False)
    for _ in range(2):
        walk.admit()
    for ids in forced(config, 2, 3):
        logits = walk.step(ids)
    return walk.state.digest(), logits


@pytest.mark.parametrize("ranks", [2, 3])
def test_shards_together_give_the_bits_of_the_whole_operations(ranks: int) -> None:
    one = provider("torch")
    state, logits = walked(ranks, shards.together(one, ranks))
    plain_state, plain_logits = walked(ranks, one)
    assert state == plain_state
    assert torch.equal(logits, plain_logits)


def test_what_a_rank_sends_lies_where_the_others_receive_it() -> None:
    case, seen = Case(small(ranks=2)), dict[tuple[int, str, int, int], shards.Exchange]()

    def run(operation: Operation, a: Any) -> None:
        for rank in range(2):
            for found in (*shards.before(operation, a, rank, 2), *shards.behind(operation, a, rank, 2)):
                seen[rank, found.name, found.layer, found.part] = found

    case.step(Executor("seen", "stock", run), case.ids())
    names = {name for _, name, _, _ in seen}
    assert names == {"oproj", "front", "latent", "rs", "out"}
    moe = case.config.layers - 1
    assert len(seen) == 2 * (case.config.layers + 5 * moe)
    for (rank, name, layer, part), mine in seen.items():
        for target in range(2):
            theirs = seen[target, name, layer, part]
            sent = mine.sent[target] if mine.sent.dim() == 3 else mine.sent
            received = theirs.received[rank]
            assert sent.data_ptr() == received.data_ptr(), (name, rank, target)
            assert (sent.shape, sent.stride()) == (received.shape, received.stride())


def test_together_nothing_exchanged_holds_a_negative_zero_as_no_mailbox_does() -> None:
    case = Case(small(ranks=2))
    seen: list[torch.Tensor] = []

    def run(operation: Operation, a: Any) -> None:
        if operation.op == "oproj":
            seen.append(a.y.clone())
        if operation.op == "kda_decode":
            a.out.fill_(-0.0)

    case.step(shards.together(Executor("zeros", "stock", run), 2), case.ids())
    assert (seen[0] == 0).all()
    assert not seen[0].signbit().any()


def test_a_rank_alone_runs_its_own_shards_only() -> None:
    case, ran = Case(small(ranks=2)), list[tuple[str, int, Any]]()
    base = Executor("noted", "stock", lambda operation, a: ran.append((operation.op, operation.rank, a)))
    case.step(shards.apart(base, 1, 2, lambda exchange: None), case.ids())
    assert {rank for _, rank, _ in ran} == {-1, 1}
    for op, _, a in ran:
        if op == "moe_front":
            assert a.router.shape[0] == 1
            assert a.logits.shape[1] == case.config.experts // 2
            assert a.logits.storage_offset() == case.config.experts // 2
        if op == "moe_tail":
            assert (a.up.shape[0], a.latent.shape[0], a.shared.shape[0]) == (1, 2, 2)
            assert a.out.shape[1] == a.shared.shape[2] == case.config.hidden // 2
