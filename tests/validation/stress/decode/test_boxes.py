"""Uses of the mailboxes over several steps: what a launch clears is what the launch before it left, never
what it is about to use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from validation.step.shards import Exchange
from validation.stress.decode.boxes import NEVER_REARMED, STALE_PARITY, Boxes, lanes_for, number, place
from validation.stress.layout import MOST_PARITIES, ROWS, layout
from validation.stress.script import reaches
from validation.subjects.kimi_k3.config import Config, scaled
from validation.sync.kimi_k3 import subject


class Wires:
    rank = 1


def boxes(config: Config, fault: str = "") -> Boxes:
    return Boxes(config, layout(reaches(subject()), 2, lanes_for(config)), Wires(), fault)


def uses(config: Config, name: str, steps: int) -> Iterator[tuple[int, int, int, int]]:
    """(step, layer, parity used, parity cleared) of an exchange, in order."""
    one = boxes(config)
    for step in range(steps):
        for layer in range(0 if name == "oproj" else 1, config.layers):
            tensor = torch.zeros(2, 3, 8)
            turn = one.turn(Exchange(name, layer, tensor[0], tensor))
            used, cleared = ((at + step * turn.advance) % turn.parities for at in (turn.use, turn.clears))
            yield step, layer, used, cleared


@pytest.mark.parametrize("layers", [4, 5, 6])  # as many MoE layers as 0, 1 and 2 modulo 3
@pytest.mark.parametrize("name", ["latent", "rs"])
def test_a_deferred_re_arm_clears_what_the_launch_before_used(name: str, layers: int) -> None:
    found = list(uses(scaled(2, layers=layers, block=2), name, 5))
    assert len({used for *_, used, _ in found}) == 3
    for (*_, before, _), (*_, used, cleared) in pairwise(found):
        assert cleared == before
        assert used != before


def test_what_is_re_armed_at_once_is_not_used_twice_in_a_row_within_a_step() -> None:
    found = list(uses(scaled(2, layers=5, block=2), "oproj", 2))
    for (step, _, before, _), (next_step, _, used, _) in pairwise(found):
        assert used != before or step != next_step
    assert {used for *_, used, _ in uses(scaled(2), "front", 2)} == {0}


def test_regions_of_a_step_do_not_overlap_and_hold_the_widest_rows() -> None:
    config = scaled(2)
    one, taken = boxes(config), []
    for name, part, columns, dtype in (
        ("oproj", 0, config.kda_width, torch.bfloat16),
        ("front", 0, config.latent // 2, torch.bfloat16),
        ("front", 1, config.experts // 2, torch.float32),
        ("latent", 0, config.latent, torch.bfloat16),
        ("rs", 0, config.hidden // 2, torch.bfloat16),
        ("out", 0, config.hidden // 2, torch.bfloat16),
    ):
        tensor = torch.zeros(2, ROWS, columns, dtype=dtype)
        turn = one.turn(Exchange(name, 2, tensor[0], tensor, part))
        words = ROWS * columns * tensor.element_size() // 4
        last = turn.start + (turn.parities * 2 - 1) * one.layout.slot + words
        region = one.layout.region(name)
        assert region.start <= turn.start
        assert last <= region.start + region.words
        assert words <= one.layout.slot // (2 if name == "front" else 1)
        assert turn.cleared_words <= words
        assert turn.parities <= MOST_PARITIES
        taken.append((name, part, turn.start))
    assert len({start for *_, start in taken}) == 6


def test_the_first_layer_of_a_step_clears_the_rows_of_any_batch() -> None:
    tensor = torch.zeros(2, 3, 8, dtype=torch.bfloat16)
    first, second = (boxes(scaled(2)).turn(Exchange("rs", layer, tensor[0], tensor)) for layer in (1, 2))
    assert (first.cleared_words, second.cleared_words) == (ROWS * 4, 3 * 4)
    assert not first.at_once


def test_a_number_names_its_layer_and_exchange() -> None:
    tensor = torch.zeros(2, 1, 2)
    for name, part in (("oproj", 0), ("front", 0), ("front", 1), ("latent", 0), ("rs", 0), ("out", 0)):
        assert place(number(Exchange(name, 3, tensor[0], tensor, part))) == f"layer 3, {name}"


def test_planted_faults_change_the_victims_uses_alone() -> None:
    tensor = torch.zeros(2, 1, 2)
    exchange = Exchange("oproj", 2, tensor[0], tensor)
    config = scaled(2)
    assert boxes(config, STALE_PARITY).turn(exchange).use == 1
    assert not boxes(config, NEVER_REARMED).turn(exchange).at_once
    Wires.rank = 0
    try:
        assert boxes(config, STALE_PARITY).turn(exchange) == boxes(config).turn(exchange)
        assert boxes(config, NEVER_REARMED).turn(exchange).at_once
    finally:
        Wires.rank = 1
