"""Formats against torch's own casts, code by code, and against a search among their grid points."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from validation.numerics.formats import (
    BF16,
    E2M1,
    E4M3,
    E8M0,
    FORMATS,
    FP32,
    Format,
    exponent,
    points,
    power_of_two,
    shared_exponent,
)

SMALL = (E4M3, E2M1, E8M0)


def doubles(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def bf16_codes() -> Tensor:
    """All 65,536 BF16 values."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


def grid(fmt: Format) -> Tensor:
    """All finite points, ascending, with zero once."""
    if fmt is not BF16:
        return points(fmt)
    values = bf16_codes().double()
    return values[torch.isfinite(values)].unique()


def bits(x: Tensor) -> Tensor:
    return x.double().view(torch.int64)


def nearest(fmt: Format, x: float) -> float:
    """The grid point next to ``x`` by search; of two equally near, the one of even code."""
    all_points = grid(fmt)
    above = int(torch.searchsorted(all_points, x))
    if above == 0:
        return float(all_points[0])
    if above == len(all_points):
        return float(all_points[-1])
    low, high = float(all_points[above - 1]), float(all_points[above])
    if x - low != high - x:
        return low if x - low < high - x else high
    if fmt is E8M0:
        return high  # no significand bit to be even: half way goes up
    steps_from_zero = abs(above - int((all_points == 0).nonzero()))
    return high if steps_from_zero % 2 == 0 else low


def test_every_bf16_value_rounds_to_itself_bit_for_bit() -> None:
    codes = bf16_codes().double()
    numbers = codes[~torch.isnan(codes)]
    assert len(numbers) == 2**16 - 2 * (2**7 - 1)
    assert torch.equal(bits(BF16.round(numbers)), bits(numbers)), "signed zeros and infinities included"


def test_nan_stays_nan() -> None:
    nan = doubles(math.nan)
    assert all(bool(fmt.round(nan).isnan()) for fmt in FORMATS.values())


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_every_bf16_midpoint_and_its_fp32_neighbours_round_as_torch_casts(step: int) -> None:
    all_points = grid(BF16)
    low, high = all_points[:-1], all_points[1:]
    beyond = doubles(BF16.maximum + 2.0**119, -BF16.maximum - 2.0**119)
    midpoints = torch.cat([(low + high) / 2, beyond]).float()
    assert torch.equal(midpoints[:-2].double() * 2, low + high), "midpoints are FP32 numbers"
    towards = torch.full_like(midpoints, step * math.inf if step else 0)
    values = torch.nextafter(midpoints, towards) if step else midpoints
    assert torch.equal(bits(BF16.round(values.double())), bits(values.bfloat16()))


def test_fp32_rounds_doubles_as_torch_casts() -> None:
    g = torch.Generator().manual_seed(1)
    significand = 1 + torch.rand(200_000, generator=g, dtype=torch.float64)
    e = torch.randint(-155, 129, (200_000,), generator=g)
    values = significand * power_of_two(e) * (1 - 2 * torch.randint(0, 2, (200_000,), generator=g))
    ties = (values.float().double() + FP32.spacing(values.float().double()) / 2)[e < 127]
    edge = doubles(FP32.maximum, FP32.maximum + 2.0**102, FP32.maximum + 2.0**103, 2.0**-150, -(2.0**-150))
    for x in (values, ties, edge, -edge):
        assert torch.equal(bits(FP32.round(x)), bits(x.float())), "seed 1"


def test_e4m3_has_the_values_of_all_256_codes() -> None:
    codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).double()
    assert codes.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]
    numbers = codes[~codes.isnan()]
    assert torch.equal(numbers.unique(), points(E4M3))
    assert torch.equal(bits(E4M3.round(numbers)), bits(numbers))


def test_e4m3_midpoints_round_as_torch_casts() -> None:
    all_points = points(E4M3)
    midpoints = (all_points[:-1] + all_points[1:]) / 2
    beside = [torch.nextafter(midpoints.float(), torch.full((252,), s * math.inf)).double() for s in (1, -1)]
    for x in (midpoints, *beside):
        assert torch.equal(bits(E4M3.round(x)), bits(x.float().to(torch.float8_e4m3fn).double()))


@pytest.mark.parametrize(("fmt", "maximum"), [(E4M3, 448.0), (E2M1, 6.0), (E8M0, 2.0**127)])
def test_saturating_formats_never_pass_their_largest_point(fmt: Format, maximum: float) -> None:
    beyond = maximum * doubles(1.0, 1.03, 1.07, 1.2, 1.5, 4.0, 1e30, math.inf)
    assert fmt.round(beyond).tolist() == [maximum] * 8
    if not fmt.unsigned_powers:
        assert fmt.round(-beyond).tolist() == [-maximum] * 8


