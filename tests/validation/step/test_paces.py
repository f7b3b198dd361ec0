"""How long runs go on each device, and which walks may be chosen."""

from __future__ import annotations

import pytest

from validation.errors import UserError
from validation.step.items import Choice, Item, chosen
from validation.step.paces import pace_of
from validation.subjects.kimi_k3.config import real_widths
from validation.subjects.kimi_k3.steps import prepared


def _long(steps: int) -> Item:
    return Item("long", "long", steps=steps)


def test_batches_change_and_are_padded_on_a_gpu() -> None:
    pace = pace_of(_long(10_000), "cuda", replays=True)
    padded = {(count, pace.padded(count)) for count in pace.counts}
    assert {(3, 4), (5, 8), (7, 8), (11, 16)} <= padded
    assert pace.lasting
    assert pace.windows == 400
    assert pace.compared == 1


def test_a_hundred_thousand_steps_look_at_a_hundred_windows_and_ten_checkpoints() -> None:
    pace = pace_of(_long(100_000), "cuda", replays=True)
    assert sum(number % pace.compared == 0 for number in range(pace.windows)) == 100
    starts = range(0, pace.steps, pace.window)
    assert [step for step in starts if pace.looked_at(step)] == list(range(0, 100_000, 10_000))


def test_an_interpreter_walks_few_steps_padded_too() -> None:
    (item,) = chosen("triton", Choice(only=("long",)))
    pace = pace_of(item, "cpu", replays=True)
    assert item.steps == pace.steps == 4
    assert pace.padded(3) == 4


def test_real_widths_are_a_long_walk_on_a_gpu() -> None:
    (item,) = chosen("triton", Choice(device="cuda", widths="real", layers=4))
    config = item.config()
    assert (config.hidden, config.ranks, config.local_heads, config.live_moe) == (7168, 8, 12, 384)
    assert config.mla_layers == (3,)
    assert (config.drafts, config.page) == (1, real_widths(4).page)
    assert real_widths(3).mla_layers == (2,)
    with pytest.raises(UserError, match="add --device cuda"):
        chosen("triton", Choice(widths="real"))


@pytest.mark.parametrize("steps", [10_000, 100_000])
def test_every_batch_of_a_long_run_is_a_prepared_one(steps: int) -> None:
    """Plain and verify steps of every size, at the scaled-down and at the real widths."""
    (scaled,) = chosen("triton", Choice(only=("long",), device="cuda", steps=steps))
    (real,) = chosen("triton", Choice(device="cuda", widths="real"))
    for item in (scaled, real):
        pace, q = pace_of(item, "cuda", replays=True), item.config().tokens
        assert q > 1
        for size in {pace.padded(count) for count in pace.counts}:
            assert {size, size * q} <= set(prepared((), q))


def test_layers_apply_to_every_walk() -> None:
    found = chosen("torch", Choice(layers=6))
    assert {item.layers for item in found} == {6}
    assert all(item.config().layers == 6 for item in found)
