"""Block quantisation of noisy values: what is known is known, what may flip is allowed for and no more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from validation.numerics.arithmetic import Noise, Rounded
from validation.numerics.blocks import BLOCK, dequantized, quantize, quantized
from validation.numerics.formats import E4M3
from validation.numerics.limits import bernstein
from validation.numerics.profile import Profile
from validation.numerics.value import Value

PROFILE = Profile("test", {"hidden": E4M3})


def block(largest: float, others: float = 0.3) -> Tensor:
    """One block: its maximum first, the rest within ``others`` of it."""
    g = torch.Generator().manual_seed(3)
    x = (torch.rand(BLOCK, generator=g, dtype=torch.float64) * 2 - 1) * others * largest
    x[0] = largest
    return x


def noisy(x: Tensor, deviation: float, rule: str) -> Value:
    ar = Noise(PROFILE)
    return quantize(ar, Value(ar, x, torch.full_like(x, deviation**2)), "hidden", rule)


def test_a_known_value_is_quantised_to_the_bit_in_every_reading() -> None:
    x = block(300.0)
    for ar in (Rounded(PROFILE), Noise(PROFILE)):
        found = quantize(ar, Value(ar, x), "hidden", "floor")
        assert torch.equal(found.mean, dequantized(*quantized(x, "floor")))
        assert found.variance is None


def test_far_from_every_midpoint_nothing_is_left_of_the_noise() -> None:
    x = torch.full((BLOCK,), 256.0, dtype=torch.float64)
    x[0] = 384.0
    found = noisy(x, 1e-6, "floor")
    assert torch.equal(found.mean, x)
    assert found.jump is None
    assert not bool(found.variance.any())


def test_an_element_at_a_midpoint_flips_half_the_time_by_one_spacing() -> None:
    x = torch.full((BLOCK,), 256.0, dtype=torch.float64)
    x[5] = 272.0  # between 256 and 288
    found = noisy(x, 1e-6, "floor")
    assert found.jump.nonzero().flatten().tolist() == [5]
    assert float(found.jump[5]) == 32.0
    assert float(found.jump_variance[5]) == 0.5 * 32.0**2


@pytest.mark.parametrize(("rule", "edge"), [("floor", 256.0), ("floor", 512.0), ("no_saturation", 448.0)])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_maximum_at_a_scale_boundary_moves_its_whole_block(rule: str, edge: float, side: int) -> None:
    deviation = 1e-5
    # A power of two moves no E4M3 element but a saturated and a subnormal one: the others are small.
    x = block(edge + side * 0.5 * deviation, 3e-5)
    found = noisy(x, deviation, rule)
    here = dequantized(*quantized(x, rule))
    beyond = x.clone()
    beyond[0] = edge - side * deviation
    there = dequantized(*quantized(beyond, rule))
    assert not torch.equal(here, there)
    assert torch.equal(found.mean, here)
    moved = (here - there).abs()
    # A sum with weights 1 moves by up to sum |D|; every element that moves carries it.
    assert bool((found.jump[moved > 0] >= moved.sum()).all())
    signed = (here - there).sum() ** 2
    assert 0.3 * float(signed) <= float(found.jump_variance.sum())


def test_sums_over_blocks_stay_within_the_limit_that_the_jumps_give() -> None:
    g = torch.Generator().manual_seed(1)
    deviation = 2e-5
    x = torch.stack([block(512.0 if i == 3 else 390.0, 0.9) for i in range(16)])
    predicted = noisy(x, deviation, "floor")
    weights = torch.randn(16, BLOCK, generator=g, dtype=torch.float64)
    variance = (predicted.variance * weights**2).sum()
    jumps = (predicted.jump_variance * weights**2).sum()
    limit = bernstein(variance, jumps, (predicted.jump * weights.abs()).max(), x=14.0)
    squares = []
    for _ in range(300):
        drawn = x + deviation * torch.randn(x.shape, generator=g, dtype=torch.float64)
        error = ((dequantized(*quantized(drawn, "floor")) - predicted.mean) * weights).sum()
        assert abs(float(error)) <= float(limit)
        squares.append(float(error) ** 2)
    assert sum(squares) / len(squares) <= float(variance + jumps)


def test_noise_beyond_the_spacing_is_spread_over_the_cell() -> None:
    x = torch.full((BLOCK,), 300.0, dtype=torch.float64)
    x[3] = 1e-3  # the noise is far above its spacing, far below that of the others
    found = noisy(x, 0.5, "floor")
    assert float(found.mean[3]) == 1e-3
    assert float(found.variance[3]) > 0.25
    assert float(found.variance[4]) == 0.0
