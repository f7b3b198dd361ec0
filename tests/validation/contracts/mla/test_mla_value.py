"""The reference of ``mla_value`` against plain loops, its regimes, and what may not be read."""

from __future__ import annotations

import math

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.mla import value
from validation.contracts.mla.value import MlaValueArguments, build, reference
from validation.numerics.arithmetic import Exact, Rounded

# float64 sums of 16 terms and two products in another order.
CLOSE = 32 * 2.0**-53
SIZES = {"requests": 4, "tokens": 2, "heads": 2, "latent": 16, "dim": 6}


def drawn(regime: str, **sizes: int) -> MlaValueArguments:
    return build(Case.of("mla_value", regime, 3, **(SIZES | sizes)))


def truth(a: MlaValueArguments) -> torch.Tensor:
    return reference(Exact(), a)["out"].mean


@pytest.mark.parametrize("regime", ["typical", "gate_bounds", "outliers"])
def test_the_reference_is_the_plain_loop(regime: str) -> None:
    a = drawn(regime)
    found, w = truth(a), a.w_uv.double().tolist()
    for row in range(8):
        for head in range(2):
            x = a.latent[row, head].double().tolist()
            for j in range(6):
                terms = [x[k] * w[head][k][j] for k in range(16)]
                gate = float(a.projected[row, a.gate_start + head * 6 + j])
                sigmoid = 1 / (1 + math.exp(-gate))
                error = abs(float(found[row, head, j]) - math.fsum(terms) * sigmoid)
                assert error <= CLOSE * sum(map(abs, terms)) * sigmoid


def test_the_value_is_rounded_before_the_gate_and_after_it() -> None:
    a = drawn("typical")
    v = torch.einsum("rhk,hkv->rhv", a.latent.double(), a.w_uv.double()).float().bfloat16().double()
    once = (v * torch.sigmoid(a.gate.double())).float().bfloat16().double()
    assert torch.equal(reference(Rounded(value.STOCK), a)["out"].mean, once)
    assert not torch.equal(once, truth(a).float().bfloat16().double())


def test_padding_is_chosen_by_request_and_leaks_nothing() -> None:
    a = drawn("padding", requests=5, tokens=3)
    assert a.lengths.tolist()[0] == a.lengths.tolist()[4] == 0
    assert int(a.lengths[2]) < 0
    dead = [t for t in range(15) if int(a.lengths[t // 3]) <= 0]
    assert len(dead) == 9
    found = truth(a)
    assert bool((found[dead] == 0).all())
    assert not bool(torch.signbit(found[dead]).any())
    assert bool(a.latent[dead].isnan().all())
    assert bool(a.gate[dead].isnan().all())
    alive = [t for t in range(15) if t not in dead]
    assert bool((found[alive].isfinite() & (found[alive] != 0)).all())


def test_only_the_gate_s_columns_of_the_projection_can_be_read() -> None:
    a = drawn("typical")
    outside = torch.ones(a.projected.shape[1], dtype=torch.bool)
    outside[a.gate_start : a.gate_start + 12] = False
    assert bool(a.projected[:, outside].isnan().all())
    assert a.gate_start > 0
    assert bool(outside[a.gate_start + 12 :].any())
    assert bool(truth(a).isfinite().all())


def test_gate_bounds_saturate_on_both_sides_without_leaving_fp32() -> None:
    a = drawn("gate_bounds")
    sigmoid = torch.sigmoid(a.gate.double())
    assert float(sigmoid.max()) > 1 - 2.0**-24
    assert 2.0**-126 < float(sigmoid.min()) < 1e-20


def test_cancelling_sums_are_far_smaller_than_their_terms() -> None:
    def lost(regime: str) -> float:
        a = drawn(regime, latent=128)
        x, w = a.latent.double(), a.w_uv.double()
        total = torch.einsum("rhk,hkv->rhv", x, w).abs()
        return float((total / torch.einsum("rhk,hkv->rhv", x**2, w**2).sqrt()).median())

    assert lost("cancelling") < 2e-2
    assert lost("typical") > 0.3


def test_a_nan_stays_in_its_head_and_element() -> None:
    bad = truth(drawn("nan_row")).isnan()
    assert bad[4, 0].all()
    assert bad[4, 1].tolist() == [False, False, False, True, False, False]
    assert int(bad.sum()) == 7


def test_the_full_tier_has_both_parallelisms_at_every_batch() -> None:
    shapes = {(c["heads"], c["requests"] * c["tokens"]) for c in value.cases("full") if c["dim"] == 128}
    for heads in (12, 6):
        assert {(heads, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)} <= shapes
