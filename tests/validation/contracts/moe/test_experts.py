"""The experts' reference against plain loops, and their regimes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.moe import experts
from validation.contracts.moe.experts import latent, unpacked
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.contracts.moe.experts_inputs import NAN_SCALE, REGIMES, build
from validation.numerics.arithmetic import Exact, Rounded

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# float64 sums of up to 64 terms in another order and functions of another library, relative to the largest.
CLOSE = 256 * 2.0**-53


def drawn(regime: str, **shape: int) -> ExpertsArguments:
    small = {"rows": 4, "experts": 9, "slots": 2, "width": 64, "live": 64, "padded": 64, "keep": 1}
    if regime == "padded":
        small["padded"] = 96
    return build(Case.of("experts", regime, 3, **(small | shape)))


def truth(a: ExpertsArguments, name: str = "out") -> torch.Tensor:
    return experts.reference(Exact(), a)[name].mean


def weight(nibbles: torch.Tensor, scales: torch.Tensor, row: int, column: int) -> float:
    byte = int(nibbles[row, column // 2])
    code = byte >> 4 if column % 2 else byte & 15
    return (-1) ** (code >> 3) * E2M1[code & 7] * 2.0 ** (int(scales[row, column // 32]) - 127)


def situ(g: float, u: float) -> float:
    return 4 * math.tanh(g / 4) / (1 + math.exp(-g)) * 25 * math.tanh(u / 25)


@pytest.mark.parametrize("regime", ["typical", "padded"])
def test_the_reference_is_the_plain_loop(regime: str) -> None:
    a = drawn(regime, rows=2, live=32, padded=64 if regime == "padded" else 32)
    x, found = latent(a).tolist(), truth(a)
    for row in range(2):
        out = [0.0] * 64
        for slot in range(2):
            e = int(a.ids[row, slot])
            products = [
                sum(weight(a.w13[e], a.w13_scale[e], r, k) * x[row][k] for k in range(64))
                for r in (*range(32), *range(a.padded, a.padded + 32))
            ]
            hidden = [situ(products[i], products[32 + i]) for i in range(32)]
            for n in range(64):
                value = sum(weight(a.w2[e], a.w2_scale[e], n, i) * hidden[i] for i in range(32))
                out[n] += float(a.weights[row, slot]) * value
        size = max(map(abs, out))
        assert all(abs(float(found[row, n]) - out[n]) <= CLOSE * size for n in range(64))


def test_the_low_nibble_is_the_even_column_and_a_scale_serves_32() -> None:
    nibbles = torch.arange(16, dtype=torch.uint8) * 16 + torch.arange(16, dtype=torch.uint8).flip(0)
    values = unpacked(nibbles[None].repeat(1, 2), torch.tensor([[127, 128]], dtype=torch.uint8))[0]
    table = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64)
    assert torch.equal(values[1:32:2], table)
    assert torch.equal(values[0:32:2], table.flip(0))
    assert torch.equal(values[32:], 2 * values[:32])


@pytest.mark.parametrize("regime", [r.name for r in REGIMES if r.name not in ("nan_row", "wide_offsets")])
def test_what_must_not_be_read_is_nan_and_is_not_read(regime: str) -> None:
    a = drawn(regime)
    idle = [e for e in range(9) if not bool((a.ids == e).any())]
    assert idle
    assert bool((a.w13_scale[idle] == NAN_SCALE).all())
    assert bool((a.w2_scale[idle] == NAN_SCALE).all())
    assert bool((a.w2_scale[:, :, a.live // 32 :] == NAN_SCALE).all())
    assert bool(truth(a).isfinite().all())


def test_a_row_depends_on_its_own_latent_alone() -> None:
    a = drawn("nan_row")
    lost = truth(a).isnan()
    assert lost.all(1).tolist() == lost.any(1).tolist() == [False, False, True, False]


def test_slots_may_come_in_any_order() -> None:
    a = drawn("typical", slots=4)
    order = [2, 0, 3, 1]
    other = dataclasses.replace(a, ids=a.ids[:, order], weights=a.weights[:, order])
    ar = Rounded(experts.SPECIALIZED)
    before, after = experts.reference(ar, a)["rows"].mean, experts.reference(ar, other)["rows"].mean
    assert torch.equal(before[:, order], after)


def test_stock_does_not_take_the_floor_rule_and_padding_decides_for_specialized() -> None:
    full, padded = drawn("typical", rows=6), drawn("padded", rows=6)
    assert (full.hidden_rule, padded.hidden_rule) == ("floor", "no_saturation")

    def rows(a: ExpertsArguments, profile: str) -> torch.Tensor:
        ar = Rounded(experts.CONTRACT.profiles[profile])
        return experts.reference(ar, a)["rows"].mean

    assert not torch.equal(rows(full, "stock"), rows(full, "specialized"))
    assert torch.equal(rows(padded, "stock"), rows(padded, "specialized"))


def test_regimes_hold_what_they_promise() -> None:
    assert len(drawn("one_expert").ids.unique()) == 2
    assert len(drawn("distinct").ids.unique()) == 8
    hot = latent(drawn("one_hot"))
    assert (hot != 0).sum(1).tolist() == [1] * 4
    unequal = drawn("unequal_weights", rows=9, slots=4).weights.float()
    assert bool((unequal[4] == 0).all())
    assert bool((unequal != 0).any())
    extreme = drawn("extreme_scales")
    assert bool((extreme.w13_scale == 0).any())
    assert bool((extreme.w2_scale == 0).any())
    big = latent(drawn("saturating")) @ unpacked(drawn("saturating").w13, drawn("saturating").w13_scale).mT
    assert float(big.abs().nan_to_num(0).max()) > 50


def test_the_full_tier_has_both_parallelisms_at_every_batch() -> None:
    shapes = {(c["live"], c["padded"], c["rows"]) for c in experts.cases("full") if c["width"] == 3584}
    for live, padded in ((384, 384), (192, 256)):
        assert {(live, padded, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)} <= shapes
    assert set(experts.cases("quick")) < set(experts.cases("full"))
