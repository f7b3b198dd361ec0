"""Experts for few rows: every (row, slot) pair streams its expert's weights through plain multiply-adds.

At one row each weight is used once, so nothing is gained by tensor cores: a program holds a few weight
rows, decodes 16 bytes (a whole block of 32 columns) at a time in registers, multiplies by the codes of the
activation and applies both block scales once a block. Codes and products are exact in FP32, sums are FP32.
The hidden lies between the two kernels in FP32 and is quantised by whoever reads it. Of the programs that
share output columns of a row, the last to end adds the 16 slots in order, so equal calls give equal bits.

What this cannot show: the subject's clusters of six and its block-scaled tensor-core instruction.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.experts_kernels import ASSEMBLED, _situ
from kernels_under_test.triton_portable.launch import interpreted, power_of_two, programmatic, workspace
from kernels_under_test.triton_portable.mx import from_e4m3, rescale, scale_code, scale_value, to_e4m3

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.moe.experts_arguments import ExpertsArguments

# Four bytes to the BF16 of their low and of their high nibbles, times 2**-126: bits moved, nothing computed.
E2M1_BITS = tl.constexpr("""
{
    .reg .b32 two, part;
    prmt.b32 two, $4, 0, 0x4140;
    shl.b32 part, two, 6;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $0, two, 12;
    lop3.b32 $0, $0, 0x80008000, part, 0xEA;
    shl.b32 part, two, 2;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $2, two, 8;
    lop3.b32 $2, $2, 0x80008000, part, 0xEA;
    prmt.b32 two, $4, 0, 0x4342;
    shl.b32 part, two, 6;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $1, two, 12;
    lop3.b32 $1, $1, 0x80008000, part, 0xEA;
    shl.b32 part, two, 2;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $3, two, 8;
    lop3.b32 $3, $3, 0x80008000, part, 0xEA;
}
""")
# The activation's codes are raised by 2**100, so that no product is denormal; 2**26 makes both good.
RAISED = tl.constexpr(2.0**100)
LOWERED = tl.constexpr(2.0**26)
COUNTERS = 1 << 14


@triton.jit
def _tiny(packed):
    """FP32 of the low and of the high nibbles of bytes (E2M1), times 2**-126."""
    if ASSEMBLED:
        even, odd = tl.inline_asm_elementwise(
            E2M1_BITS, "=&r,=&r,=&r,=&r,r", [packed], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    else:
        wide = packed.to(tl.int32)
        low, high = wide & 15, wide >> 4
        even = (((low & 7) << 6) | ((low & 8) << 12)).to(tl.int16).to(tl.bfloat16, bitcast=True)
        odd = (((high & 7) << 6) | ((high & 8) << 12)).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return even.to(tl.float32), odd.to(tl.float32)


@triton.jit
def _blocks(w_at, w_scale_at, rows_live, group, groups, even, odd, scale):
    """One step's products: [ROWS, GROUPS], a block of 32 columns each. ``even``, ``odd``: the activation's
    raised codes [GROUPS, 16]; ``scale``: of its blocks."""
    byte = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = rows_live[:, None] & (group < groups)[None, :]
    packed = tl.load(w_at[:, None, None] + byte[None, :, :], mask=inside[:, :, None], other=0)
    code = tl.load(w_scale_at[:, None] + group[None, :], mask=inside, other=0)
    low, high = _tiny(packed)
    block = tl.sum(low * even[None, :, :] + high * odd[None, :, :], axis=2)
    return block * LOWERED * scale_value(code.to(tl.int32)) * scale[None, :]


@triton.jit
def pair_up_kernel(
    x, x_scale, ids, w13, w13_scale, hidden, stride_x, stride_x_scale, stride_ids, stride_w, stride_w_row,
    stride_s, stride_s_row, slots, groups, live, padded,
    HALF: tl.constexpr, GROUPS: tl.constexpr, STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """hidden[pair, column] = SiTU of HALF gate and HALF up rows of the pair's expert; FP32. ``x`` holds two
    codes an element, as a weight byte holds their two weights."""
    pair = tl.program_id(1)
    row = (pair // slots).to(tl.int64)
    n = tl.arange(0, 2 * HALF)
    column = tl.program_id(0) * HALF + n % HALF
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.load(ids + row * stride_ids + pair % slots).to(tl.int64)
    line = ((n // HALF) * padded + column).to(tl.int64)
    w_at = w13 + expert * stride_w + line * stride_w_row
    w_scale_at = w13_scale + expert * stride_s + line * stride_s_row
    total = tl.zeros([2 * HALF, GROUPS], dtype=tl.float32)
    for step in range(0, STEPS):
        group = step * GROUPS + tl.arange(0, GROUPS)
        inside = group < groups
        at = x + row * stride_x + group[:, None] * 16 + tl.arange(0, 16)[None, :]
        two = tl.load(at, mask=inside[:, None], other=0)
        even = from_e4m3((two & 0xFF).to(tl.uint8)) * RAISED
        odd = from_e4m3(((two >> 8) & 0xFF).to(tl.uint8)) * RAISED
        code = tl.load(x_scale + row * stride_x_scale + group, mask=inside, other=0)
        scale = scale_value(code.to(tl.int32))
        total += _blocks(w_at, w_scale_at, column < live, group, groups, even, odd, scale)
    g, u = tl.split(tl.permute(tl.reshape(tl.sum(total, axis=1), [2, HALF]), [1, 0]))
    own = tl.program_id(0) * HALF + tl.arange(0, HALF)
    tl.store(hidden + pair.to(tl.int64) * live + own, _situ(g, u), mask=own < live)


@triton.jit
def _requantised(hidden, group, groups, FLOOR: tl.constexpr):
    """Raised E4M3 values of the hidden's even and odd columns [GROUPS, 16], and the scales of its blocks."""
    at = hidden + group[:, None] * 32 + tl.arange(0, 16)[None, :] * 2
    inside = (group < groups)[:, None]
    even = tl.load(at, mask=inside, other=0.0)
    odd = tl.load(at + 1, mask=inside, other=0.0)
    # NaN is ignored by the maximum, as in the subject's.
    size = tl.maximum(tl.where(even == even, tl.abs(even), 0.0), tl.where(odd == odd, tl.abs(odd), 0.0))
    code = scale_code(tl.max(size, axis=1), FLOOR)
    factor = rescale(code)[:, None]
    low, high = from_e4m3(to_e4m3(even * factor)), from_e4m3(to_e4m3(odd * factor))
    return low * RAISED, high * RAISED, scale_value(code)


