"""The kernels of the routed experts: MXFP4 weights decoded in registers, BF16 tensor cores, FP32 sums.

An E4M3 or E2M1 element times its power-of-two scale is exact in BF16, so products are those of the codes and
BF16 is where activations lie between the kernels: what MXFP8 keeps of the latent, then of the hidden, even
columns before odd ones. Weights are the left operand of ``tl.dot``, up to 16 rows of one expert the right
one; a byte holds two neighbours of K, so even and odd columns are two products.

A *unit* is what shares a pass over an expert's rows: up to 16 (row, slot) pairs that ``prepare_kernel`` and
``group_kernel`` brought together. Few rows do without (``experts_pairs``).

What this cannot show: the subject's persistent grid, its polling and its block-scaled tensor-core
instruction.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.mx import (
    block_maximum,
    from_e4m3,
    rescale,
    scale_code,
    scale_value,
    to_e4m3,
)

# On a device four bytes are decoded at a time, two BF16 a register; the interpreter has no assembler.
ASSEMBLED = tl.constexpr(device() == "cuda")
# $4: bytes b0 to b3; $5 and $6: scales of the first and of the last two of them, which need not be neighbours
# in a row. Bits 0 to 3 (even) and 4 to 7 (odd) of a byte are moved to where BF16 has its sign, its lowest
# exponent bits and its highest mantissa bit: the value times 2**-126, which 0x7E80 (2**126) makes good.
E2M1_TO_BF16 = tl.constexpr("""
{
    .reg .b32 two, part, big;
    mov.b32 big, 0x7E807E80;
    prmt.b32 two, $4, 0, 0x4140;
    shl.b32 part, two, 6;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $0, two, 12;
    lop3.b32 $0, $0, 0x80008000, part, 0xEA;
    mul.rn.bf16x2 $0, $0, big;
    mul.rn.bf16x2 $0, $0, $5;
    shl.b32 part, two, 2;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $2, two, 8;
    lop3.b32 $2, $2, 0x80008000, part, 0xEA;
    mul.rn.bf16x2 $2, $2, big;
    mul.rn.bf16x2 $2, $2, $5;
    prmt.b32 two, $4, 0, 0x4342;
    shl.b32 part, two, 6;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $1, two, 12;
    lop3.b32 $1, $1, 0x80008000, part, 0xEA;
    mul.rn.bf16x2 $1, $1, big;
    mul.rn.bf16x2 $1, $1, $6;
    shl.b32 part, two, 2;
    and.b32 part, part, 0x01C001C0;
    shl.b32 $3, two, 8;
    lop3.b32 $3, $3, 0x80008000, part, 0xEA;
    mul.rn.bf16x2 $3, $3, big;
    mul.rn.bf16x2 $3, $3, $6;
}
""")

UNIT = tl.constexpr(16)  # rows of one expert that share a pass over its weights; the narrowest ``tl.dot``
NOBODY = tl.constexpr(1 << 20)


@triton.jit
def _tanh(x):
    size = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(x < 0, -size, size)


@triton.jit
def _situ(g, u):
    """4 tanh(g / 4) sigmoid(g) * 25 tanh(u / 25)"""
    half = 4.0 * _tanh(g * 0.25) * (1.0 / (1.0 + tl.exp(-g)))
    return half * (25.0 * _tanh(u * 0.04))


@triton.jit
def _e2m1(nibble):
    """BF16 of E2M1 codes in the low four bits (int32): moved in place they are an FP32 times 2**-126."""
    pattern = ((nibble & 7) << 22) | ((nibble & 8) << 28)
    return (pattern.to(tl.float32, bitcast=True) * 2.0**126).to(tl.bfloat16)


@triton.jit
def _unpacked(packed, scale):
    """BF16 values of the low and of the high nibbles of bytes (uint8), times ``scale`` (BF16)."""
    if ASSEMBLED:
        even, odd = tl.inline_asm_elementwise(
            E2M1_TO_BF16, "=&r,=&r,=&r,=&r,r,r,r", [packed, scale], (tl.bfloat16, tl.bfloat16),
            is_pure=True, pack=4,
        )  # fmt: skip
    else:
        wide = packed.to(tl.int32)
        even, odd = _e2m1(wide & 15) * scale, _e2m1(wide >> 4) * scale
    return even, odd


@triton.jit
def _weights(w_at, w_scale_at, at, stop, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """BF16 even and odd columns [ROWS, BYTES] of bytes ``at`` on, below ``stop``; 16 bytes share a scale."""
    group = at // 16 + tl.arange(0, BYTES // 16)
    inside = group * 16 < stop
    byte = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    packed = tl.load(w_at[:, None, None] + byte[None, :, :], mask=inside[None, :, None], other=0)
    code = tl.load(w_scale_at[:, None] + group[None, :], mask=inside[None, :], other=0)
    scale = scale_value(code.to(tl.int32)).to(tl.bfloat16)
    scale = tl.broadcast_to(scale[:, :, None], [ROWS, BYTES // 16, 16])
    even, odd = _unpacked(packed, scale)
    return tl.reshape(even, [ROWS, BYTES]), tl.reshape(odd, [ROWS, BYTES])


@triton.jit
def _product(x_at, live, w_at, w_scale_at, bytes_, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """sum over K of W[n] x[m], FP32 [ROWS, UNIT]. ``x_at``: rows of ``bytes_`` even, then as many odd
    columns; a row that is not ``live`` counts as zero."""
    total = tl.zeros([ROWS, UNIT], dtype=tl.float32)
    for at in range(0, bytes_, BYTES):
        k = at + tl.arange(0, BYTES)
        here = x_at[None, :] + k[:, None]
        mask = live[None, :] & (k < bytes_)[:, None]
        w_even, w_odd = _weights(w_at, w_scale_at, at, bytes_, ROWS, BYTES)
        total = tl.dot(w_even, tl.load(here, mask=mask, other=0.0), total)
        total = tl.dot(w_odd, tl.load(here + bytes_, mask=mask, other=0.0), total)
    return total


@triton.jit
def _expert_of(ids, stride_ids, slots, pair, pairs, nobody):
    at = ids + (pair // slots).to(tl.int64) * stride_ids + pair % slots
    return tl.load(at, mask=pair < pairs, other=nobody)


# -- before the products ---------------------------------------------------------------------------


@triton.jit
def _decode(x, x_scale, latent, stride_x, stride_x_scale, bytes_, row, piece, BLOCK: tl.constexpr):
    """latent[row]: BF16 of MXFP8 codes, even columns, then odd ones. ``x`` holds two codes an element."""
    k = piece * BLOCK + tl.arange(0, BLOCK)
    inside = k < bytes_
    two = tl.load(x + row * stride_x + k, mask=inside, other=0)
    code = tl.load(x_scale + row * stride_x_scale + k // 16, mask=inside, other=0)
    scale = scale_value(code.to(tl.int32))
    to = latent + row * bytes_ * 2 + k
    even = from_e4m3((two & 0xFF).to(tl.uint8)) * scale
    odd = from_e4m3(((two >> 8) & 0xFF).to(tl.uint8)) * scale
    tl.store(to, even.to(tl.bfloat16), mask=inside)
    tl.store(to + bytes_, odd.to(tl.bfloat16), mask=inside)


@triton.jit
def _rank(
    ids, by_expert, place_in, stride_ids, slots, pairs, part, RANKED: tl.constexpr, CHUNK: tl.constexpr
):
    """by_expert[i]: the pair that is i-th by expert, then row; place_in[i]: how many of its expert came."""
    pair = part * RANKED + tl.arange(0, RANKED)
    mine = _expert_of(ids, stride_ids, slots, pair, pairs, NOBODY)[:, None]
    rank = tl.zeros([RANKED], dtype=tl.int32)
    place = tl.zeros([RANKED], dtype=tl.int32)
    for start in range(0, pairs, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = _expert_of(ids, stride_ids, slots, other, pairs, NOBODY)[None, :]
        ahead = (theirs == mine) & (other[None, :] < pair[:, None])
        place += tl.sum(ahead.to(tl.int32), axis=1)
        rank += tl.sum((ahead | (theirs < mine)).to(tl.int32), axis=1)
    tl.store(by_expert + rank, pair, mask=pair < pairs)
    tl.store(place_in + rank, place, mask=pair < pairs)


@triton.jit
def prepare_kernel(
    x, x_scale, latent, ids, by_expert, place_in, stride_x, stride_x_scale, stride_ids, bytes_, slots, pairs,
    decoders, pieces, BLOCK: tl.constexpr, RANKED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The first ``decoders`` programs decode the latent, the others (none for few rows) sort the pairs."""
    program = tl.program_id(0)
    if program < decoders:
        row, piece = (program // pieces).to(tl.int64), program % pieces
        _decode(x, x_scale, latent, stride_x, stride_x_scale, bytes_, row, piece, BLOCK)
    else:
        _rank(ids, by_expert, place_in, stride_ids, slots, pairs, program - decoders, RANKED, CHUNK)


@triton.jit
def group_kernel(
    ids, by_expert, place_in, unit_expert, unit_pairs, stride_ids, slots, pairs, units, PAIRS: tl.constexpr
):
    """One program: units of up to ``UNIT`` pairs of one expert, experts ascending; -1 where nobody is."""
    i = tl.arange(0, PAIRS)
    for start in range(0, units, PAIRS):
        tl.store(unit_expert + start + i, tl.full([PAIRS], -1, tl.int32), mask=start + i < units)
    for start in range(0, units * UNIT, PAIRS):
        tl.store(unit_pairs + start + i, tl.full([PAIRS], -1, tl.int32), mask=start + i < units * UNIT)
    tl.debug_barrier()
    pair = tl.load(by_expert + i, mask=i < pairs, other=0)
    place = tl.load(place_in + i, mask=i < pairs, other=1)
    unit = tl.cumsum((place % UNIT == 0).to(tl.int32), axis=0) - 1
    tl.store(unit_pairs + unit * UNIT + place % UNIT, pair, mask=i < pairs)
    expert = _expert_of(ids, stride_ids, slots, pair, pairs, NOBODY)
    tl.store(unit_expert + unit, expert, mask=(i < pairs) & (place % UNIT == 0))


@triton.jit
def _members(unit_expert, unit_pairs, unit):
    """Expert of a unit (-1: none) and its pairs, of which the first ones are present (others are -1)."""
    expert = tl.load(unit_expert + unit)
    pair = tl.load(unit_pairs + unit * UNIT + tl.arange(0, UNIT))
    return expert.to(tl.int64), pair.to(tl.int64)


# -- the products ----------------------------------------------------------------------------------


@triton.jit
def up_kernel(
    latent, w13, w13_scale, unit_expert, unit_pairs, hidden,
    stride_w, stride_w_row, stride_s, stride_s_row, slots, bytes_, live, padded,
    FLOOR: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """hidden[pair]: what MXFP8 keeps of SiTU(W13 x), one block of 32 columns of one unit; even, then odd."""
    tile, unit = tl.program_id(0), tl.program_id(1)
    expert, pair = _members(unit_expert, unit_pairs, unit)
    if expert >= 0:
        present = pair >= 0
        row = tl.where(present, pair // slots, 0)
        n = tl.arange(0, 64)
        n = ((n // 32) * padded + tile * 32 + n % 32).to(tl.int64)  # 32 gate rows, their 32 up rows
        total = _product(
            latent + row * bytes_ * 2, present,
            w13 + expert * stride_w + n * stride_w_row, w13_scale + expert * stride_s + n * stride_s_row,
            bytes_, 64, BYTES,
        )  # fmt: skip
        g, u = tl.split(tl.permute(tl.reshape(total, [2, 32, UNIT]), [1, 2, 0]))
        h = _situ(g, u)
        code = scale_code(block_maximum(h, 0), FLOOR)[None, :]
        kept = from_e4m3(to_e4m3(h * rescale(code))) * scale_value(code)
        i = tl.arange(0, 32)[:, None]
        to = hidden + pair[None, :] * live + (i % 2) * (live // 2) + tile * 16 + i // 2
        tl.store(to, kept.to(tl.bfloat16), mask=present[None, :] & (i >= 0))


@triton.jit
def down_kernel(
    hidden, w2, w2_scale, unit_expert, unit_pairs, rows,
    stride_w, stride_w_row, stride_s, stride_s_row, stride_rows, stride_slot,
    slots, live, width, ROWS: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """rows[row, slot, column] = bf16(W2 hidden) of one unit."""
    unit = tl.program_id(1)
    expert, pair = _members(unit_expert, unit_pairs, unit)
    if expert >= 0:
        present = pair >= 0
        held = tl.where(present, pair, 0)
        n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        read = tl.minimum(n, width - 1).to(tl.int64)
        total = _product(
            hidden + held * live, present,
            w2 + expert * stride_w + read * stride_w_row, w2_scale + expert * stride_s + read * stride_s_row,
            live // 2, ROWS, BYTES,
        )  # fmt: skip
        to = rows + (held // slots) * stride_rows + (held % slots) * stride_slot
        mask = present[None, :] & (n < width)[:, None]
        tl.store(to[None, :] + n[:, None], total.to(tl.bfloat16), mask=mask)


@triton.jit
def combine_kernel(
    rows, weights, out, stride_rows, stride_slot, stride_weights, stride_out, slots, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row, column] = bf16(sum over slots, in order, of rows * weights); -0 becomes +0."""
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for slot in range(0, slots):
        v = tl.load(rows + row * stride_rows + slot * stride_slot + column, mask=column < width, other=0.0)
        total += v.to(tl.float32) * tl.load(weights + row * stride_weights + slot).to(tl.float32)
    stored = total.to(tl.bfloat16).to(tl.float32)
    stored = tl.where(stored == 0.0, 0.0, stored)
    tl.store(out + row * stride_out + column, stored.to(tl.bfloat16), mask=column < width)
