"""The shared-expert kernels: small integers at every threshold, where every bit is known, and equal calls."""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.launch import k_ranges
from kernels_under_test.triton_portable.precise import situ
from kernels_under_test.triton_portable.shared_expert import (
    TACTICS,
    dispatch,
    kernels,
    shard,
    shared_expert,
)
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.contract import Case
from validation.contracts.moe.shared import SharedExpertArguments
from validation.errors import UserError


def arguments(rows: int, ranks: int, hidden: int, width: int) -> SharedExpertArguments:
    """Integers between NaN. Gates are 0 or far above where tanh and sigmoid end in FP32, ups 0 or beyond
    their limit, so that every activation is 0 or +-100 exactly."""
    draw = torch.Generator().manual_seed(rows + hidden + width)
    h = torch.zeros(rows, hidden)
    h[torch.arange(rows), torch.randint(0, hidden, (rows,), generator=draw)] = 4.0
    gate_up = torch.randint(0, 2, (ranks, 2 * width, hidden), generator=draw) * 256.0
    gate_up[:, width:] *= torch.randint(0, 2, (ranks, width, hidden), generator=draw) * 2 - 1
    down = torch.randint(-1, 2, (ranks, hidden, width), generator=draw)
    partial, out = torch.full((ranks, rows, hidden), NAN), torch.full((rows, hidden), NAN)
    return SharedExpertArguments(*(spread(t.bfloat16()) for t in (h, gate_up, down, partial, out)))


def expected(a: SharedExpertArguments) -> torch.Tensor:
    both = a.h.double() @ a.gate_up.double().mT
    gate, up = both[..., : a.width], both[..., a.width :]
    hidden = torch.where(gate > 0, 100.0, 0.0).double() * torch.sign(up)
    return (hidden @ a.down.double().mT).bfloat16()


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17, 33, 65])  # both sides of each tactic, and two row blocks
@pytest.mark.parametrize(("ranks", "hidden", "width"), [(2, 64, 32), (3, 37, 20), (1, 300, 5)])
def test_every_bit_is_right(rows: int, ranks: int, hidden: int, width: int) -> None:
    a = arguments(rows, ranks, hidden, width)
    shared_expert(a)
    assert same_bits(a.partial, expected(a))
    total = expected(a)[0].float()
    for part in expected(a)[1:]:
        total = total + part.float()
    assert same_bits(a.out, total.bfloat16())
    assert not bool(torch.signbit(a.out[a.out == 0]).any())


@pytest.mark.parametrize("rows", [2, 5])
def test_one_rank_alone_sends_what_it_sends_among_others(rows: int) -> None:
    a = arguments(rows, 3, 64, 24)
    a.h.copy_(torch.randn(rows, 64))
    shared_expert(a)
    alone = torch.full_like(a.partial[1:2], NAN)
    shard(a.h, a.gate_up[1:2], a.down[1:2], alone, a.beta, a.linear_beta)
    assert same_bits(alone[0], a.partial[1])


@pytest.mark.parametrize("rows", [1, 4])
def test_equal_calls_give_equal_bits(rows: int) -> None:
    a = arguments(rows, 2, 300, 40)
    a.h.copy_(torch.randn(rows, 300))
    shared_expert(a)
    first = a.out.clone(), a.partial.clone()
    shared_expert(a)
    assert same_bits(a.out, first[0])
    assert same_bits(a.partial, first[1])


def test_dispatch_is_skinny_to_two_rows_and_split_k_above() -> None:
    assert [dispatch(rows).path for rows in (1, 2, 3, 64, 500)] == ["skinny"] * 2 + ["split_k"] * 3
    assert all(dispatch(most) is tactic for most, tactic in TACTICS.items())
    case = Case.of("shared_expert", "typical", 0, ranks=8, rows=3, hidden=64, width=8)
    assert kernels(case)[0] == "gate_up_split_kernel"


def test_splits_of_k_cover_it_and_fill_the_device() -> None:
    for channels, k in ((1536, 7168), (768, 7168), (40, 300), (8, 31)):
        splits, width = k_ranges(channels, k, 64, 128)
        assert (splits - 1) * width < k <= splits * width
    assert [k_ranges(c, 7168, 64, 128)[0] * c // 64 for c in (1536, 768)] == [168, 168]


def test_a_transposed_weight_is_refused() -> None:
    a = arguments(1, 1, 16, 4)
    a.down = a.down.mT.contiguous().mT
    with pytest.raises(UserError, match="down must be dense along its last axis"):
        shared_expert(a)


@triton.jit
def activation_kernel(gate, up, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < n, other=0.0)
    u = tl.load(up + at, mask=at < n, other=0.0)
    tl.store(out + at, situ(g, u, 4.0, 25.0), mask=at < n)


def test_the_activation_is_the_function_to_a_few_ulps() -> None:
    """Over BF16 gates and ups near and far from 0 whose activation is a normal number, against float64."""
    every = torch.arange(-32768, 32768, 3).to(torch.int16).view(torch.bfloat16).float()
    every = every[every.isfinite() & (every.abs() < 80) & (every.abs() > 2.0**-60)]
    gate, up = every.to(device()), every.flip(0).contiguous().to(device())
    out = torch.empty_like(gate)
    activation_kernel[(1,)](gate, up, out, gate.numel(), BLOCK=32768)
    g, u = gate.double(), up.double()
    truth = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)
    normal = truth.abs() > 2.0**-120
    # exp 2 + 0.72 |x| ulps at |x| <= 80, two tanh of 2, a division of 2, five roundings: below 72 ulps.
    near = (out.double() - truth).abs() <= 72 * 2.0**-23 * truth.abs()
    assert bool(near[normal].all())
