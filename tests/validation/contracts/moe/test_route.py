"""The routing reference against a plain sort in Python, and what its regimes promise."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.moe import route
from validation.contracts.moe.route import CONTRACT, RouteArguments, build
from validation.numerics.arithmetic import Exact, Noise, Rounded

SHARE = 1e-7
CLOSE = 64 * 2.0**-53  # sums of 16 and quotients of float64


def drawn(regime: str, rows: int = 5, experts: int = 200, **more: int) -> RouteArguments:
    return build(Case.of("route", regime, 3, rows=rows, experts=experts, percent=250, **more))


def sigmoid(x: float) -> float:
    """0 where exp(-x) overflows in FP32."""
    if math.isnan(x):
        return x
    return 0.0 if x < -88.7228 else 1 / (1 + math.exp(-x))


def routed(logits: list[float], bias: list[float], top: int, scale: float) -> tuple[list[int], list[float]]:
    """Ids by descending FP32 key, equal keys by ascending id, and weights in float64."""
    scores = [sigmoid(x) for x in logits]
    keys = [
        float(torch.tensor(s + b, dtype=torch.float64).float()) for s, b in zip(scores, bias, strict=True)
    ]
    ids = sorted(
        range(len(keys)), key=lambda e: (-math.inf if math.isnan(keys[e]) else keys[e], -e), reverse=True
    )
    ids = ids[:top]
    total = sum(scores[e] for e in ids) + 1e-20
    return ids, [scores[e] * scale / total for e in ids]


@pytest.mark.parametrize("regime", [r.name for r in route.REGIMES])
@pytest.mark.parametrize("top", [16, 5])
def test_the_reference_is_a_plain_sort(regime: str, top: int) -> None:
    a = drawn(regime, top=top)
    found = route.reference(Rounded(route.SPECIALIZED), a)
    for row in range(5):
        ids, weights = routed(a.logits[row].tolist(), a.bias.tolist(), top, a.scale)
        assert found["ids"].mean[row].tolist() == ids
        stored = torch.tensor(weights, dtype=torch.float64).bfloat16()
        assert torch.equal(found["weights"].mean[row].bfloat16().nan_to_num(9), stored.nan_to_num(9))


def wrong(a: RouteArguments, ids: torch.Tensor, profile: str = "specialized") -> list[bool]:
    choice = route.reference(Noise(CONTRACT.profiles[profile]), a)["ids"]
    return choice.wrong(ids, SHARE).tolist()


def best(a: RouteArguments) -> torch.Tensor:
    return route.reference(Noise(route.SPECIALIZED), a)["ids"].mean.long()


@pytest.mark.parametrize("regime", [r.name for r in route.REGIMES])
def test_the_reference_admits_its_own_choice(regime: str) -> None:
    a = drawn(regime, experts=896)
    assert not any(wrong(a, best(a)))
    assert not any(wrong(a, best(a).sort(-1).values, "stock"))


def test_order_is_judged_where_it_is_declared() -> None:
    a = drawn("typical")
    assert all(wrong(a, best(a).flip(-1)))
    assert not any(wrong(a, best(a).flip(-1), "stock"))


def test_equal_keys_must_go_to_the_lower_ids_although_scores_are_noisy() -> None:
    a = drawn("equal")
    assert best(a).tolist() == [list(range(16))] * 5
    assert all(wrong(a, best(a) + 1))
    assert all(wrong(a, best(a).flip(-1)))
    assert not any(wrong(a, best(a) + 1, "stock"))


def test_near_ties_within_noise_are_free_and_beyond_it_are_not() -> None:
    a = drawn("near_ties", experts=896)
    ids = best(a)
    loser = a.logits.masked_fill(torch.zeros_like(a.logits).scatter(1, ids, 1) > 0, -9).argmax(1)
    ids[:, -1] = loser
    assert wrong(a, ids) == [True] * 5, "even rows by their gap, odd rows by the rule for ties"
    assert wrong(a, ids, "stock") == [True, False, True, False, True]
    assert wrong(a, ids, "specialized_b1") == [False, True, False, True, False], "within its sigmoid's error"
    nearer = a.logits.gather(1, best(a)[:, -1:])
    a.logits.scatter_(1, loser[:, None], torch.nextafter(nearer, torch.zeros(())))
    assert not any(wrong(a, ids))


def test_what_is_chosen_decides_which_weights_are_right() -> None:
    a = drawn("many_ties")
    other = best(a).flip(-1).to(torch.int32)
    outcome = dataclasses.replace(a, ids=other)
    made = CONTRACT.adopt(a, outcome)
    first = route.reference(Exact(), a)["weights"].mean
    second = route.reference(Exact(), made)["weights"].mean
    assert float((first.flip(-1) / second - 1).abs().max()) <= CLOSE
    assert not torch.equal(first, second)


def test_the_bias_moves_the_choice_and_not_the_weights() -> None:
    a = drawn("typical")
    moved = dataclasses.replace(a, bias=a.bias + 1)
    assert torch.equal(best(moved), best(a))
    values = [route.reference(Exact(), x)["weights"].mean for x in (a, moved)]
    assert torch.equal(*values)


def test_scores_that_underflow_give_weights_of_zero_and_tiny_ones_feel_the_addend() -> None:
    a = drawn("underflow")
    assert route.reference(Exact(), a)["weights"].mean.unique().tolist() == [0.0]
    a = drawn("tiny_scores")
    sums = route.reference(Exact(), a)["weights"].mean.sum(1) / a.scale
    assert 0.1 < float(sums.min()) < float(sums.max()) < 0.9, "1 without 1e-20"


def test_a_nan_expert_is_last_and_poisons_only_a_row_that_needs_it() -> None:
    a = drawn("nan", experts=896)
    nan = a.logits.isnan()
    assert nan.sum(1).tolist()[1:3] == [891, 896]
    chosen = nan.gather(1, best(a)).sum(1).tolist()
    assert chosen == [0, 11, 16, 0, 0]
    weights = route.reference(Exact(), a)["weights"].mean
    assert weights.isnan().any(1).tolist() == [False, True, True, False, False]
    small = route.reference(Rounded(route.SPECIALIZED_B2), a)["weights"].mean
    assert bool(small.isfinite().all()), "one or two tokens at 16 ranks: a NaN expert scores 0"


def test_large_biases_make_keys_whose_ties_are_known() -> None:
    a = drawn("large_bias", experts=896)
    keys = route.reference(Noise(route.SPECIALIZED), a)["ids"].scores
    large = (a.bias > 500).nonzero().flatten()
    spacing = 2.0**-14  # of FP32 at 1000
    assert all(Fraction(float(x)) % Fraction(spacing) == 0 for x in keys.mean[0, large])


def test_the_scale_applies_with_and_without_renormalisation() -> None:
    a = drawn("typical")
    weights = route.reference(Exact(), a)["weights"].mean
    assert float((weights.sum(1) / 2.5 - 1).abs().max()) <= CLOSE
    b = drawn("typical", renormalise=0)
    plain = route.reference(Exact(), b)["weights"].mean
    assert torch.equal(plain, torch.sigmoid(b.logits.double()).gather(1, best(b)) * 2.5)
