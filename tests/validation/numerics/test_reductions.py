"""The model of summation noise: exact averages over all orders of a few terms, and measured FP32 sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from validation.numerics.formats import exponent, power_of_two
from validation.numerics.reductions import CHAIN, TENSOR_CORE, Reduction

# Mean of ulp**2 / 12 over x**2 for a significand log-uniform over a binade.
UNIT = 3 / (8 * math.log(2)) * 2.0**-46 / 12


def doubles(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def model(order: Reduction, terms: Tensor) -> Tensor:
    """Predicted variance of sums over the last axis."""
    return order.variance(terms.shape[-1], terms.sum(-1), (terms * terms).sum(-1))


# -- the average over all orders, term by term -----------------------------------------------------


def partial_sums(terms: tuple[float, ...], chain: int) -> Iterator[float]:
    """Every sum that an addition rounds: chains of ``chain`` terms, their results in a chain."""
    results = [terms[i : i + chain] for i in range(0, len(terms), chain)]
    for block in results:
        yield from itertools.islice(itertools.accumulate(block), 1, None)
    yield from itertools.islice(itertools.accumulate(sum(block) for block in results), 1, None)


@pytest.mark.parametrize(("n", "chain"), [(2, 2), (3, 3), (4, 4), (6, 6), (4, 2), (6, 2), (6, 3), (6, 1)])
@given(st.data())
def test_model_is_the_average_over_all_orders(n: int, chain: int, data: st.DataObject) -> None:
    terms = data.draw(st.lists(st.floats(0.1, 10.0), min_size=n, max_size=n))
    orders = list(itertools.permutations(terms))
    squares = sum(p * p for order in orders for p in partial_sums(order, chain)) / len(orders)
    predicted = float(model(Reduction(chain=chain), doubles(terms)))
    assert abs(predicted / (UNIT * squares) - 1) < 1e-9


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6))
def test_cancelling_terms_are_never_predicted_quieter_than_the_average(terms: list[float]) -> None:
    orders = list(itertools.permutations(terms))
    squares = sum(p * p for order in orders for p in partial_sums(order, len(terms))) / len(orders)
    assert float(model(CHAIN, doubles(terms))) >= UNIT * squares * (1 - 1e-9)


def test_a_single_term_is_not_rounded() -> None:
    assert float(model(CHAIN, doubles([3.0]))) == 0.0
    assert float(model(Reduction(rounds_products=True), doubles([3.0]))) == 9.0 * UNIT, "its product may be"


# -- sums as FP32 computes them --------------------------------------------------------------------


def chained(terms: Tensor) -> Tensor:
    total = terms[..., 0]
    for i in range(1, terms.shape[-1]):
        total = total + terms[..., i]
    return total


def blocked(width: int) -> Callable[[Tensor], Tensor]:
    return lambda terms: chained(torch.stack([chained(t) for t in terms.split(width, -1)], -1))


def drawn(kind: str, count: int, n: int, seed: int) -> Tensor:
    """FP32 terms; every sum has its own scale, so that significands spread over a binade."""
    g = torch.Generator().manual_seed(seed)
    terms = torch.randn(count, n, generator=g)
    if kind == "positive":
        terms = terms.abs()
    return terms * torch.exp2(torch.rand(count, 1, generator=g))


def ratio(add: Callable[[Tensor], Tensor], order: Reduction, terms: Tensor) -> float:
    error = add(terms).double() - terms.double().sum(-1)
    return float((error * error / model(order, terms.double())).mean())


BLOCKS = ((4, 16), (8, 64), (64, 256), (32, 96))
ORDERS = [
    *((chained, CHAIN, n) for n in (2, 4, 16, 64, 256)),
    *((blocked(width), Reduction(chain=width), n) for width, n in BLOCKS),
]


@pytest.mark.parametrize(("add", "order", "n"), ORDERS)
def test_sums_of_one_sign_are_as_noisy_as_predicted(
    add: Callable[[Tensor], Tensor], order: Reduction, n: int
) -> None:
    # The mean of 8,000 squared errors is known to sqrt(2 / 8,000) = 1.6 %: five of these. Where both terms
    # have nearly all bits of the sum, one or two bits are lost, and such errors have up to 1.5 times the
    # variance of uniform ones.
    most = 1.12 if n > 16 else 1.25
    assert 0.92 < ratio(add, order, drawn("positive", 8_000, n, seed=n)) < most, f"seed {n}"


@pytest.mark.parametrize(("add", "order", "n"), ORDERS)
def test_sums_of_random_sign_are_predicted_on_the_safe_side(
    add: Callable[[Tensor], Tensor], order: Reduction, n: int
) -> None:
    # Long sums cost Q / 2 + (S**2 - Q) / 3 a term, clamped at S**2 = Q: for a normal S the true cost is 0.7
    # of the clamped one in the mean.
    assert 0.6 < ratio(add, order, drawn("normal", 8_000, n, seed=n)) < 1.08, f"seed {n}"


def test_the_order_is_told_from_another_shape() -> None:
    terms = drawn("positive", 4_000, 256, seed=5)
    assert ratio(blocked(16), CHAIN, terms) < 0.5
    assert ratio(chained, Reduction(chain=16), terms) > 2.0


def test_rounded_products_add_their_noise() -> None:
    a, b = drawn("positive", 20_000, 4, seed=6), drawn("positive", 20_000, 4, seed=7)
    exact = a.double() * b.double()
    error = chained(a * b).double() - exact.sum(-1)
    squared = error * error
    assert 0.92 < float((squared / model(Reduction(rounds_products=True), exact)).mean()) < 1.25, "seeds 6, 7"
    assert float((squared / model(CHAIN, exact)).mean()) > 1.3


def truncating(terms: Tensor, every: int) -> Tensor:
    """A tensor core as modelled: exact sums of ``every`` products, the running sum cut to 24 bits."""
    total = torch.zeros_like(terms[..., 0])
    for part in terms.split(every, -1):
        total = total + part.sum(-1)
        quantum = power_of_two(exponent(total) - 23)
        total = torch.trunc(total / quantum) * quantum
    return total


@pytest.mark.parametrize("kind", ["positive", "normal"])
@pytest.mark.parametrize("n", [64, 1024, 4096])
def test_truncated_sums_stay_within_the_model_of_a_tensor_core(kind: str, n: int) -> None:
    terms = drawn(kind, 1_000, n, seed=n).double()
    error = truncating(terms, 16) - terms.sum(-1)
    measured = float((error * error).mean() / model(TENSOR_CORE, terms).mean())
    assert 0.3 < measured < 1.1, f"seed {n}"
    if n > 64 and kind == "positive":
        assert float((error * error).mean() / model(CHAIN, terms).mean()) > 1.5, "drift is no chain's noise"


@given(st.integers(2, 4096), st.floats(0, 1e3), st.floats(1e-3, 1e3), st.floats(1.0, 10.0))
def test_more_is_never_quieter(n: int, total: float, squares: float, factor: float) -> None:
    def variance(order: Reduction, total: float, squares: float) -> float:
        return float(order.variance(n, doubles(total), doubles(squares)))

    for order in (CHAIN, Reduction(chain=32), TENSOR_CORE):
        base = variance(order, total, squares)
        assert variance(order, factor * total, squares) >= base
        assert variance(order, factor * total, factor**2 * squares) >= base
        assert base > 0
    base = variance(CHAIN, total, squares)
    assert variance(Reduction(rounds_products=True), total, squares) > base
    assert variance(TENSOR_CORE, total, squares) > base
    assert variance(Reduction(chain=n), total, squares) == base, "a chain of all terms is the chain"
    assert variance(Reduction(chain=10 * n), total, squares) == base
    assert variance(Reduction(chain=16), total, squares) <= base * (1 + 1e-9)
