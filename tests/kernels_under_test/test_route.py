"""The routing kernel: ids bit for bit against a stable sort, weights where every operation is exact."""

from __future__ import annotations

import pytest
import torch

from kernels_under_test.triton_portable.route import CANDIDATES, TABLE, route, supports
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.contract import Case
from validation.contracts.moe.route import RouteArguments
from validation.errors import UserError


def arguments(logits: torch.Tensor, bias: torch.Tensor, top: int = 16, **more: object) -> RouteArguments:
    rows = len(logits)
    ids = spread(torch.full((rows, top), -7, dtype=torch.int32).double()).to(torch.int32)
    weights = spread(torch.full((rows, top), NAN, dtype=torch.bfloat16))
    return RouteArguments(spread(logits), bias.to(weights.device), ids, weights, **more)


def halves(keys: torch.Tensor) -> RouteArguments:
    """Logits 0 (every score is exactly 1/2) and the bias as given: keys are known to the bit."""
    return arguments(torch.zeros(3, keys.numel()), keys)


def sorted_ids(keys: torch.Tensor, top: int = 16) -> list[int]:
    return keys.sort(dim=-1, descending=True, stable=True).indices[:top].tolist()


@pytest.mark.parametrize("experts", [896, 129, 60, 17, 16])
@pytest.mark.parametrize("kinds", [1, 2, 7, 1000])
def test_keys_of_both_signs_and_any_number_of_ties_are_sorted_exactly(experts, kinds):
    draw = torch.Generator().manual_seed(experts + kinds)
    keys = torch.randint(0, kinds, (experts,), generator=draw) / 8 - 1.5
    a = halves(keys)
    route(a)
    assert a.ids.tolist() == [sorted_ids(keys + 0.5)] * 3
    assert (a.weights == 1 / 16).all()


@pytest.mark.parametrize("tied", [CANDIDATES - 1, CANDIDATES, CANDIDATES + 1, 400])
def test_ties_on_both_sides_of_the_candidate_limit(tied):
    draw = torch.Generator().manual_seed(tied)
    order = torch.randperm(896, generator=draw)
    keys = torch.full((896,), -2.0)
    keys[order[:tied]] = 1.0
    keys[order[tied : tied + 6]] = 2.0 + torch.arange(6)
    a = halves(keys)
    route(a)
    assert a.ids[0].tolist() == sorted_ids(keys + 0.5)
    assert set(order[tied : tied + 6].tolist()) == set(a.ids[0, :6].tolist())


def test_nan_is_last_and_spoils_only_the_row_that_needs_it():
    logits = torch.zeros(3, 100)
    logits[0, :90] = NAN
    logits[1, ::2] = NAN
    a = arguments(logits, torch.arange(100) / -64.0)
    route(a)
    assert a.ids[0].tolist() == [*range(90, 100), *range(6)]
    assert a.weights[0].isnan().all()
    assert a.ids[1].tolist() == list(range(1, 32, 2))
    assert (a.weights[1:] == 1 / 16).all()


def test_infinite_logits_score_zero_and_one():
    logits = torch.full((1, 64), float("-inf"))
    logits[0, [5, 9, 50, 63]] = float("inf")
    a = arguments(logits, torch.zeros(64), scale=2.0)
    route(a)
    assert a.ids[0].tolist() == [5, 9, 50, 63, 0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 13]
    assert a.weights[0].tolist() == [0.5] * 4 + [0.0] * 12


@pytest.mark.parametrize(("renormalise", "weight"), [(True, 2.5 / 16), (False, 1.25)])
def test_scale_with_and_without_renormalisation(renormalise, weight):
    a = arguments(torch.zeros(2, 40), torch.arange(40.0), scale=2.5, renormalise=renormalise)
    route(a)
    assert a.ids[1].tolist() == list(range(39, 23, -1))
    assert (a.weights == weight).all()


def test_scores_of_zero_give_weights_of_zero():
    a = arguments(torch.full((2, 40), -200.0), torch.arange(40.0))
    route(a)
    assert (a.weights == 0).all()


def test_fewer_slots_leave_the_gap_alone():
    a = arguments(torch.zeros(2, 40), torch.arange(40.0), top=3)
    route(a)
    assert a.ids.tolist() == [[39, 38, 37]] * 2
    assert a.weights.as_strided((2, 7), (10, 1), 0).isnan().all()


def test_equal_calls_give_equal_bits():
    a = arguments(torch.randn(9, 896), torch.randn(896) / 16)
    route(a)
    first = a.ids.clone(), a.weights.clone()
    route(a)
    assert torch.equal(a.ids, first[0])
    assert same_bits(a.weights, first[1])


def test_shapes_that_are_not_served_are_refused_before_the_launch():
    with pytest.raises(UserError, match="17 slots; 1 to 16 are served"):
        route(arguments(torch.zeros(1, 40), torch.zeros(40), top=17))
    with pytest.raises(UserError, match="9 experts for 16 slots; 16 to 4096 are served"):
        route(arguments(torch.zeros(1, 9), torch.zeros(9)))
    assert supports(Case.of("route", "typical", 1, rows=1, experts=5000)).startswith("5000 experts")
    assert supports(Case.of("route", "typical", 1, rows=1, experts=896)) is None
    assert {kernel for entry in TABLE for kernel in entry.kernels} == {"route_kernel"}
