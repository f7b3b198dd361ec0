"""Honest orders are honest: the same sums to FP32 accuracy, but not the same bits."""

import pytest
import torch

from validation.faults.orders import LIBRARY, honest_order

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_agree_with_float64_within_the_error_of_a_chain(seed: int) -> None:
    terms = torch.randn(5, 300, 3)
    found = honest_order(seed).sum(terms, 1).double()
    bound = 300 * 2.0**-24 * terms.double().abs().sum(1)
    assert ((found - terms.double().sum(1)).abs() <= bound).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_products_agree_with_float64(seed: int) -> None:
    x, weight = torch.randn(3, 257), torch.randn(11, 257)
    bound = 257 * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    found = honest_order(seed).matmul(x, weight).double()
    assert ((found - x.double() @ weight.double().T).abs() <= bound).all()


def test_orders_differ_in_their_last_bits() -> None:
    terms = torch.randn(4, 1000)
    seen = {tuple(honest_order(seed).sum(terms, 1).tolist()) for seed in SEEDS}
    assert len(seen) > 10


def test_an_order_is_drawn_by_its_seed_alone() -> None:
    terms = torch.randn(1000)
    assert honest_order(3).name == honest_order(3).name
    assert torch.equal(honest_order(3).sum(terms, 0), honest_order(3).sum(terms, 0))
    assert LIBRARY.sum(terms, 0) == terms.sum(0)
