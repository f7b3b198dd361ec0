"""The MoE tail's reference against plain loops, its rank and slot orders bit for bit, and its regimes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.moe import tail
from validation.contracts.moe.tail import MoeTailArguments
from validation.numerics.arithmetic import Exact, Noise, Rounded

# float64 sums of at most 100 terms in another order, twice, and a root.
CLOSE = 1000 * 2.0**-53


def drawn(regime: str, ranks: int = 4, rows: int = 3, latent: int = 96, own: int = -1) -> MoeTailArguments:
    case = Case.of("moe_tail", regime, 3, ranks=ranks, rows=rows, latent=latent, channels=8, own=own)
    return tail.build(case)


def bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


@pytest.mark.parametrize(("regime", "own"), [("typical", -1), ("combine", 2), ("small", -1), ("one_hot", -1)])
def test_the_reference_is_the_plain_loop(regime: str, own: int) -> None:
    a = drawn(regime, own=own)
    found = tail.reference(Exact(), a)["out"].mean
    latent, shared, gamma = a.latent.double().tolist(), a.shared.double(), a.gamma.double().tolist()
    weights, slots = a.weights.double().tolist(), a.rows.double().tolist()
    for i in range(3):
        parts = [latent[r][i] for r in range(4)]
        if own >= 0:
            mine = zip(*slots[16 * i : 16 * i + 16], strict=True)
            parts[own] = [
                math.fsum(x * w for x, w in zip(column, weights[i], strict=True)) for column in mine
            ]
        z = [math.fsum(column) for column in zip(*parts, strict=True)]
        inverse = 1 / math.sqrt(math.fsum(x * x for x in z) / 96 + a.eps)
        n = [x * inverse * g for x, g in zip(z, gamma, strict=True)]
        for rank in range(4):
            for channel in range(8):
                terms = [x * w for x, w in zip(n, a.up[rank, channel].double().tolist(), strict=True)]
                sent = shared[:, i, 8 * rank + channel]
                size = sum(map(abs, terms)) + float(sent.abs().sum())
                assert (
                    abs(float(found[i, 8 * rank + channel]) - math.fsum(terms) - float(sent.sum()))
                    <= CLOSE * size
                )


@pytest.mark.parametrize(("regime", "own"), [("typical", -1), ("cancelling", -1), ("combine", 1)])
def test_specialised_sums_are_the_fp32_chains_over_ranks_and_slots(regime: str, own: int) -> None:
    a = drawn(regime, own=own)
    parts = list(a.latent.float())
    if own >= 0:
        total = torch.zeros(3, 96)
        for slot in range(16):
            total = total + a.rows.float()[slot::16] * a.weights.float()[:, slot : slot + 1]
        parts[own] = bf16(total)
    chain = parts[0]
    for part in parts[1:]:
        chain = chain + part
    z = tail.latent_sum(Noise(tail.SPECIALIZED), a)
    assert z.variance is None, "what is summed in a declared order is known to the bit"
    assert torch.equal(z.mean, bf16(chain).double())


def test_squares_are_rounded_in_the_specialised_profile_and_in_stocks_first_tier_only() -> None:
    a = drawn("one_sided")
    read = {
        name: tail.norm(Rounded(p), tail.latent_sum(Rounded(p), a), a).mean
        for name, p in tail.CONTRACT.profiles.items()
    }
    assert torch.equal(read["specialized"], read["stock_fused"])
    assert not torch.equal(read["specialized"], read["stock"])
    z = a.latent.double().sum(0)
    squares = (z * z).bfloat16().double()
    n = z * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-5) * a.gamma.double()
    assert torch.equal(read["specialized"], n.bfloat16().double())


def test_what_is_not_this_forms_input_is_not_read() -> None:
    sent = drawn("typical")
    assert bool(sent.rows.isnan().all())
    assert bool(sent.weights.isnan().all())
    combined = drawn("combine", own=2)
    assert bool(combined.latent[2].isnan().all())
    for a in (sent, combined):
        assert bool(tail.reference(Exact(), a)["out"].mean.isfinite().all())


def test_squares_lean_one_way_in_the_one_sided_regime() -> None:
    z = drawn("one_sided").latent.double().sum(0)
    lean = (z * z).bfloat16().double() / (z * z) - 1
    assert float(lean.min()) > 2e-3


def test_the_cancelling_order_of_ranks_shows_in_the_result() -> None:
    a = drawn("cancelling")
    turned = dataclasses.replace(a, latent=a.latent.flip(0))
    ar = Rounded(tail.SPECIALIZED)
    z, reverse = tail.latent_sum(ar, a).mean, tail.latent_sum(ar, turned).mean
    assert 0.01 < float((z != reverse).double().mean()) < 0.9


def test_eps_decides_small_and_zero_rows() -> None:
    for regime, row in (("small", 0), ("zero", 1)):
        a = drawn(regime)
        mean = float((tail.latent_sum(Exact(), a).mean[row] ** 2).mean())
        assert mean < 2e-5
        assert bool(tail.reference(Exact(), a)["out"].mean.isfinite().all())


def test_huge_squares_stay_finite_in_fp32_and_nothing_else_does() -> None:
    z = tail.latent_sum(Exact(), drawn("huge")).mean
    assert float(z.abs().max()) > 2.0**52
    assert float((z.float() ** 2).sum(-1).max()) < torch.finfo(torch.float32).max


def test_zeros_of_both_signs_are_sent_and_none_is_negative_at_the_end() -> None:
    a = drawn("zero")
    assert int(((a.shared == 0) & torch.signbit(a.shared)).sum()) > 32
    assert int(((a.latent == 0) & torch.signbit(a.latent)).sum()) > 32
    assert float(tail.reference(Rounded(tail.SPECIALIZED), a)["negative_zeros"].mean.sum()) == 0


def test_a_nan_stays_in_its_row() -> None:
    out = tail.reference(Exact(), drawn("nan_row"))["out"].mean
    assert out.isnan().any(1).tolist() == out.isnan().all(1).tolist() == [False, True, False]


def test_the_full_tier_has_both_parallelisms_at_every_batch_and_combines_the_small_ones() -> None:
    cases = [c for c in tail.cases("full") if c["latent"] == 3584 and c["ranks"] in (8, 16)]
    for ranks, combines in ((8, 4), (16, 8)):
        sent = {c["rows"] for c in cases if c["ranks"] == ranks and c["own"] < 0}
        own = {c["rows"] for c in cases if c["ranks"] == ranks and c["own"] >= 0}
        assert {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 63, 64} <= sent
        assert own == set(range(1, combines + 1))
