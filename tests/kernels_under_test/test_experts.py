"""The experts' kernels: grouping, both families on data whose sums are exact, refusals."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.experts import TACTICS, UNIT, dispatch, experts, reason
from kernels_under_test.triton_portable.experts_dot import _moved, block_scale
from kernels_under_test.triton_portable.experts_kernels import group_kernel, prepare_kernel
from tests.kernels_under_test.memory import same_bits
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.errors import UserError


def arguments(
    rows: int, slots: int = 2, experts: int = 5, width: int = 64, live: int = 32
) -> ExpertsArguments:
    """Equal scales: every FP32 sum of the products is a sum of small integers, exact in any order."""
    draw = torch.Generator().manual_seed(4)  # row r is the same in every batch

    def byte(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8).to(device())

    def scale(value: int, *shape: int) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.uint8, device=device())

    ids = torch.stack([torch.randperm(experts, generator=draw)[:slots] for _ in range(40)])[:rows]
    x = torch.randint(-8, 9, (40, width), generator=draw).float()[:rows]
    out = torch.full((rows, width), float("nan"), dtype=torch.bfloat16, device=device())
    return ExpertsArguments(
        x=x.to(torch.float8_e4m3fn).view(torch.uint8).to(device()),
        x_scale=scale(127, rows, width // 32),
        ids=ids.int().to(device()),
        weights=torch.rand(40, slots, generator=draw)[:rows].bfloat16().to(device()),
        w13=byte(experts, 2 * live, width // 2),
        w13_scale=scale(121, experts, 2 * live, width // 32),
        w2=byte(experts, width, live // 2),
        w2_scale=scale(122, experts, width, live // 32),
        out=out,
        rows=torch.full((rows, slots, width), float("nan"), dtype=torch.bfloat16, device=device()),
        live=live,
    )


def grouped(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert of every unit, and its pairs."""
    (rows, slots), pairs = ids.shape, ids.numel()
    units = min(pairs, experts + pairs // UNIT)
    x = torch.zeros(rows, 32, dtype=torch.uint8, device=device())
    latent = torch.empty(rows, 32, dtype=torch.float16, device=device())
    factors = torch.empty(rows, 1, dtype=torch.float32, device=device())
    sizes = (pairs, pairs, units, units * UNIT)
    by_expert, place, expert, members = (
        torch.full((n,), 99, dtype=torch.int32, device=device()) for n in sizes
    )
    prepare_kernel[(rows + -(-pairs // 16),)](
        x, x, latent, factors, ids, by_expert, place, 32, 32, ids.stride(0), 1, slots, pairs,
        rows, 1, BLOCKS=1, RANKED=16, CHUNK=16, PDL=False,
    )  # fmt: skip
    size = max(16, 1 << (pairs - 1).bit_length())
    group_kernel[(1,)](
        ids, by_expert, place, expert, members, ids.stride(0), slots, pairs, units, PAIRS=size, PDL=False
    )  # fmt: skip
    return expert.cpu(), members.cpu().reshape(units, UNIT)


@pytest.mark.parametrize(("rows", "slots", "experts"), [(5, 4, 30), (17, 2, 2), (33, 3, 4), (1, 1, 9)])
def test_every_pair_is_in_one_unit_of_its_expert(rows, slots, experts):
    draw = torch.Generator().manual_seed(rows)
    ids = (
        torch.stack([torch.randperm(experts, generator=draw)[:slots] for _ in range(rows)]).int().to(device())
    )
    expert, members = grouped(ids, experts)
    chosen = ids.flatten().cpu()
    held = members[members >= 0]
    assert sorted(held.tolist()) == list(range(rows * slots))
    for unit, owner in enumerate(expert.tolist()):
        mine = members[unit][members[unit] >= 0]
        assert len(mine) > 0 if owner >= 0 else len(mine) == 0
        assert mine.tolist() == sorted(mine.tolist())
        assert set(chosen[mine.long()].tolist()) <= {owner}
    used = expert[expert >= 0]
    assert used.tolist() == sorted(used.tolist())
    counts = torch.bincount(chosen.long())
    assert len(used) == int((-(-counts // UNIT)).sum())


def ran(lines: list[str], word: int) -> dict[str, int]:
    """The registers that the assembly's integer instructions leave."""
    held = {"word": word}
    for line in lines:
        name, operands = line.rstrip(";").split(" ", 1)
        to, *given = operands.split(", ")
        a, *more = (held[each] if each in held else int(each, 0) for each in given)
        match name:
            case "mov.b32":
                held[to] = a
            case "shl.b32":
                held[to] = a << more[0] & 0xFFFFFFFF
            case "shr.b32":
                held[to] = a >> more[0]
            case "and.b32":
                held[to] = a & more[0]
            case "lop3.b32":
                b, mask, table = more
                assert table == 0xE4
                held[to] = a & mask | b & ~mask
    return held


@pytest.mark.parametrize("word", [0x76543210, 0xFEDCBA98, 0x0F1E2D3C, 0x80C9A5E7])
def test_assembly_makes_pairs_of_every_code(word):
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()
    codes = torch.tensor([word >> 4 * i & 15 for i in range(8)])
    wanted = (values[codes & 7] * 2.0**-14).copysign(0.5 - (codes >> 3)).half().view(torch.uint16)
    found = ran(_moved("word", ["p0", "p1", "p2", "p3"]), word)
    pairs = [found[f"p{i}"] for i in range(4)]
    assert [p & 0xFFFF for p in pairs] + [p >> 16 for p in pairs] == wanted.tolist()


@triton.jit
def scales_kernel(codes, out):
    i = tl.arange(0, 256)
    tl.store(out + i, block_scale(tl.load(codes + i)))


def test_scales_of_all_codes():
    codes = torch.arange(256, device=device()).to(torch.uint8)
    out = torch.empty(256, dtype=torch.float32, device=device())
    scales_kernel[(1,)](codes, out)
    wanted = torch.exp2(torch.arange(255).double() - 127).float()
    assert torch.equal(out[:255].cpu(), wanted)
    assert bool(out[255].isnan())


def test_pairs_and_units_give_the_same_bits():
    few, many = arguments(4), arguments(5)
    experts(few)
    experts(many)
    assert not bool(few.rows.isnan().any())
    assert same_bits(few.rows, many.rows[:4])
    assert same_bits(few.out, many.out[:4])


@pytest.mark.parametrize("rows", [1, 6])
def test_rows_may_be_left_out_and_equal_calls_give_equal_bits(rows):
    a = arguments(rows)
    experts(a)
    first = a.out.clone()
    experts(dataclasses.replace(a, rows=None))
    assert same_bits(first, a.out)


def test_the_sum_runs_over_the_slots_in_order_and_has_no_negative_zero():
    a = arguments(2, slots=3)
    a.weights[1] = 0
    experts(a)
    total = torch.zeros(64, device=device())
    for slot in range(3):
        total = total + a.rows[0, slot].float() * a.weights[0, slot].float()
    assert same_bits(a.out[0], total.bfloat16())
    assert bool((a.out[1] == 0).all())
    assert not bool(torch.signbit(a.out[1]).any())


def test_dispatch_is_by_pairs_to_four_rows_and_by_units_above():
    assert [dispatch(batch).unit for batch in (1, 4, 5, 64, 999)] == ["pair"] * 2 + ["expert"] * 3
    assert all(dispatch(most) is tactic for most, tactic in TACTICS.items())
    assert list(TACTICS) == sorted(TACTICS)


def test_what_is_not_served_is_refused_before_launch():
    assert "whole blocks of 32; they are 48 and 64" in reason(1, 2, 48, 64)
    assert "there are 129 x 16" in reason(129, 16, 64, 64)
    a = arguments(1)
    memory = torch.zeros(a.w2.numel() + 8, dtype=torch.uint8, device=device())
    odd = dataclasses.replace(a, w2=memory[8:].view(a.w2.shape))
    with pytest.raises(UserError, match="rows of w2 must start on multiples of 16 bytes"):
        experts(odd)
    a.live = 48
    with pytest.raises(UserError, match="whole blocks of 32; they are 64 and 48"):
        experts(a)
