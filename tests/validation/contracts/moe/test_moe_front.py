"""The front's reference against plain loops over ranks, rows and K, and what its regimes promise."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from validation.contracts.arena import Arena
from validation.contracts.contract import Case
from validation.contracts.moe import front
from validation.contracts.moe.front import CONTRACT, PAD_ROWS, MoeFrontArguments, build
from validation.judge import observe
from validation.numerics.arithmetic import Exact, Rounded

# float64 sums of up to 512 terms in another order, relative to the sum of their magnitudes.
CLOSE = 512 * 2.0**-53


def drawn(regime: str, rows: int = 4, ranks: int = 3, k: int = 64) -> MoeFrontArguments:
    shape = {"rows": rows, "ranks": ranks, "experts": 2, "latent": 5, "k": k}
    return build(Case.of("moe_front", regime, 3, **shape))


def truth(a: MoeFrontArguments, name: str) -> torch.Tensor:
    return front.reference(Exact(), a)[name].mean


@pytest.mark.parametrize("regime", [r.name for r in front.REGIMES])
def test_the_reference_is_the_plain_loop_over_ranks(regime: str) -> None:
    a = drawn(regime)
    for name, weight in (("logits", a.router), ("latent", a.down)):
        found = truth(a, name)
        for row in range(4):
            for rank in range(3):
                for column in range(weight.shape[1]):
                    x, w = a.h[row].tolist(), weight[rank, column].tolist()
                    terms = [p * q for p, q in zip(x, w, strict=True)]
                    value = float(found[row, rank, column])
                    if not all(map(math.isfinite, terms)):
                        assert math.isnan(value)
                    else:
                        assert abs(value - math.fsum(terms)) <= CLOSE * sum(map(abs, terms))


def test_the_latent_is_rounded_once_and_the_logits_never() -> None:
    a = drawn("typical", k=512)
    found = front.reference(Rounded(front.SPECIALIZED), a)
    assert torch.equal(found["logits"].mean, truth(a, "logits"))
    assert torch.equal(found["latent"].mean, truth(a, "latent").float().bfloat16().double())


def test_rank_by_rank_columns_stand_in_the_gathered_outputs() -> None:
    a = drawn("typical")
    a.logits[:] = torch.arange(6.0)
    a.latent[:] = torch.arange(15.0)
    seen = observe(CONTRACT, a)
    assert seen["logits"][0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert seen["latent"][0, 2].tolist() == [10, 11, 12, 13, 14]


def test_one_hot_rows_tell_every_column_of_every_rank_apart() -> None:
    a = drawn("one_hot", k=512)
    hot = a.h.argmax(1)
    assert len(set(hot.tolist())) == 4
    assert torch.equal(truth(a, "latent").permute(1, 2, 0), a.down.double()[:, :, hot])
    assert len(truth(a, "latent")[0].unique()) > 10


def test_a_row_of_negative_zero_meets_a_weight_row_that_keeps_its_sign() -> None:
    a = drawn("negative_zero")
    zero = a.h[2]
    assert bool((zero == 0).all())
    assert bool(torch.signbit(zero).all())
    products = zero.float() * a.router[1, 0].float()
    assert bool(torch.signbit(products).all()), "a chain that starts from its first product ends at -0"
    a.logits[2] = -0.0
    assert int(observe(CONTRACT, a)["negative_zeros"].sum()) == a.logits.shape[1]


def test_the_padding_row_is_not_finite_and_the_others_do_not_notice() -> None:
    a = drawn("nan_row")
    assert bool(truth(a, "logits")[-1].isnan().all())
    other = dataclasses.replace(a, h=a.h.clone())
    other.h[-1] = 0
    assert torch.equal(truth(other, "latent")[:-1], truth(a, "latent")[:-1])


def test_cancelling_logits_are_far_smaller_than_their_terms() -> None:
    def lost(regime: str) -> float:
        a = drawn(regime, k=512)
        size = torch.sqrt((a.h.double() ** 2) @ (a.router.double() ** 2).flatten(0, 1).T)
        return float((truth(a, "logits").flatten(1).abs() / size).median())

    assert lost("cancelling") < 0.03
    assert lost("typical") > 0.3


def test_pad_rows_between_ranks_hold_nan() -> None:
    a = drawn("typical")
    placed = Arena(CONTRACT, a).arguments.router
    rank, row, _ = placed.stride()
    assert rank == (2 + PAD_ROWS) * row
    pads = placed.as_strided((2, PAD_ROWS, 64), (rank, row, 1), placed.storage_offset() + 2 * row)
    assert bool(pads.isnan().all())


def test_wide_ranks_and_rows_lie_beyond_2_to_31_elements() -> None:
    a = drawn("wide_offsets")
    strides = front.strides(a)
    assert all(2 * strides[name][0] >= 2**31 for name in ("router", "down", "logits", "latent"))


def test_the_full_tier_is_the_whole_front_at_both_parallelisms_and_every_batch() -> None:
    shapes = {
        (c["ranks"], c["experts"], c["latent"], c["rows"]) for c in front.cases("full") if c["k"] == 7168
    }
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
        assert {(8, 112, 448, rows), (16, 56, 224, rows)} <= shapes
