"""Tail bounds against exact probabilities: never below them, and exact where they claim to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from validation.numerics.limits import bennett, bernstein, crossing, log_odds

SIZES = st.floats(1e-6, 1e6)
LEVELS = st.floats(0.5, 60.0)


def one(number: float) -> Tensor:
    return torch.tensor([number], dtype=torch.float64)


def jumps(rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Net number of unit jumps up and down, Poisson with ``rate`` together, and its probabilities."""
    most = int(12 * math.sqrt(rate) + 40)
    count = np.arange(-most, most + 1)
    return count, stats.skellam.pmf(count, rate / 2, rate / 2)


def tail(distance: float, sd: float, size: float, rate: float) -> float:
    """P(noise > distance), exactly: normal of deviation ``sd`` plus jumps of ``size``."""
    count, probability = jumps(rate)
    return float((probability * stats.norm.sf((distance - count * size) / sd)).sum())


def test_log_odds_spend_the_share_over_the_tests() -> None:
    assert math.isclose(2 * math.exp(-log_odds(1e-3, 1)), 1e-3)
    assert math.isclose(500 * 2 * math.exp(-log_odds(1e-3, 500)), 1e-3)
    assert log_odds(1e-3, 0) == log_odds(1e-3, 1), "no test is no reason for a stricter level"


# -- Bennett ---------------------------------------------------------------------------------------


def bennett_exponent(t: float, variance: float, jump: float) -> float:
    """(V / J**2) h(t J / V), of which bennett's t is the inverse."""
    u = t * jump / variance
    h = (1 + u) * math.log1p(u) - u if u > 1e-4 else u * u / 2 - u**3 / 6
    return variance / jump**2 * h


@given(SIZES, SIZES, LEVELS)
def test_bennett_solves_its_equation(variance: float, jump: float, x: float) -> None:
    t = float(bennett(one(variance), one(jump), x))
    rate = variance / jump**2
    assert bennett_exponent(t, variance, jump) >= x * (1 - 1e-6), "never too small"
    if 1e-20 < rate < 1e10 * x:  # beyond, the step of float64 at 1 limits what can be solved for
        assert bennett_exponent(t, variance, jump) <= x * (1 + 1e-6)


@given(SIZES, SIZES, LEVELS, st.floats(1.0, 100.0))
def test_bennett_grows_with_variance_jump_and_level(v: float, j: float, x: float, factor: float) -> None:
    t = float(bennett(one(v), one(j), x)) * (1 - 1e-6)
    assert float(bennett(one(factor * v), one(j), x)) >= t
    assert float(bennett(one(v), one(factor * j), x)) >= t
    assert float(bennett(one(v), one(j), factor * x)) >= t


def test_bennett_is_zero_without_jumps_and_leaves_others_alone() -> None:
    t = bennett(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.0, 1.0]).double(), 5.0)
    assert t[0] == 0
    assert t[1] == bennett(one(1.0), one(1.0), 5.0)[0]
    assert bennett(one(0.0), one(0.0), 5.0).tolist() == [0.0]


# -- Bernstein -------------------------------------------------------------------------------------


@given(SIZES, LEVELS)
def test_bernstein_without_jumps_is_the_sub_gaussian_limit(variance: float, x: float) -> None:
    expected = math.sqrt(2 * x * variance)
    assert float(bernstein(one(variance), None, None, x)) == pytest.approx(expected, rel=1e-12)
    assert float(bernstein(one(variance), one(0.0), one(0.0), x)) == pytest.approx(expected, rel=1e-12)


@given(SIZES, SIZES, SIZES, LEVELS, st.floats(1.0, 100.0))
def test_bernstein_grows_with_every_argument(v: float, jv: float, j: float, x: float, factor: float) -> None:
    limit = float(bernstein(one(v), one(jv), one(j), x)) * (1 - 1e-6)
    assert float(bernstein(one(factor * v), one(jv), one(j), x)) >= limit
    assert float(bernstein(one(v), one(factor * jv), one(j), x)) >= limit
    assert float(bernstein(one(v), one(jv), one(factor * j), x)) >= limit
    assert float(bernstein(one(v), one(jv), one(j), factor * x)) >= limit
    assert limit >= math.sqrt(2 * x * v) * (1 - 1e-5), "jumps never make it smaller"


RATES = (1e-9, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3)


@pytest.mark.parametrize("x", [2.0, 7.6, 20.0, 35.0])
@pytest.mark.parametrize("size", [0.02, 1.0, 30.0])
@pytest.mark.parametrize("rate", RATES)
def test_bernstein_keeps_its_level_exactly(rate: float, size: float, x: float) -> None:
    limit = float(bernstein(one(1.0), one(rate * size**2), one(size), x))
    assert 2 * tail(limit, 1.0, size, rate) <= 2 * math.exp(-x)


def test_bernstein_is_not_idle() -> None:
    assert float(bernstein(one(1.0), None, None, 7.6)) < 1.25 * stats.norm.isf(math.exp(-7.6))
    rare = float(bernstein(one(1e-6), one(1e-4), one(1.0), 7.6))
    assert 1.0 < rare < 2.0, "at this level one jump of probability 1e-4 happens, two do not"
    never = float(bernstein(one(1e-6), one(1e-12), one(1.0), 7.6))
    assert never < 0.5, "and one of probability 1e-12 does not"


