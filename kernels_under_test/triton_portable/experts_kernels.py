"""The kernels of the routed experts: MXFP4 weights times MXFP8 activations, FP32 sums.

A *unit* is what shares a pass over an expert's rows: for few rows one (row, slot) pair, for more up to two
pairs that ``prepare_kernel`` and ``group_kernel`` brought together. A program streams 64 rows of an expert
once, four blocks of 32 columns at a time (``experts_dot``). Of the activations and of the hidden lies there
what MXFP8 keeps of them. Of the programs that share output columns of a row, the last to end adds the 16
slots in order, so equal calls give equal bits.

What this cannot show: the subject's persistent grid, its polling, its clusters of six and its block-scaled
tensor-core instruction.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl

from kernels_under_test.triton_portable.experts_dot import LOWERED, block_sums, store_pairs
from kernels_under_test.triton_portable.mx import block_maximum, rescale, scale_code, scale_value, to_e4m3
from kernels_under_test.triton_portable.precise import situ
from kernels_under_test.triton_portable.rank_partials import published

UNIT = tl.constexpr(2)  # rows of one expert that share a pass over its weights
NOBODY = tl.constexpr(1 << 20)


@triton.jit
def _expert_of(ids, stride_ids, slots, pair, pairs, nobody):
    at = ids + (pair // slots).to(tl.int64) * stride_ids + pair % slots
    return tl.load(at, mask=pair < pairs, other=nobody)


# -- before the products ---------------------------------------------------------------------------


@triton.jit
def _decode(x, x_scale, pairs, factors, stride_x, stride_x_scale, groups, row, piece, BLOCKS: tl.constexpr):
    """One piece of a row of MXFP8 as ``experts_dot`` wants it."""
    block = piece * BLOCKS + tl.arange(0, BLOCKS)
    live = block < groups
    at = x + row * stride_x + block[:, None] * 32 + tl.arange(0, 32)[None, :]
    codes = tl.load(at, mask=live[:, None], other=0)
    scale = tl.load(x_scale + row * stride_x_scale + block, mask=live, other=0).to(tl.int32)
    store_pairs(codes, scale, pairs + row * groups * 32, factors + row * groups, block, live)


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
    x, x_scale, latent, factors, ids, by_expert, place_in, stride_x, stride_x_scale, stride_ids,
    groups, slots, pairs, decoders, pieces,
    BLOCKS: tl.constexpr, RANKED: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first ``decoders`` programs decode the activations, the others (none for few rows) sort
    the pairs."""
    program = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if program < decoders:
        row, piece = (program // pieces).to(tl.int64), program % pieces
        _decode(x, x_scale, latent, factors, stride_x, stride_x_scale, groups, row, piece, BLOCKS)
    else:
        _rank(ids, by_expert, place_in, stride_ids, slots, pairs, program - decoders, RANKED, CHUNK)


@triton.jit
def group_kernel(
    ids, by_expert, place_in, unit_expert, unit_pairs, stride_ids, slots, pairs, units,
    PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: units of up to ``UNIT`` pairs of one expert, experts ascending; -1 where nobody is."""
    i = tl.arange(0, PAIRS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
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
def _members(unit_expert, unit_pairs, ids, stride_ids, slots, unit, GROUPED: tl.constexpr):
    """Expert of a unit (-1: none) and its two pairs (-1: none)."""
    if GROUPED:
        expert = tl.load(unit_expert + unit)
        one, two = tl.load(unit_pairs + unit * UNIT), tl.load(unit_pairs + unit * UNIT + 1)
    else:
        expert = tl.load(ids + (unit // slots).to(tl.int64) * stride_ids + unit % slots)
        one, two = unit, -1
    return expert.to(tl.int64), one, two


# -- the products ----------------------------------------------------------------------------------


@triton.jit
def _words(w, scales, rows, rows_scale, live, group, groups):
    """Weight words [items, 4] and scale codes [items] of blocks ``group`` of rows at ``rows``."""
    inside = live & (group < groups)
    at = w + (rows + group * 4)[:, None] + tl.arange(0, 4)[None, :]
    words = tl.load(at, mask=inside[:, None], other=0)
    return words, tl.load(scales + rows_scale + group, mask=inside, other=0)


@triton.jit
def _products(
    x, factors, one, two, w, scales, stride, stride_scale, first, apart, live, live_apart, groups,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, AHEAD: tl.constexpr, STEPS: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Weight rows ``first + i`` and ``first + apart + i``, i < ROWS, times activation rows ``one`` and
    ``two``: FP32 [ROWS, 2], the upper rows first, of each activation row. AHEAD * GROUPS blocks of a row are
    taken at a time, while the next ones are asked for. ``WAIT``: for the kernel before, once the first
    weights have been asked for. ``live``: how many rows there are, of either kind."""
    item = tl.arange(0, AHEAD * ROWS * GROUPS)
    row, block = item % (ROWS * GROUPS) // GROUPS, item // (ROWS * GROUPS) * GROUPS + item % GROUPS
    here, there = (first + row).to(tl.int64), (first + apart + row).to(tl.int64)
    upper, lower = here * stride * 4, there * stride * 4
    upper_scale, lower_scale = here * stride_scale, there * stride_scale
    top, top_code = _words(w, scales, upper, upper_scale, row < live, block, groups)
    bottom, bottom_code = _words(w, scales, lower, lower_scale, row < live_apart, block, groups)
    one, two = one.to(tl.int64) * groups, two.to(tl.int64) * groups
    if WAIT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    number = tl.arange(0, 4)[None, :]
    total = tl.zeros([AHEAD * ROWS * GROUPS, 4], dtype=tl.float32)
    for _ in range(0, STEPS):
        words, code, words_apart, code_apart = top, top_code, bottom, bottom_code
        group = block
        block += AHEAD * GROUPS
        top, top_code = _words(w, scales, upper, upper_scale, row < live, block, groups)
        bottom, bottom_code = _words(w, scales, lower, lower_scale, row < live_apart, block, groups)
        inside = group < groups
        sums = block_sums(words, words_apart, x, (one + group) * 16, (two + group) * 16, inside)
        of_one = tl.load(factors + one + group, mask=inside, other=0.0)[:, None]
        of_two = tl.load(factors + two + group, mask=inside, other=0.0)[:, None]
        above, below = scale_value(code.to(tl.int32))[:, None], scale_value(code_apart.to(tl.int32))[:, None]
        weight = tl.where(number < 2, above, below)
        total += sums * LOWERED * weight * tl.where(number % 2 == 0, of_one, of_two)
    parts = tl.reshape(total, [AHEAD, ROWS, GROUPS, 2, 2])
    return tl.split(tl.sum(tl.sum(parts, axis=2), axis=0))


@triton.jit
def _hide(gate_up, pair, tile, blocks, hidden, factors, FLOOR: tl.constexpr):
    """Store one block of a pair's hidden: what MXFP8 keeps of SiTU of 32 gate and 32 up values [32, 2]."""
    g, u = tl.split(gate_up)
    h = situ(g, u, 4.0, 25.0)
    code = scale_code(block_maximum(h, 0), FLOOR)
    codes = to_e4m3(h * rescale(code))[None, :]
    block = pair.to(tl.int64) * blocks + tile + tl.arange(0, 1)
    store_pairs(codes, code + tl.zeros([1], dtype=tl.int32), hidden, factors, block, block >= 0)


@triton.jit
def up_kernel(
    latent, factors, ids, unit_expert, unit_pairs, w13, w13_scale, hidden, hidden_factors,
    stride_ids, stride_w, stride_w_row, stride_s, stride_s_row, slots, groups, blocks, padded,
    FLOOR: tl.constexpr, GROUPED: tl.constexpr, GROUPS: tl.constexpr, AHEAD: tl.constexpr,
    STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One block of the hidden of a unit's pairs, from 32 gate and 32 up rows of its expert. ``latent`` and
    ``w13`` are words, strides of ``w13`` four of them, so that a thread takes a block by one load."""
    tile, unit = tl.program_id(0), tl.program_id(1)
    # Ids, but not units, were complete before the kernel before this one began.
    if PDL and GROUPED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert, one, two = _members(unit_expert, unit_pairs, ids, stride_ids, slots, unit, GROUPED)
    if expert >= 0:
        first, second = _products(
            latent, factors, one // slots, tl.where(two < 0, one, two) // slots,
            w13 + expert * stride_w * 4, w13_scale + expert * stride_s, stride_w_row, stride_s_row,
            tile * 32, padded, 32, 32, groups, 32, GROUPS, AHEAD, STEPS, PDL and not GROUPED,
        )  # fmt: skip
        _hide(first, one, tile, blocks, hidden, hidden_factors, FLOOR)
        if two >= 0:
            _hide(second, two, tile, blocks, hidden, hidden_factors, FLOOR)


@triton.jit
def _give(
    halves, pair, n, width, rows, out, weights, arrived, slots, stride_rows, stride_slot, stride_weights,
    stride_out,
):  # fmt: skip
    """Store a tile of one pair's row, its halves [ROWS, 2]; the last of the row's slots adds them up."""
    row, slot = (pair // slots).to(tl.int64), pair % slots
    product = tl.reshape(tl.permute(halves, [1, 0]), [n.shape[0]])
    mine = rows + row * stride_rows + n
    tl.store(mine + slot * stride_slot, product.to(tl.bfloat16), mask=n < width)
    # All threads have stored before one of them counts this program; its acquire orders the loads below.
    tl.debug_barrier()
    counter = arrived + row * tl.num_programs(0) + tl.program_id(0)
    before = tl.atomic_add(counter, 1, sem="acq_rel")
    tl.debug_barrier()
    if before == slots - 1:
        tl.store(counter, 0)
        total = tl.zeros([n.shape[0]], dtype=tl.float32)
        for each in range(0, slots):
            v = tl.load(mine + each * stride_slot, mask=n < width, other=0.0, cache_modifier=".cg")
            total += v.to(tl.float32) * tl.load(weights + row * stride_weights + each).to(tl.float32)
        tl.store(out + row * stride_out + n, published(total), mask=n < width)


@triton.jit
def down_kernel(
    hidden, factors, ids, unit_expert, unit_pairs, weights, w2, w2_scale, rows, out, arrived,
    stride_ids, stride_weights, stride_w, stride_w_row, stride_s, stride_s_row, stride_rows, stride_slot,
    stride_out, slots, blocks, width,
    GROUPED: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, AHEAD: tl.constexpr,
    STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """rows[row, slot, columns] = bf16(W2 hidden) of a unit's pairs, and out[row, columns] when all slots of
    the row are there; 2 * ROWS columns. ``hidden`` and ``w2`` are words, strides of ``w2`` four of them."""
    unit = tl.program_id(1)
    # Units and weights were complete before the kernel before this one began: they need not wait for it.
    expert, one, two = _members(unit_expert, unit_pairs, ids, stride_ids, slots, unit, GROUPED)
    if expert >= 0:
        begin = tl.program_id(0) * (2 * ROWS)
        first, second = _products(
            hidden, factors, one, tl.where(two < 0, one, two), w2 + expert * stride_w * 4,
            w2_scale + expert * stride_s, stride_w_row, stride_s_row, begin, ROWS, width - begin,
            width - begin - ROWS, blocks, ROWS, GROUPS, AHEAD, STEPS, PDL,
        )  # fmt: skip
        n = begin + tl.arange(0, 2 * ROWS)
        _give(
            first, one, n, width, rows, out, weights, arrived, slots, stride_rows, stride_slot,
            stride_weights, stride_out,
        )  # fmt: skip
        if two >= 0:
            _give(
                second, two, n, width, rows, out, weights, arrived, slots, stride_rows, stride_slot,
                stride_weights, stride_out,
            )  # fmt: skip
