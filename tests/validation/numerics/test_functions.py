"""The documented errors against what this CPU does, and the variance that a bound stands for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from validation.numerics.formats import FP32
from validation.numerics.functions import TABLES, FunctionError, variance_in_ulps

POINTS = 200_000


def spread(low: float, high: float, seed: int) -> Tensor:
    """FP32 arguments, uniform in an interval."""
    g = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(POINTS, generator=g)


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "exp": (torch.exp, torch.cat([spread(-80, 80, 1), spread(-1e-3, 1e-3, 2)])),
    "exp2": (torch.exp2, spread(-120, 120, 3)),
    "log": (torch.log, torch.cat([spread(1e-6, 10, 4), spread(0.9, 1.1, 5)])),
    "tanh": (torch.tanh, torch.cat([spread(-10, 10, 6), spread(-0.1, 0.1, 7)])),
    "rsqrt": (torch.rsqrt, torch.cat([spread(1e-7, 1e-5, 8), spread(0.1, 100, 9)])),
    "sqrt": (torch.sqrt, torch.cat([spread(1e-7, 1e-5, 10), spread(0.1, 100, 11)])),
    "divide": (lambda x: (x + 0.75) / x, torch.cat([spread(0.01, 1, 12), spread(1, 1000, 13)])),
}


def errors(name: str) -> Tensor:
    """Errors of torch's FP32 function on the CPU, in ulps of the result."""
    function, x = FUNCTIONS[name]
    if name == "divide":
        truth = (x + 0.75).double() / x.double()
    else:
        truth = function(x.double())
    return (function(x).double() - truth) / FP32.spacing(truth)


def test_every_table_knows_the_same_functions() -> None:
    assert {frozenset(table) for table in TABLES.values()} == {frozenset(FUNCTIONS)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_this_cpu_keeps_the_bounds_of_its_table(name: str) -> None:
    worst, bound = float(errors(name).abs().max()), TABLES["cpu"][name].ulps
    # The bound counts ulps at the exact result; a result on the edge of a binade may be an ulp of the other
    # side.
    assert 0.3 < worst <= bound * (1 + 2.0**-10), "seeds 1 to 13"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_this_cpu_is_no_noisier_than_the_variance_of_its_bound(name: str) -> None:
    error = errors(name)
    measured = float((error * error).mean())
    predicted = variance_in_ulps(TABLES["cpu"][name].ulps)
    assert 0.2 * predicted < measured <= 1.05 * predicted


@pytest.mark.parametrize("ulps", [0.5, 1.0, 2.0, 5.0, 4096.0])
def test_variance_is_that_of_a_rounding_and_a_uniform_approximation_error(ulps: float) -> None:
    g = torch.Generator().manual_seed(20)
    rounding, approximation = (2 * torch.rand(2, 400_000, generator=g, dtype=torch.float64) - 1).unbind()
    drawn = 0.5 * rounding + (ulps - 0.5) * approximation
    # Relative deviation of a variance from n uniform draws: sqrt(0.8 / n); five of them.
    assert abs(float(drawn.var()) / variance_in_ulps(ulps) - 1) < 5 * (0.8 / 400_000) ** 0.5


@pytest.mark.parametrize("size", [1.0, 10.0, 80.0])
def test_rounding_the_argument_of_exp2_costs_what_tritons_exp_is_given(size: float) -> None:
    x = -size * (0.5 + 0.5 * spread(0, 1, 14))
    argument = x * torch.tensor(1.4426950408889634)
    truth = torch.exp(x.double())
    error = (torch.exp2(argument.double()) - truth) / FP32.spacing(truth)
    bound = TABLES["triton"]["exp"]
    worst = bound.ulps + bound.ulps_per_argument * x.abs().double()
    squares = float((error * error).mean())
    assert squares <= float(((worst - 0.5) ** 2 / 3).mean()), "ex2's own 2 ulps come on top"
    assert size < 10 or squares > 0.3 * float((bound.ulps_per_argument * x.double()).square().mean() / 3)


def test_a_correctly_rounded_result_has_the_variance_of_rounding() -> None:
    assert variance_in_ulps(0.5) == 1 / 12
    assert variance_in_ulps(0.0) == 1 / 12, "no operation is better than correctly rounded"


@given(st.floats(0.5, 1e4), st.floats(0.5, 1e4))
def test_variance_grows_with_the_bound(a: float, b: float) -> None:
    assert (variance_in_ulps(a) < variance_in_ulps(b)) == (a < b) or abs(a - b) < 1e-7


def test_no_table_promises_better_than_correctly_rounded() -> None:
    assert all(error.ulps >= 0.5 for table in TABLES.values() for error in table.values())
    assert FunctionError(1.0).ulps_per_argument == 0.0