def drawn(rate: float, size: float, count: int, seed: int) -> Tensor:
    """Sums of 48 uniform errors (variance 1 together) and rare jumps of different sizes, at most ``size``."""
    g = torch.Generator().manual_seed(seed)
    smooth = (torch.rand(count, 48, generator=g, dtype=torch.float64) - 0.5).sum(1) / 2
    sizes = size * torch.linspace(0.2, 1, 5, dtype=torch.float64)
    hit = torch.rand(count, 5, generator=g) < rate
    sign = 2.0 * (torch.rand(count, 5, generator=g) < 0.5) - 1
    return smooth + (hit * sign * sizes).sum(1)


@pytest.mark.parametrize("size", [0.5, 4.0, 20.0])
@pytest.mark.parametrize("rate", [1e-4, 1e-2, 0.2])
def test_bernstein_is_never_below_a_monte_carlo_quantile(rate: float, size: float) -> None:
    count, level, seed = 100_000, 1e-3, 11
    errors = drawn(rate, size, count, seed).abs()
    jump_variance = rate * size**2 * float((torch.linspace(0.2, 1, 5) ** 2).sum())
    limit = float(bernstein(one(1.0), one(jump_variance), one(size), math.log(2 / level)))
    # Expected 100 at most; five standard deviations more.
    assert int((errors > limit).sum()) <= level * count + 5 * math.sqrt(level * count), f"seed {seed}"
    assert int((errors > limit / 4).sum()) > 0.3 * level * count, "the draws do reach that far"


# -- crossing --------------------------------------------------------------------------------------


@given(st.floats(0.0, 30.0), st.floats(1e-3, 1e3))
def test_crossing_without_jumps_is_the_normal_tail(distance: float, sd: float) -> None:
    exact = stats.norm.sf(distance)
    assert float(crossing(one(distance * sd), one(sd * sd), None, None)) == pytest.approx(exact, rel=1e-9)
    found = float(crossing(one(distance * sd), one(sd * sd), one(0.0), one(0.0)))
    assert found == pytest.approx(exact, rel=1e-9)


def test_crossing_of_an_exact_value_happens_on_the_boundary_only() -> None:
    at = torch.tensor([0.0, 1e-300, 1.0, math.inf], dtype=torch.float64)
    assert crossing(at, torch.zeros_like(at), None, None).tolist() == [0.5, 0.0, 0.0, 0.0]


def test_nothing_crosses_an_infinite_distance() -> None:
    parts = [one(p) for p in (1.0, 0.5, 2.0)]
    assert float(crossing(one(math.inf), *parts)) == 0.0
    assert float(crossing(one(math.inf), one(0.0), parts[1], parts[2])) == 0.0


DISTANCES = (0.01, 0.3, 0.9, 1.0, 1.5, 3.0, 5.0, 6.5, 9.0, 20.0, 40.0)


@pytest.mark.parametrize("size", [0.01, 0.1, 0.5, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("rate", [1e-12, *RATES])
def test_crossing_bounds_the_exact_probability(rate: float, size: float) -> None:
    for distance in DISTANCES:
        bound = float(crossing(one(distance), one(1.0), one(rate * size**2), one(size)))
        assert bound >= tail(distance, 1.0, size, rate) * (1 - 1e-9), f"distance {distance}"
        if rate < 1:  # a single jump that goes one way, as over a rounding boundary
            above = (1 - rate) * stats.norm.sf(distance) + rate * stats.norm.sf(distance - size)
            assert bound >= above * (1 - 1e-9), f"distance {distance}"


def test_crossing_is_not_idle() -> None:
    rare = float(crossing(one(0.4), one(1e-6), one(1e-6), one(1.0)))
    assert 1e-6 < rare < 1e-5, "a jump of one spacing with probability 1e-6, its boundary at 0.4"
    assert float(crossing(one(40.0), one(1.0), one(1e-6), one(1.0))) < 1e-8


@pytest.mark.parametrize("rate", [1e-3, 0.2])
def test_crossing_bounds_simulated_probabilities(rate: float) -> None:
    size, count, seed = 2.0, 100_000, 12
    errors = drawn(rate, size, count, seed)
    jump_variance = rate * size**2 * float((torch.linspace(0.2, 1, 5) ** 2).sum())
    for distance in (0.5, 1.0, 2.0, 3.0):
        seen = int((errors > distance).sum())
        allowed = count * float(crossing(one(distance), one(1.0), one(jump_variance), one(size)))
        assert seen <= allowed + 5 * math.sqrt(allowed), f"seed {seed}, distance {distance}"
        assert seen > 0


@given(SIZES, SIZES, SIZES, SIZES, st.floats(1.0, 10.0))
def test_crossing_is_monotone(d: float, v: float, jv: float, j: float, factor: float) -> None:
    here = float(crossing(one(d), one(v), one(jv), one(j)))
    assert 0 <= here <= 1
    assert float(crossing(one(factor * d), one(v), one(jv), one(j))) <= here * (1 + 1e-9)
    assert float(crossing(one(d), one(factor * v), one(jv), one(j))) >= here * (1 - 1e-9)
    assert float(crossing(one(d), one(v), one(factor * jv), one(j))) >= here * (1 - 1e-9)
    assert float(crossing(one(d), one(v), one(jv), one(factor * j))) >= here * (1 - 1e-9)
