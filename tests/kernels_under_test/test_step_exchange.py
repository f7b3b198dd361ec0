"""One exchange of a step, as one of two ranks makes it: what the other sent lies in the mailbox already, or
does not come."""

from __future__ import annotations

import pytest
import torch

from kernels_under_test import interpreter

interpreter.prepare()

from kernels_under_test.exchanges.runner import prepare  # noqa: E402
from kernels_under_test.exchanges.step import Turn, Wires, exchange  # noqa: E402

SLOT, PARITIES, START = 256, 3, 64
SENTINEL = -(2**31)
QUIET = [0, 0, 0, 1, 0, 0, 1, 0]
TORN = [7, 0, 0, 1, 0, 1, 1, 0]


class Two:
    """Both ranks' mailboxes; rank 1 is the one that runs, and rank 0 is played."""

    def __init__(self, skew: list[int] = QUIET, patience: float = 60.0) -> None:
        words = START + PARITIES * 2 * SLOT
        self.boxes = [torch.full((words,), SENTINEL, dtype=torch.int32) for _ in range(2)]
        self.record, self.clock = torch.zeros(16, dtype=torch.int32), torch.tensor([4, 9], dtype=torch.int32)
        prepare(patience, lambda: False, skew, [])
        peers = torch.tensor([box.data_ptr() for box in self.boxes])
        table = torch.tensor(skew, dtype=torch.int32)
        self.wires = Wires(peers, self.record, self.clock, table, SLOT, 1, 2, 1_000_000)

    def slot(self, owner: int, parity: int, source: int) -> torch.Tensor:
        at = START + (parity * 2 + source) * SLOT
        return self.boxes[owner][at : at + SLOT]

    def sent(self, parity: int, x: torch.Tensor) -> None:
        """Rank 0 has published x to rank 1."""
        words = x.contiguous().view(torch.int32).flatten()
        self.slot(1, parity, 0)[: len(words)] = words


def turn(**more: int) -> Turn:
    return Turn(**{"act": 5, "start": START, "use": 0, "clears": 0, "advance": 0, "parities": 1} | more)


@pytest.mark.parametrize("skew", [QUIET, TORN])
def test_rows_go_to_both_and_come_from_both(skew: list[int]) -> None:
    two, draw = Two(skew), torch.Generator().manual_seed(0)
    theirs = torch.randn(3, 8, generator=draw).bfloat16()
    held = torch.randn(2, 4, 24, generator=draw).bfloat16()
    out = held[:, :3, 8:16]
    out[1] = torch.randn(3, 8, generator=draw).bfloat16()
    expected, around = torch.stack([theirs, out[1]]), held.clone()
    two.sent(0, theirs)
    exchange(two.wires, turn(), out[1], out)
    assert torch.equal(out, expected)
    around[:, :3, 8:16] = expected
    assert torch.equal(held, around), "nothing else was written"
    published = two.slot(0, 0, 1)[:12].view(torch.bfloat16).view(3, 8)
    assert torch.equal(published, expected[1])
    assert two.slot(1, 0, 0).eq(SENTINEL).all(), "re-armed behind the poll"
    assert two.slot(1, 0, 1).eq(SENTINEL).all()
    assert two.record[9] == 1
    assert two.record[1] == 0


def test_each_rank_gets_its_own_part() -> None:
    two = Two()
    x = torch.arange(2 * 3 * 4).view(2, 3, 4).bfloat16()
    out = torch.zeros(2, 3, 4, dtype=torch.bfloat16)
    two.sent(0, -x[0] - 1)
    exchange(two.wires, turn(), x, out)
    assert torch.equal(two.slot(0, 0, 1)[:6].view(torch.bfloat16).view(3, 4), x[0])
    assert torch.equal(out, torch.stack([-x[0] - 1, x[1]]))


def test_no_negative_zero_is_sent_and_fp32_keeps_its_halves() -> None:
    two = Two()
    pairs = torch.tensor([[0.0, -0.0, -0.0, 1.0]]).bfloat16()
    two.sent(0, torch.ones(1, 4).bfloat16())
    exchange(two.wires, turn(), pairs, torch.zeros(2, 1, 4).bfloat16())
    assert two.slot(0, 0, 1)[:2].tolist() == [0, 0x3F800000]
    whole = torch.tensor([[-0.0, 1.0]])
    whole.view(torch.int32)[0, 1] = 0x3F808000  # whose low half alone would be -0
    two.sent(0, torch.ones(1, 2))
    exchange(two.wires, turn(), whole, torch.zeros(2, 1, 2))
    assert two.slot(0, 0, 1)[:2].tolist() == [0, 0x3F808000]


def test_parities_are_counted_in_memory_and_the_one_before_is_cleared() -> None:
    two, one = Two(), torch.ones(1, 4).bfloat16()
    out = torch.zeros(2, 1, 4).bfloat16()
    # After four steps of seven uses: parity (1 + 28) % 3 is used, (0 + 28) % 3 is cleared.
    for source in range(2):
        two.slot(1, 1, source)[:] = 7
    two.sent(2, 2 * one)
    use = turn(use=1, clears=0, advance=7, parities=3, cleared_words=100, at_once=False)
    exchange(two.wires, use, one, out)
    assert torch.equal(out, torch.stack([2 * one, one]))
    for source in range(2):
        assert two.slot(1, 1, source)[:100].eq(SENTINEL).all()
        assert two.slot(1, 1, source)[100:].eq(7).all()
        assert two.slot(1, 2, source)[:2].ne(SENTINEL).all(), "left to the next launch"


def test_a_word_that_does_not_come_is_recorded_and_nothing_waits_after_that() -> None:
    two = Two(patience=0.5)
    one, out = torch.ones(2, 4).bfloat16(), torch.zeros(2, 2, 4).bfloat16()
    two.sent(0, one)
    two.slot(1, 0, 0)[3] = SENTINEL
    exchange(two.wires, turn(act=8), one, out)
    kind, step, act, source, parity, word = two.record[1:7].tolist()
    assert (kind, step, act, source, parity, word) == (2, 9, 8, 0, 0, 3)
    looks = [0]

    def looked() -> bool:
        looks[0] += 1
        return True

    prepare(60.0, looked, QUIET, [])
    exchange(two.wires, turn(act=9), one, out)
    assert looks == [0]
    assert two.record[3] == 8, "the first one stays"


def test_what_does_not_fit_a_slot_is_refused() -> None:
    x = torch.zeros(9, 64).bfloat16()
    with pytest.raises(ValueError, match="9 rows of 32 words do not fit a slot of 256"):
        exchange(Two().wires, turn(), x, torch.zeros(2, 9, 64).bfloat16())
