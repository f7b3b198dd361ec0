"""The MoE-tail kernels against a bit-exact emulation where FP32 sums are exact, at every threshold."""

from __future__ import annotations

import pytest
import torch

from kernels_under_test.triton_portable.launch import k_ranges
from kernels_under_test.triton_portable.moe_tail import (
    OPERATIONS,
    TACTICS,
    combine,
    dispatch,
    kernels,
    moe_tail,
    tail,
)
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.contract import Case
from validation.contracts.moe.tail import MoeTailArguments
from validation.errors import UserError


def arguments(rows: int, ranks: int, latent: int, channels: int, own: int = -1) -> MoeTailArguments:
    """Partials whose sum is +-2 in every column, gamma small powers of two, eps 0: the norm is +-gamma up to
    the approximate root, which one rounding to BF16 removes. W_up and shared partials are small integers."""
    draw = torch.Generator().manual_seed(rows + latent + channels)
    sign = torch.randint(0, 2, (rows, latent), generator=draw) * 2.0 - 1
    sent = torch.zeros(ranks, rows, latent)
    sent[ranks // 2] = 2 * sign
    slots, weights = torch.full((1, latent), NAN), torch.full((1, 16), NAN)
    if own >= 0:
        slots = sent[own].repeat_interleave(16, 0) + sign.repeat_interleave(16, 0)
        slots[1::2] *= -1
        weights = torch.tensor([2.0, 1.0] * 8).expand(rows, 16) / 8
        # 8 pairs: 2/8 of x minus 1/8 of x, that is x of the slots in all.
        sent[:] = 0
        sent[own] = NAN
    shared = torch.randint(-4, 5, (ranks, rows, ranks * channels), generator=draw)
    gamma = 2.0 ** torch.randint(-1, 2, (latent,), generator=draw)
    up = torch.randint(-3, 4, (ranks, channels, latent), generator=draw)
    out = torch.full((rows, ranks * channels), NAN)
    tensors = (spread(t.bfloat16()) for t in (sent, slots, weights, shared, gamma, up, out))
    return MoeTailArguments(*tensors, own_rank=own, eps=0.0)


def expected(a: MoeTailArguments) -> torch.Tensor:
    sent = a.latent.double()
    if a.own_rank >= 0:
        slots = a.rows.double().unflatten(0, (-1, 16))
        sent[a.own_rank] = (slots * a.weights.double().unsqueeze(-1)).sum(1)
    n = torch.sign(sent.sum(0)) * a.gamma.double()
    up = (n @ a.up.double().flatten(0, 1).T).bfloat16().double()
    return (up + a.shared.double().sum(0)).bfloat16()


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17, 33, 65])  # both sides of each tactic, and two row blocks
@pytest.mark.parametrize(("ranks", "latent", "channels"), [(2, 64, 16), (3, 300, 5)])
def test_every_bit_is_right(rows: int, ranks: int, latent: int, channels: int) -> None:
    a = arguments(rows, ranks, latent, channels)
    moe_tail(a)
    assert same_bits(a.out, expected(a))
    assert not bool(torch.signbit(a.out[a.out == 0]).any())


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_own_slots_replace_the_own_mailbox(rows: int) -> None:
    a = arguments(rows, 3, 96, 8, own=1)
    moe_tail(a)
    assert bool(a.out.isfinite().all())
    assert same_bits(a.out, expected(a))


def test_slots_are_added_in_order_in_fp32() -> None:
    draw = torch.Generator().manual_seed(3)
    rows, weights = torch.randn(32, 70, generator=draw), torch.rand(2, 16, generator=draw)
    rows[::16] *= 2.0**14
    rows[15::16] = -rows[::16].bfloat16().float()
    weights[:, 15] = weights[:, 0]
    rows, weights = spread(rows.bfloat16()), spread(weights.bfloat16())

    def chain(order: list[int]) -> torch.Tensor:
        total = torch.zeros(2, 70, device=rows.device)
        for slot in order:
            total = total + rows.float()[slot::16] * weights.float()[:, slot : slot + 1]
        return total.bfloat16()

    assert same_bits(combine(rows, weights), chain(list(range(16))))
    assert not same_bits(chain(list(range(16))), chain(list(range(15, -1, -1))))


@pytest.mark.parametrize("rows", [2, 5])
def test_one_rank_alone_writes_its_columns_and_no_others(rows: int) -> None:
    a = arguments(rows, 3, 64, 8)
    moe_tail(a)
    alone = torch.full_like(a.out, NAN)
    tail(a.latent, a.shared, a.gamma, a.up[1:2], alone, a.eps, first=1)
    assert same_bits(alone[:, 8:16], a.out[:, 8:16])
    assert bool(alone[:, :8].isnan().all())
    assert bool(alone[:, 16:].isnan().all())


@pytest.mark.parametrize("rows", [1, 4])
def test_equal_calls_give_equal_bits(rows: int) -> None:
    a = arguments(rows, 2, 300, 20)
    a.latent.copy_(torch.randn(2, rows, 300))
    moe_tail(a)
    first = a.out.clone()
    moe_tail(a)
    assert same_bits(a.out, first)


def test_dispatch_is_one_launch_to_two_rows_and_three_above() -> None:
    assert [dispatch(rows).path for rows in (1, 2, 3, 64, 500)] == ["fused"] * 2 + ["split_k"] * 3
    assert all(dispatch(most) is tactic for most, tactic in TACTICS.items())
    case = Case.of("moe_tail", "combine", 0, ranks=8, rows=1, latent=64, channels=8, own=0)
    assert kernels(case) == ("combine_slots_kernel", "tail_fused_kernel")


def test_splits_of_k_cover_it() -> None:
    for channels, k in ((896, 3584), (448, 3584), (40, 300), (8, 31)):
        splits, width = k_ranges(channels, k, 64, 128)
        assert (splits - 1) * width < k <= splits * width


def test_a_latent_wider_than_one_program_is_refused_before_launch() -> None:
    a = arguments(1, 1, 64, 4)
    a.latent = a.latent.new_zeros(1, 1, 8200)
    with pytest.raises(UserError, match="a latent of 8200 columns; at most 8192 are served"):
        moe_tail(a)
    case = Case.of("moe_tail", "typical", 0, ranks=1, rows=1, latent=8200, channels=4, own=-1)
    assert "8200" in OPERATIONS["moe_tail"]["supports"](case)
