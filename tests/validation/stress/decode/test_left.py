"""Digests of what a step leaves: any changed word shows, and the tensor that holds it is named."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from validation.step import shards
from validation.step.executor import provider
from validation.stress.decode.left import Left, combined, digest, held, odd_weights

sys.path.append(str(Path(__file__).parents[2] / "walks"))
from step_case import Case, small


def test_one_changed_bit_and_two_words_that_trade_places_show() -> None:
    x = torch.arange(1000, dtype=torch.int32)
    first = digest(x)
    assert len(first) == 16
    assert digest(x.clone()) == first
    for bit in (0, 31):
        y = x.clone()
        y[700] ^= -(2**31) if bit else 1
        assert digest(y) != first
    y = x.clone()
    y[[3, 4]] = x[[4, 3]]
    assert digest(y) != first
    odd = torch.arange(7, dtype=torch.uint8)
    assert digest(odd) != digest(odd.flip(0))


def test_a_digest_does_not_depend_on_how_much_is_taken_at_a_time(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from validation.stress.decode import left

    x = torch.arange(1000, dtype=torch.int32)
    first = digest(x)
    monkeypatch.setattr(left, "AT_A_TIME", 17)
    assert digest(x) == first
    assert (odd_weights(0, 100, x.device)[40:] == odd_weights(40, 60, x.device)).all()


class Logged:
    """A small model whose two ranks are played together, and its log."""

    def __init__(self) -> None:
        self.case = Case(small(ranks=2))
        self.clock = torch.zeros(2, dtype=torch.int32)
        self.left = Left(self.case.config, [0, 1], self.clock, 4)
        self.executor = self.left.watched(shards.together(provider("torch"), 2))

    def step(self, number: int) -> torch.Tensor:
        """Digests of the step. [rank, tensor]"""
        self.clock[1] = number
        self.case.step(self.executor, self.case.ids())
        return self.left.take(number, 1)[0]


def test_a_flipped_bit_of_state_names_its_tensor_and_rank_and_spreads() -> None:
    right, wrong = Logged(), Logged()
    for number in range(5):  # more than the log holds
        assert torch.equal(right.step(number), wrong.step(number))
    slot = wrong.case.requests[1].slots[0]
    wrong.case.state.recurrent[1][1, slot].view(torch.int32)[:] ^= 1 << 22
    one, other = right.step(5), wrong.step(5)
    names = [name for name, same in zip(right.left.names, one[1] == other[1], strict=True) if not same]
    assert names[0] == "state of layer 1"
    assert one[0][right.left.names.index(names[0])] == other[0][right.left.names.index(names[0])], "rank 0's"
    assert {"prefix", "logits"} <= set(names), "all ranks feel it through the residual stream"


def test_what_ranks_hold_alike_is_alike_and_state_is_not() -> None:
    one = Logged()
    found = one.step(0)
    alike = one.left.alike()
    assert torch.equal(found[0][alike], found[1][alike])
    assert (found[0][~alike] != found[1][~alike]).all()
    named = {name for name, same in zip(one.left.names, alike.tolist(), strict=True) if same}
    assert named == {"keys of layer 3", "keys of layer 4", "prefix", "blocks", "hidden", "logits"}
    lines = combined(found[:, alike])
    assert lines[0] == lines[1]
    assert combined(found)[0] != combined(found)[1]


def test_a_checkpoint_sees_slots_of_nobody() -> None:
    one = Logged()
    one.step(0)
    before = held(one.case.state, 1)
    one.case.state.kv[3][1, 0, 0, 0] ^= 1
    after = held(one.case.state, 1)
    assert [name for name in before if before[name] != after[name]] == ["keys of layer 3, all slots"]
    assert held(one.case.state, 0) == held(one.case.state, 0)
