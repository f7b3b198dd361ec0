"""Mailboxes do not overlap, and a canary as long as a row lies behind each."""

import torch

from validation.stress import memory
from validation.stress.layout import CANARY_WORDS, COLUMNS, STAGE, layout
from validation.stress.script import reaches
from validation.sync.kimi_k3 import subject


def test_regions_and_canaries_tile_the_memory() -> None:
    found = layout(reaches(subject()), 3, 112)
    pieces = [*found.canaries, *((r.start, r.words) for r in found.regions)]
    at = 0
    for start, words in sorted(pieces):
        assert start == at
        at = start + words
    assert at == found.words


def test_a_canary_is_longer_than_a_row_and_words_are_counted_in_32_bits() -> None:
    found = layout(reaches(subject()), 8, 112)
    assert found.row == 112 * COLUMNS <= CANARY_WORDS
    assert found.words < 2**31
    assert found.region(STAGE).words == found.slot


def test_mailboxes_are_armed_with_the_sentinel_of_their_exchange() -> None:
    boxes = layout(reaches(subject()), 2, 1)
    own = torch.zeros(boxes.words, dtype=torch.int32)
    memory.fill(own, boxes)
    for name, word in (("oproj", -(2**31)), ("dcp_lse", -1), ("dcp_q", -1), ("dcp_partial", -(2**31))):
        region = boxes.region(name)
        assert (own[region.start : region.start + region.words] == word).all(), name