def test_e2m1_points_and_ties_to_even() -> None:
    positive = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert points(E2M1).tolist() == [-p for p in reversed(positive)] + [0.0, *positive]
    ties = doubles(0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    assert E2M1.round(ties).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert E2M1.round(-ties).tolist() == [0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0]


def test_e8m0_has_the_values_of_all_255_numbers_and_nothing_below() -> None:
    codes = torch.arange(255).to(torch.uint8).view(torch.float8_e8m0fnu).double()
    assert torch.equal(codes, points(E8M0))
    assert torch.equal(E8M0.round(codes), codes)
    assert E8M0.round(doubles(0.0, -3.0, 2.0**-140, 1.49, 1.5, 1.51)).tolist() == [
        2.0**-127,
        2.0**-127,
        2.0**-127,
        1.0,
        2.0,
        2.0,
    ]


@pytest.mark.parametrize("fmt", [BF16, E4M3, E2M1], ids=lambda fmt: fmt.name)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-12, 12))
def test_rounding_finds_the_nearest_point(fmt: Format, x: float, scale: int) -> None:
    for value in (math.ldexp(math.frexp(x)[0], scale), x):
        expected = nearest(fmt, value)
        if fmt is BF16 and abs(value) >= BF16.maximum + 2.0**119:
            expected = math.copysign(math.inf, value)
        assert float(fmt.round(doubles(value))) == expected


@pytest.mark.parametrize("fmt", [BF16, *SMALL], ids=lambda fmt: fmt.name)
def test_neighbours_are_the_next_points_everywhere(fmt: Format) -> None:
    all_points = grid(fmt)
    down, up = fmt.neighbours(all_points)
    assert torch.equal(up[:-1], all_points[1:]), "powers of two, subnormals and zero included"
    assert torch.equal(down[1:], all_points[:-1])
    assert float(up[-1]) > fmt.maximum


@pytest.mark.parametrize("fmt", [BF16, *SMALL], ids=lambda fmt: fmt.name)
def test_bracket_is_what_rounds_to_the_point_and_no_more(fmt: Format) -> None:
    every = grid(fmt)
    if fmt.overflows:
        every = torch.cat([every, doubles(math.inf, -math.inf)])
    low, high = fmt.bracket(every)
    inside_low = torch.nextafter(low, torch.full_like(low, math.inf))
    inside_high = torch.nextafter(high, torch.full_like(high, -math.inf))
    assert torch.equal(fmt.round(inside_low), every)
    assert torch.equal(fmt.round(inside_high), every)
    open_low, open_high = low > -math.inf, high < math.inf
    outside_low = torch.nextafter(low, torch.full_like(low, -math.inf))[open_low]
    outside_high = torch.nextafter(high, torch.full_like(high, math.inf))[open_high]
    assert bool((fmt.round(outside_low) < every[open_low]).all())
    assert bool((fmt.round(outside_high) > every[open_high]).all())
    assert int((~open_low).sum()) == int((~open_high).sum()) == 1, "only the ends of the grid are open"


@pytest.mark.parametrize("fmt", [BF16, FP32, E4M3, E2M1], ids=lambda fmt: fmt.name)
def test_relative_error_of_normal_numbers_is_at_most_the_unit_roundoff(fmt: Format) -> None:
    g = torch.Generator().manual_seed(2)
    x = (1 + torch.rand(10_000, generator=g, dtype=torch.float64)) * 2.0**fmt.emin
    error = ((fmt.round(x) - x) / x).abs()
    assert float(error.max()) <= fmt.unit_roundoff
    assert float(error.max()) > 0.9 * fmt.unit_roundoff / (1 + fmt.unit_roundoff)


def test_exponents_of_zero_subnormals_and_what_is_no_number() -> None:
    x = doubles(0.0, -0.0, 5e-324, 2.0**-1022, -1.999, 2.0, math.inf, -math.inf, math.nan)
    assert exponent(x).tolist() == [-1023, -1023, -1023, -1022, 0, 1, 1024, 1024, 1024]
    e = torch.arange(-1022, 1024)
    assert power_of_two(e).tolist() == [2.0 ** int(i) for i in e]


def amax_bits() -> Tensor:
    """FP32 bit patterns of block maxima: every exponent; significands around 1, 1.5, 1.75 and 2."""
    edges = (0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF)
    return torch.tensor([e << 23 | m for e in range(255) for m in edges], dtype=torch.int32)


@pytest.mark.parametrize(("element", "top", "limit"), [(E4M3, 8, 0x600000), (E2M1, 2, 0x400000)])
@pytest.mark.parametrize("rule", ["floor", "no_saturation"])
def test_shared_exponent_is_the_kernels_rule_on_the_bits(
    rule: str, element: Format, top: int, limit: int
) -> None:
    pattern = amax_bits()
    biased, mantissa = (pattern >> 23).long(), pattern & 0x7FFFFF
    code = biased - top + (mantissa > limit if rule == "no_saturation" else torch.zeros_like(mantissa))
    expected = torch.where(biased == 0, 0, code.clamp(0, 254)) - 127
    found = shared_exponent(pattern.view(torch.float32).double(), rule=rule, element=element)
    assert torch.equal(found, expected)


@given(st.floats(min_value=2.0**-110, max_value=2.0**120))
def test_no_saturation_scales_the_maximum_into_range_and_not_a_power_too_far(amax: float) -> None:
    for element in (E4M3, E2M1):
        scale = 2.0 ** int(shared_exponent(doubles(amax), rule="no_saturation", element=element))
        assert element.maximum / 2 < amax / scale <= element.maximum
        floor = 2.0 ** int(shared_exponent(doubles(amax), rule="floor", element=element))
        assert float(exponent(doubles(amax / floor))) == float(exponent(doubles(element.maximum)))


def test_an_unknown_scale_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scale rule 'ceil'"):
        shared_exponent(doubles(1.0), rule="ceil", element=E4M3)
