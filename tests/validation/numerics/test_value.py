"""Values keep their parts together: views, selections and joins move mean, variance and jumps alike.

And they know how many bits they need: products that FP32 holds exactly carry no noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from validation.numerics.arithmetic import Exact, Noise
from validation.numerics.profile import Profile
from validation.numerics.value import Value, accumulate, largest

AR = Noise(Profile("plain", {}))
SHAPE = (2, 3, 4)


def tagged(offset: float = 0.0, shape: tuple[int, ...] = SHAPE, jumps: bool = True) -> Value:
    """A value whose parts say the same place: mean i, variance i / 100, jumps i / 1,000 and i / 10,000."""
    mean = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape) + offset
    return Value(AR, mean, mean / 100, *((mean / 1e3, mean / 1e4) if jumps else ()))


def aligned(value: Value, shape: tuple[int, ...]) -> bool:
    """Whether all four parts have the shape, and say the same place everywhere."""
    parts = [value.mean, *value.parts()]
    if any(part is None or tuple(part.shape) != shape for part in parts):
        return False
    factors = (1, 1e2, 1e3, 1e4)
    return all(float((f * p - parts[0]).abs().max()) < 1e-9 for f, p in zip(factors, parts, strict=True))


VIEWS: dict[str, Callable[[Value], Value]] = {
    "one index": lambda v: v[1],
    "a slice": lambda v: v[:, 1:],
    "an ellipsis": lambda v: v[..., 2],
    "a tensor of indices": lambda v: v[:, torch.tensor([2, 0])],
    "a mask": lambda v: v[v.mean > 5],
    "reshape": lambda v: v.reshape(4, -1),
    "unsqueeze": lambda v: v.unsqueeze(1),
    "several": lambda v: v.reshape(6, 4)[::2].unsqueeze(-1)[1:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_move_all_parts_alike(name: str) -> None:
    expected = VIEWS[name](Value(AR, tagged().mean)).mean
    found = VIEWS[name](tagged())
    assert torch.equal(found.mean, expected)
    assert aligned(found, tuple(expected.shape))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_joins_move_all_parts_alike(dim: int) -> None:
    a, b = tagged(), tagged(100)
    assert aligned(AR.stack([a, b], dim), tuple(torch.stack([a.mean, b.mean], dim).shape))
    assert aligned(AR.cat([a, b], dim), tuple(torch.cat([a.mean, b.mean], dim).shape))


def test_joining_with_an_exact_value_gives_it_zeros() -> None:
    exact = Value(AR, tagged().mean, bits=8)
    joined = AR.cat([exact, tagged()], 0)
    assert aligned(joined[2:], SHAPE)
    assert all(float(part[:2].abs().max()) == 0 for part in joined.parts())
    assert joined.bits == 24
    assert AR.stack([exact, exact], 0).parts() == (None, None, None)
    assert AR.stack([exact, exact], 0).bits == 8


def test_selection_takes_each_part_from_the_chosen_side() -> None:
    a, b = tagged(), tagged(100)
    mask = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)) < 0.5
    found = AR.where(mask, a, b)
    assert torch.equal(found.mean, torch.where(mask, a.mean, b.mean))
    assert aligned(found, SHAPE)
    few, many = Value(AR, a.mean, bits=8), Value(AR, b.mean, bits=16)
    assert AR.where(mask, few, many).bits == AR.where(mask, many, few).bits == 16


def test_selection_broadcasts_and_lets_no_unselected_nan_through() -> None:
    a = tagged(1)
    broken = Value(AR, a.mean * math.nan, a.mean * math.nan, a.mean * math.nan, a.mean * math.nan)
    alive = torch.tensor([True, False])[:, None, None]
    found = AR.where(alive, a, broken)[0]
    assert aligned(found, SHAPE[1:])
    zeroed = AR.where(~alive, broken, 0.0)
    assert bool(zeroed.mean[0].isnan().any()) is False
    assert all(float(part[0].abs().max()) == 0 for part in zeroed.parts())
    assert zeroed.mean[1].isnan().all(), "a selected NaN stays"


OPERANDS = st.sampled_from([(2, 3, 4), (3, 4), (4,), (1, 4), (3, 1), (2, 1, 1), ()])


@pytest.mark.parametrize("operation", [AR.add, AR.multiply, AR.divide])
@given(OPERANDS, OPERANDS, st.booleans(), st.booleans())
def test_broadcasting_gives_every_part_the_shape_of_the_result(
    operation: Callable[[Value, Value], Value],
    a: tuple[int, ...],
    b: tuple[int, ...],
    noise_in_a: bool,
    noise_in_b: bool,
) -> None:
    try:
        shape = torch.broadcast_shapes(a, b)
    except RuntimeError:
        return
    x, y = tagged(1, a, noise_in_a), tagged(2, b, noise_in_b)
    found = operation(x, y)
    assert [tuple(p.shape) for p in (found.mean, *found.parts()) if p is not None] == [shape] * (
        4 if noise_in_a or noise_in_b else 2
    )


def test_negation_keeps_the_noise() -> None:
    found = -tagged()
    assert torch.equal(found.mean, -tagged().mean)
    assert aligned(-found, SHAPE)


def test_sums_add_variances_and_take_the_largest_jump() -> None:
    found = AR.sum(tagged(), 1)
    mean = tagged().mean
    assert float((found.jump_variance - mean.sum(1) / 1e3).abs().max()) < 1e-12
    assert torch.equal(found.jump, mean.amax(1) / 1e4)
    assert float((found.variance - mean.sum(1) / 100).abs().max()) < 1e-9
    assert AR.sum(tagged(), 1, keepdim=True).jump.shape == (2, 1, 4)


def test_two_terms_of_one_kind_or_none() -> None:
    one = torch.ones(2)
    assert accumulate(None, None) is None
    assert largest(None, None) is None
    assert accumulate(None, one, one).tolist() == [2.0, 2.0]
    assert largest(one, 3 * torch.ones(1), None).tolist() == [3.0, 3.0]


# -- bits ------------------------------------------------------------------------------------------


def stored(dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(5_000, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("factors", [2, 3])
def test_products_of_two_and_three_bf16_numbers_are_exact_in_fp32(factors: int) -> None:
    tensors = [stored(torch.bfloat16, seed) for seed in range(factors)]
    single, value = tensors[0].float(), AR.load(tensors[0])
    for tensor in tensors[1:]:
        single, value = single * tensor.float(), value * tensor
    assert value.variance is None
    assert torch.equal(single.double(), value.mean)
    assert value.bits == 8 * factors


def test_products_beyond_24_bits_are_rounded() -> None:
    bf16, fp32 = AR.load(stored(torch.bfloat16, 1)), AR.load(stored(torch.float32, 2))
    assert (bf16 * fp32).variance is not None
    assert (bf16 * bf16 * bf16 * bf16).variance is not None
    assert AR.square(fp32).variance is not None
    assert (fp32 * 0.1).variance is not None


def test_squares_of_bf16_and_powers_of_two_are_exact() -> None:
    bf16, fp32 = AR.load(stored(torch.bfloat16, 1)), AR.load(stored(torch.float32, 2))
    assert AR.square(bf16).variance is None
    for factor in (0.25, -2.0, 1.0, 0.0):
        product = fp32 * factor
        assert product.variance is None
        assert product.bits == 24
    assert (bf16 * 3.0).bits == 10


def test_scaling_by_a_power_of_two_keeps_noise_in_proportion() -> None:
    found = tagged() * -0.5
    assert torch.equal(found.variance, tagged().variance / 4)
    assert torch.equal(found.jump, tagged().jump / 2)
    assert torch.equal(found.jump_variance, tagged().jump_variance / 4)


def test_operators_reach_the_arithmetic_with_numbers_on_either_side() -> None:
    ar = Exact()
    x = ar.load(torch.tensor([2.0]))
    results = (x + 1.0, 1.0 + x, x - x, 3.0 * x, x * 3.0, x / x, -x)
    assert [float(r.mean) for r in results] == [3.0, 3.0, 0.0, 6.0, 6.0, 1.0, -2.0]
    assert x.shape == (1,)
