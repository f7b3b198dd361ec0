"""The projection's reference against plain loops, and its regimes."""

from __future__ import annotations

import math

import pytest
import torch

from validation.contracts import projection
from validation.contracts.arguments import ProjectionArguments
from validation.contracts.contract import Case
from validation.contracts.projection import build
from validation.numerics.arithmetic import Exact, Rounded

# float64 sums of up to 2,048 terms in another order, relative to the sum of their magnitudes.
CLOSE = 2048 * 2.0**-53


def drawn(regime: str, rows: int = 5, columns: int = 40, k: int = 512) -> ProjectionArguments:
    return build(Case.of("projection", regime, 3, rows=rows, columns=columns, k=k))


def truth(a: ProjectionArguments) -> torch.Tensor:
    return projection.reference(Exact(), a)["out"].mean


@pytest.mark.parametrize("regime", [r.name for r in projection.REGIMES])
def test_the_reference_is_the_plain_loop(regime: str) -> None:
    a = drawn(regime, rows=3, columns=7, k=72)
    x, w, found = a.x.double().tolist(), a.weight.double().tolist(), truth(a)
    for i in range(3):
        for j in range(7):
            terms = [p * q for p, q in zip(x[i], w[j], strict=True)]
            expected, size = (
                math.fsum(terms) if not math.isnan(sum(terms)) else math.nan,
                sum(map(abs, terms)),
            )
            if math.isnan(expected):
                assert bool(found[i, j].isnan())
            else:
                assert abs(float(found[i, j]) - expected) <= CLOSE * size


def test_the_result_is_rounded_once_to_bf16() -> None:
    a = drawn("typical")
    rounded = projection.reference(Rounded(projection.STOCK), a)["out"].mean
    assert torch.equal(rounded, truth(a).float().bfloat16().double())
    assert not torch.equal(rounded, truth(a))


def test_rows_may_come_in_any_order_and_do_not_mix() -> None:
    a = drawn("typical")
    order = [3, 0, 4, 1, 2]
    size = a.x.double().abs() @ a.weight.double().abs().T
    again = truth(ProjectionArguments(a.x[order], a.weight, a.out))
    assert bool(((again - truth(a)[order]).abs() <= CLOSE * size[order]).all())
    spoiled = ProjectionArguments(a.x.clone(), a.weight, a.out)
    spoiled.x[2] *= 3
    others = [0, 1, 3, 4]
    assert torch.equal(truth(spoiled)[others], truth(a)[others])


def test_outliers_are_three_columns_thousands_of_times_larger() -> None:
    size = drawn("outliers").x.float().abs().mean(0)
    assert int((size > 500 * size.median()).sum()) == 3


def test_cancelling_sums_are_far_smaller_than_their_terms() -> None:
    def lost(regime: str) -> float:
        a = drawn(regime)
        size = torch.sqrt((a.x.double() ** 2) @ (a.weight.double() ** 2).T)
        return float((truth(a).abs() / size).median())

    assert lost("cancelling") < 5e-3
    assert lost("typical") > 0.3


def test_one_hot_rows_select_columns_of_the_weight_exactly() -> None:
    a = drawn("one_hot")
    hot = a.x.argmax(1)
    assert len(set(hot.tolist())) == 5
    assert torch.equal(truth(a), a.weight.double()[:, hot].T)


def test_small_activations_stay_normal_in_fp32_and_bf16() -> None:
    a = drawn("small")
    assert 1e-31 < float(a.x.double().abs().median()) < 1e-29
    assert bool((truth(a).abs() > 2.0**-126).all()), "nothing may be flushed"


def test_a_nan_stays_in_its_row() -> None:
    a = drawn("nan_row")
    assert int(a.x.isnan().sum()) == 1
    assert (
        truth(a).isnan().all(1).tolist()
        == truth(a).isnan().any(1).tolist()
        == [False] * 2 + [True] + [False] * 2
    )


def test_the_full_tier_has_the_packed_weights_of_both_parallelisms_at_every_batch() -> None:
    shapes = {(c["columns"], c["rows"]) for c in projection.cases("full") if c["k"] == 7168}
    for columns in (6288, 3216, 3648, 2880):
        assert {(columns, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64)} <= shapes
