"""Sums over ranks are as certain as they can be, and no more certain than that."""

from __future__ import annotations

import pytest
import torch

from validation.contracts.rank_sums import (
    chance,
    judged,
    positive_zeros,
    rank_sum,
    rounded_rarely,
    settled,
)
from validation.numerics.arithmetic import Exact, Noise
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

ORDERS = {"four": "four_groups", "plain": "rank", "any": "any"}
NOISE = Noise(Profile("toy", {"site": BF16}, algebra=ORDERS))
BIG = 3.0 * 2**22  # FP32 keeps multiples of 1 up to there and beyond


def shards(values: list[float], jump: float = 0.0) -> Value:
    """One element on every rank, known but for a rare jump of the first."""
    mean = torch.tensor(values, dtype=torch.float64)[:, None]
    zero = torch.zeros_like(mean)
    jumps = zero.clone()
    jumps[0] = jump
    return Value(NOISE, mean, zero, 1e-6 * jumps**2, jumps)


@pytest.mark.parametrize("site", ORDERS)
def test_neighbouring_exponents_are_added_without_noise_in_any_order(site: str) -> None:
    total = rank_sum(NOISE, shards([1.0, -2.5, 0.375, 4.0]), 0, site)
    assert float(total.mean) == 2.875
    assert total.variance is not None
    assert float(total.variance) == 0


def test_a_declared_order_is_known_to_the_bit_where_fp32_rounds() -> None:
    values = [BIG, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75, -BIG]
    plain = rank_sum(NOISE, shards(values), 0, "plain")
    four = rank_sum(NOISE, shards(values), 0, "four")
    anyhow = rank_sum(NOISE, shards(values), 0, "any")
    # Beside BIG, FP32 keeps whole numbers: 0.75 counts as 1 each time. In groups: BIG + 1, 1.5, 1.5 and
    # 1 - BIG, and the ties BIG + 2.5 and BIG + 3.5 go to the even BIG + 2 and BIG + 4.
    assert float(plain.mean) == 6
    assert float(four.mean) == 4 + 1
    assert float(anyhow.mean) == 4.5
    assert float(plain.variance) == float(four.variance) == 0  # type: ignore[arg-type]
    assert float(anyhow.variance) > 0  # type: ignore[arg-type]


def test_what_a_shard_does_not_know_the_sum_does_not_know() -> None:
    uncertain = shards([1.0, 2.0, 3.0], jump=2.0**-7)
    total = rank_sum(NOISE, uncertain, 0, "plain")
    assert float(total.jump) == 2.0**-7  # type: ignore[arg-type]
    assert float(total.jump_variance) == 1e-6 * 2.0**-14  # type: ignore[arg-type]
    assert uncertain.variance is not None
    uncertain.variance[1] = 1e-6
    assert float(rank_sum(NOISE, uncertain, 0, "plain").variance) >= 1e-6  # type: ignore[arg-type]


def test_without_noise_it_is_the_plain_sum() -> None:
    exact = Exact()
    x = Value(exact, torch.tensor([[BIG], [0.3], [-BIG]], dtype=torch.float64))
    assert torch.equal(rank_sum(exact, x, 0, "four").mean, x.mean.sum(0))


def test_a_known_tie_goes_to_the_even_neighbour_for_certain() -> None:
    tie = torch.tensor([1 + 2.0**-8, 1 + 2.0**-8], dtype=torch.float64)
    value = Value(NOISE, tie, torch.tensor([0.0, 1e-12], dtype=torch.float64))
    rounded = NOISE.round(settled(NOISE, value, "site"), "site")
    assert rounded.mean.tolist() == [1.0, 1.0]
    assert rounded.jump is not None
    assert (rounded.jump > 0).tolist() == [False, True], "only the noisy one may land on the other side"


def test_minus_zero_becomes_zero_and_nothing_else_changes() -> None:
    x = Value(NOISE, torch.tensor([-0.0, 0.0, -2.0, float("nan")], dtype=torch.float64))
    found = positive_zeros(x).mean
    assert torch.signbit(found)[:3].tolist() == [False, False, True]
    assert float(found[2]) == -2
    assert bool(found[3].isnan())


def test_a_rare_jump_beside_a_tie_stays_rare() -> None:
    total = rank_sum(NOISE, shards([1.0, 2.0**-8], jump=2.0**-7), 0, "plain")
    rarely = chance(shards([1.0, 2.0**-8], jump=2.0**-7), 0)
    assert float(rarely) == 1e-6
    plain, rare = NOISE.round(total, "site"), rounded_rarely(NOISE, total, "site", rarely)
    assert plain.mean.tolist() == rare.mean.tolist() == [1.0]
    assert odds(plain) > 0.1
    assert 0 < odds(rare) <= float(rarely)


def odds(x: Value) -> float:
    """Probability of a jump that the value's variance of jumps stands for."""
    assert x.jump is not None
    assert x.jump_variance is not None
    return float(x.jump_variance / x.jump**2)


def test_what_is_judged_is_the_grid_point_where_only_jumps_are_uncertain() -> None:
    mean = torch.tensor([1 + 2.0**-9, 1 + 2.0**-9], dtype=torch.float64)
    x = Value(NOISE, mean, torch.tensor([0.0, 1e-9], dtype=torch.float64))
    rounded = rounded_rarely(NOISE, x, "site", torch.zeros(2, dtype=torch.float64))
    assert judged(NOISE, x, rounded, "site").mean.tolist() == [1.0, 1 + 2.0**-9]