@triton.jit
def pair_down_kernel(
    hidden, ids, weights, w2, w2_scale, rows, out, arrived, stride_ids, stride_weights, stride_w,
    stride_w_row, stride_s, stride_s_row, stride_rows, stride_slot, stride_out, slots, groups, live, width,
    FLOOR: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """rows[row, slot, columns] = bf16(W2 hidden) of one pair; the last of a row's slots adds them up."""
    tile, pair = tl.program_id(0), tl.program_id(1)
    row, slot = (pair // slots).to(tl.int64), pair % slots
    n = tile * ROWS + tl.arange(0, ROWS)
    group = tl.arange(0, GROUPS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.load(ids + row * stride_ids + slot).to(tl.int64)
    even, odd, scale = _requantised(hidden + pair.to(tl.int64) * live, group, groups, FLOOR)
    line = n.to(tl.int64)
    product = _blocks(
        w2 + expert * stride_w + line * stride_w_row, w2_scale + expert * stride_s + line * stride_s_row,
        n < width, group, groups, even, odd, scale,
    )  # fmt: skip
    mine = rows + row * stride_rows + n
    tl.store(mine + slot * stride_slot, tl.sum(product, axis=1).to(tl.bfloat16), mask=n < width)
    # All threads have stored before one of them counts this program; its acquire orders the loads below.
    tl.debug_barrier()
    counter = arrived + pair // slots * tl.num_programs(0) + tile
    before = tl.atomic_add(counter, 1, sem="acq_rel")
    tl.debug_barrier()
    if before == slots - 1:
        tl.store(counter, 0)
        total = tl.zeros([ROWS], dtype=tl.float32)
        for each in range(0, slots):
            v = tl.load(mine + each * stride_slot, mask=n < width, other=0.0, cache_modifier=".cg")
            total += v.to(tl.float32) * tl.load(weights + row * stride_weights + each).to(tl.float32)
        stored = total.to(tl.bfloat16).to(tl.float32)
        stored = tl.where(stored == 0.0, 0.0, stored)
        tl.store(out + row * stride_out + n, stored.to(tl.bfloat16), mask=n < width)


def pairs(a: ExpertsArguments, rows: Tensor) -> None:
    """``rows`` [B, slot, L] and ``a.out`` [B, L] of every (row, slot) pair for itself."""
    (batch, slots), width, here = a.ids.shape, a.out.shape[1], interpreted(a.x)
    count = batch * slots
    hidden = torch.empty(count, a.live, dtype=torch.float32, device=a.x.device)
    groups = width // 32
    half, step = (min(power_of_two(a.live), 128), min(power_of_two(groups), 16)) if here else (8, 32)
    pair_up_kernel[triton.cdiv(a.live, half), count](
        a.x.view(torch.int16), a.x_scale, a.ids, a.w13, a.w13_scale, hidden,
        a.x.stride(0) // 2, a.x_scale.stride(0), a.ids.stride(0), a.w13.stride(0), a.w13.stride(1),
        a.w13_scale.stride(0), a.w13_scale.stride(1), slots, groups, a.live, a.padded,
        HALF=half, GROUPS=step, STEPS=triton.cdiv(groups, step), num_warps=4, **programmatic(a.x),
    )  # fmt: skip
    tall, blocks = min(power_of_two(width), 512) if here else 32, power_of_two(a.live // 32)
    pair_down_kernel[triton.cdiv(width, tall), count](
        hidden, a.ids, a.weights, a.w2, a.w2_scale, rows, a.out,
        workspace("experts_pairs", COUNTERS, a.x.device),
        a.ids.stride(0), a.weights.stride(0), a.w2.stride(0), a.w2.stride(1), a.w2_scale.stride(0),
        a.w2_scale.stride(1), rows.stride(0), rows.stride(1), a.out.stride(0), slots, a.live // 32, a.live,
        width, FLOOR=a.hidden_rule == "floor", ROWS=tall, GROUPS=blocks, num_warps=4, **programmatic(a.x),
    )  # fmt: skip
