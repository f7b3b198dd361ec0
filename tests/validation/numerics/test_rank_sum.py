"""Sums over ranks: bit for bit in a declared order, with noise in any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from validation.numerics.arithmetic import Exact, Noise, Rounded
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile

PROFILE = Profile("p", {"sum": BF16})
DRAW = torch.Generator().manual_seed(1)
# Sizes 2**14 apart: sums of BF16 shards of one size are often exact in FP32, in any order.
SIZES = torch.exp2(torch.randint(0, 15, (8, 5000), generator=DRAW).float())
SHARDS = (torch.randn(8, 5000, generator=DRAW) * SIZES).bfloat16()


def chain(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total


def by_hand(order: str) -> torch.Tensor:
    parts = list(SHARDS)
    if order == "rank":
        return chain(parts)
    if order == "four_groups":
        return chain([chain(parts[i : i + 2]) for i in range(0, 8, 2)])
    pairs = [chain(parts[i : i + 2]) for i in range(0, 8, 2)]
    return chain([chain(pairs[:2]), chain(pairs[2:])])


@pytest.mark.parametrize("order", ["rank", "four_groups", "pairwise"])
def test_known_shards_in_a_declared_order_are_known_to_the_bit(order: str) -> None:
    profile = replace(PROFILE, algebra={"sum": order})
    for ar in (Rounded(profile), Noise(profile)):
        total = ar.rank_sum(ar.load(SHARDS), 0, "sum")
        assert total.variance is None
        assert torch.equal(total.mean, by_hand(order).double())


def test_the_orders_differ_on_these_shards() -> None:
    sums = [by_hand(order) for order in ("rank", "four_groups", "pairwise")]
    assert not torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[1], sums[2])


def test_without_an_order_the_sum_carries_noise_that_covers_every_order() -> None:
    ar = Noise(PROFILE)
    total = ar.rank_sum(ar.load(SHARDS), 0, "sum")
    assert total.variance is not None
    for order in ("rank", "four_groups", "pairwise"):
        error = (by_hand(order).double() - total.mean) / total.variance.sqrt()
        # Sums of eight BF16 shards are mostly exact in FP32, which the model does not count on.
        assert 0 < float(error.square().mean()) < 1
        assert float(error.abs().max()) < 6
    assert torch.equal(Exact().rank_sum(Exact().load(SHARDS), 0, "sum").mean, SHARDS.double().sum(0))


def test_noisy_shards_stay_noisy_in_a_declared_order() -> None:
    ar = Noise(replace(PROFILE, algebra={"sum": "rank"}))
    total = ar.rank_sum(ar.load(SHARDS) * 1.1, 0, "sum")
    assert total.variance is not None
    assert bool((total.variance > 0).all())
