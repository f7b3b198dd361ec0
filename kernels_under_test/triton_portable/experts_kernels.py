"""The kernels of the routed experts: MXFP4 weights times MXFP8 activations, FP32 sums.

A *unit* is what shares a pass over an expert's rows: for few rows one (row, slot) pair, for more up to two
pairs that ``prepare_kernel`` and ``group_kernel`` brought together. A program streams 64 rows of an expert
once, four blocks of 32 columns at a time (``experts_dot``). Of the activations and of the hidden lies there
what MXFP8 keeps of them. The 16 slots of a row are added in order, so equal calls give equal bits: by
``slots_kernel``, or, for few rows, by the last to end of the programs that share output columns of a row.

What this cannot show: the subject's persistent grid, its polling, its clusters of six and its block-scaled
tensor-core instruction.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl

from kernels_under_test.triton_portable.experts_dot import (
    LOWERED,
    activations,
    block_scale,
    block_sums,
    hold_order,
    store_pairs,
)
from kernels_under_test.triton_portable.mx import block_maximum, rescale, scale_code, to_e4m3
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
def _place(w, scales, row, group, STRIDE: tl.constexpr, STRIDE_SCALE: tl.constexpr):
    """Where block ``group`` of a weight row begins: words [items, 4], and its scale [items]."""
    words = w + ((row * STRIDE + group) * 4)[:, None] + tl.arange(0, 4)[None, :]
    return words, scales + row * STRIDE_SCALE + group


@triton.jit
def _places(
    w, scales, row, rows, group, STRIDE: tl.constexpr, STRIDE_SCALE: tl.constexpr, APART: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """The same of rows ``row``, ``row + APART``, ``row + 1`` and ``row + APART + 1``, words first. If all of
    them exist, one address serves the four."""
    row = row.to(tl.int64)
    if FULL:
        a, a_scale = _place(w, scales, row, group, STRIDE, STRIDE_SCALE)
        b, b_scale = a + APART * STRIDE * 4, a_scale + APART * STRIDE_SCALE
        c, c_scale = a + STRIDE * 4, a_scale + STRIDE_SCALE
        d, d_scale = b + STRIDE * 4, b_scale + STRIDE_SCALE
    else:
        last = (rows - 1).to(tl.int64)
        a, a_scale = _place(w, scales, tl.minimum(row, last), group, STRIDE, STRIDE_SCALE)
        b, b_scale = _place(w, scales, tl.minimum(row + APART, last), group, STRIDE, STRIDE_SCALE)
        c, c_scale = _place(w, scales, tl.minimum(row + 1, last), group, STRIDE, STRIDE_SCALE)
        d, d_scale = _place(w, scales, tl.minimum(row + APART + 1, last), group, STRIDE, STRIDE_SCALE)
    return a, b, c, d, a_scale, b_scale, c_scale, d_scale


@triton.jit
def _ask(top, bottom, top_scale, bottom_scale, past, group, last, EVEN: tl.constexpr, HOLD: tl.constexpr):
    """Words and scale codes of two weight rows, ``past`` blocks further on. A block beyond the ``last`` is
    the last one once more: what it is multiplied with is zero."""
    if EVEN:
        at, at_scale = past * 4, past
    else:
        at_scale = tl.minimum(group + past, last) - group
        at = (at_scale * 4)[:, None]
    words, words_apart = tl.load(top + at), tl.load(bottom + at)
    code, code_apart = tl.load(top_scale + at_scale), tl.load(bottom_scale + at_scale)
    if HOLD:
        hold_order()
    return words, words_apart, code.to(tl.int32), code_apart.to(tl.int32)


@triton.jit
def _add(total, asked, held, factor):
    """The sums, and the products of one block of two weight rows."""
    scale, scale_apart = block_scale(asked[2])[:, None], block_scale(asked[3])[:, None]
    weight = tl.where(tl.arange(0, 4)[None, :] < 2, scale, scale_apart)
    return total + block_sums(asked[0], asked[1], held) * weight * factor


@triton.jit
def _step(
    upper, lower, asked, asked_lower, places, x, zeros, factors, one, two, past, further, group, last,
    MORE: tl.constexpr, EVEN: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """Both sums with the blocks that were asked for, and (if there are ``MORE``) what is asked for
    meanwhile, ``further`` on: ``places`` are those of two rows, of two more, and of the scales of all."""
    now = group + past
    inside = (now >= 0) if EVEN else (now <= last)
    block = now if EVEN else tl.minimum(now, last)
    held = activations(x, zeros, (one + now) * 16, (two + now) * 16, inside)
    of_one, of_two = tl.load(factors + one + block)[:, None], tl.load(factors + two + block)[:, None]
    factor = tl.where(tl.arange(0, 4)[None, :] % 2 == 0, of_one, of_two)
    next, next_lower = asked, asked_lower
    if MORE:
        next = _ask(places[0], places[1], places[4], places[5], further, group, last, EVEN, HOLD)
    upper = _add(upper, asked, held, factor)
    if MORE:
        next_lower = _ask(places[2], places[3], places[6], places[7], further, group, last, EVEN, HOLD)
    return upper, _add(lower, asked_lower, held, factor), next, next_lower


@triton.jit
def _sums(
    a, b, at, x, zeros, factors, one, two, group, last, TAKEN: tl.constexpr, STEPS: tl.constexpr,
    EVEN: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """Sums [items, 4] over all blocks, of two rows each (see ``block_sums``); the first blocks, ``a`` and
    ``b``, have been asked for."""
    upper = tl.zeros(a[0].shape, dtype=tl.float32)
    lower = tl.zeros(a[0].shape, dtype=tl.float32)
    # Two steps at a time: what has been asked for needs no copy to become what is at hand.
    for i in range(0, (STEPS - 1) // 2):
        past = i * 2 * TAKEN
        upper, lower, c, d = _step(
            upper, lower, a, b, at, x, zeros, factors, one, two, past, past + TAKEN, group, last,
            True, EVEN, HOLD,
        )  # fmt: skip
        upper, lower, a, b = _step(
            upper, lower, c, d, at, x, zeros, factors, one, two, past + TAKEN, past + 2 * TAKEN, group, last,
            True, EVEN, HOLD,
        )  # fmt: skip
    past = (STEPS - 1) // 2 * 2 * TAKEN
    upper, lower, a, b = _step(
        upper, lower, a, b, at, x, zeros, factors, one, two, past, past + TAKEN, group, last,
        STEPS % 2 == 0, EVEN, HOLD,
    )  # fmt: skip
    if STEPS % 2 == 0:
        upper, lower, a, b = _step(
            upper, lower, a, b, at, x, zeros, factors, one, two, past + TAKEN, past, group, last,
            False, EVEN, HOLD,
        )  # fmt: skip
    return upper, lower


@triton.jit
def _reduced(total, AHEAD: tl.constexpr, HALF: tl.constexpr, GROUPS: tl.constexpr):
    """[HALF, top or bottom, activation row] of sums [items, 4]."""
    parts = tl.reshape(total, [AHEAD, HALF, GROUPS, 2, 2])
    return tl.sum(tl.sum(parts, axis=2), axis=0) * LOWERED


@triton.jit
def _products(
    x, factors, zeros, one, two, w, scales, first, rows, groups,
    STRIDE: tl.constexpr, STRIDE_SCALE: tl.constexpr, APART: tl.constexpr, FULL: tl.constexpr,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, AHEAD: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr,
    HOLD: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Weight rows ``first + i`` and ``first + APART + i``, i < ROWS, times activation rows ``one`` and
    ``two``: FP32 [ROWS, 2], the upper rows first, of each activation row. AHEAD * GROUPS blocks of a row are
    taken at a time, while the next ones are asked for; a thread takes them of rows 2 * i and 2 * i + 1 of
    either kind, so that it reads the activations once for four rows.

    ``rows``: how many there are (unless ``FULL``, beyond them the last one stands); ``STRIDE`` of them in
    fours of words. ``EVEN``: all blocks of all steps exist. ``HOLD``: see ``hold_order``. ``WAIT``: for
    the kernel before, once the first weights have been asked for."""
    HALF: tl.constexpr = ROWS // 2
    TAKEN: tl.constexpr = AHEAD * GROUPS
    item = tl.arange(0, TAKEN * HALF)
    row = first + item % (HALF * GROUPS) // GROUPS * 2
    group = item // (HALF * GROUPS) * GROUPS + item % GROUPS
    last = groups - 1
    at = _places(w, scales, row, rows, group, STRIDE, STRIDE_SCALE, APART, FULL)
    a = _ask(at[0], at[1], at[4], at[5], 0, group, last, EVEN, HOLD)
    b = _ask(at[2], at[3], at[6], at[7], 0, group, last, EVEN, HOLD)
    one, two = one.to(tl.int64) * groups, two.to(tl.int64) * groups
    if WAIT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    upper, lower = _sums(a, b, at, x, zeros, factors, one, two, group, last, TAKEN, STEPS, EVEN, HOLD)
    found = tl.join(_reduced(upper, AHEAD, HALF, GROUPS), _reduced(lower, AHEAD, HALF, GROUPS))
    return tl.split(tl.reshape(tl.permute(found, [0, 3, 1, 2]), [ROWS, 2, 2]))


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
    latent, factors, zeros, ids, unit_expert, unit_pairs, w13, w13_scale, hidden, hidden_factors,
    stride_ids, stride_w, stride_s, slots, groups, blocks,
    STRIDE: tl.constexpr, STRIDE_SCALE: tl.constexpr, PADDED: tl.constexpr, FLOOR: tl.constexpr,
    GROUPED: tl.constexpr, GROUPS: tl.constexpr, AHEAD: tl.constexpr, STEPS: tl.constexpr,
    EVEN: tl.constexpr, HOLD: tl.constexpr, PDL: tl.constexpr,
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
            latent, factors, zeros, one // slots, tl.where(two < 0, one, two) // slots,
            w13 + expert * stride_w * 4, w13_scale + expert * stride_s, tile * 32, 0, groups, STRIDE,
            STRIDE_SCALE, PADDED, True, 32, GROUPS, AHEAD, STEPS, EVEN, HOLD, PDL and not GROUPED,
        )  # fmt: skip
        _hide(first, one, tile, blocks, hidden, hidden_factors, FLOOR)
        if two >= 0:
            _hide(second, two, tile, blocks, hidden, hidden_factors, FLOOR)


@triton.jit
def _store(halves, pair, n, width, rows, slots, stride_rows, stride_slot):
    """Store a tile of one pair's row, its halves [ROWS, 2]."""
    row, slot = (pair // slots).to(tl.int64), pair % slots
    product = tl.reshape(tl.permute(halves, [1, 0]), [n.shape[0]])
    tl.store(rows + row * stride_rows + slot * stride_slot + n, product.to(tl.bfloat16), mask=n < width)


@triton.jit
def _add_slots(
    row, n, width, rows, out, weights, slots, stride_rows, stride_slot, stride_weights, stride_out
):
    """out[row, n]: the products of the row's slots, weighted, in order."""
    total = tl.zeros([n.shape[0]], dtype=tl.float32)
    for each in range(0, slots):
        at = rows + row * stride_rows + each * stride_slot + n
        v = tl.load(at, mask=n < width, other=0.0, cache_modifier=".cg")
        total += v.to(tl.float32) * tl.load(weights + row * stride_weights + each).to(tl.float32)
    tl.store(out + row * stride_out + n, published(total), mask=n < width)


@triton.jit
def _last_of_row(row, arrived, slots):
    """Whether the tiles of all other slots of the row have been stored; the counter is left at 0."""
    # All threads have stored before one of them counts this program; its acquire orders later loads.
    tl.debug_barrier()
    counter = arrived + row * tl.num_programs(0) + tl.program_id(0)
    before = tl.atomic_add(counter, 1, sem="acq_rel")
    tl.debug_barrier()
    if before == slots - 1:
        tl.store(counter, 0)
    return before == slots - 1


@triton.jit
def down_kernel(
    hidden, factors, zeros, ids, unit_expert, unit_pairs, weights, w2, w2_scale, rows, out, arrived,
    stride_ids, stride_weights, stride_w, stride_s, stride_rows, stride_slot, stride_out, slots, blocks,
    width, STRIDE: tl.constexpr, STRIDE_SCALE: tl.constexpr, FULL: tl.constexpr, GROUPED: tl.constexpr,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, AHEAD: tl.constexpr, STEPS: tl.constexpr,
    EVEN: tl.constexpr, HOLD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """rows[row, slot, columns] = bf16(W2 hidden) of a unit's pairs; 2 * ROWS columns. Of pairs, that which
    is the last of its row also adds them up: out[row, columns]. ``hidden`` and ``w2`` are words, strides of
    ``w2`` four of them."""
    unit = tl.program_id(1)
    # Units and weights were complete before the kernel before this one began: they need not wait for it.
    expert, one, two = _members(unit_expert, unit_pairs, ids, stride_ids, slots, unit, GROUPED)
    if expert >= 0:
        begin = tl.program_id(0) * (2 * ROWS)
        first, second = _products(
            hidden, factors, zeros, one, tl.where(two < 0, one, two), w2 + expert * stride_w * 4,
            w2_scale + expert * stride_s, begin, width, blocks,
            STRIDE, STRIDE_SCALE, ROWS, FULL, ROWS, GROUPS, AHEAD, STEPS, EVEN, HOLD, PDL,
        )  # fmt: skip
        n = begin + tl.arange(0, 2 * ROWS)
        _store(first, one, n, width, rows, slots, stride_rows, stride_slot)
        if GROUPED:
            if two >= 0:
                _store(second, two, n, width, rows, slots, stride_rows, stride_slot)
        else:
            row = (one // slots).to(tl.int64)
            if _last_of_row(row, arrived, slots):
                _add_slots(
                    row, n, width, rows, out, weights, slots, stride_rows, stride_slot, stride_weights,
                    stride_out,
                )  # fmt: skip


@triton.jit
def slots_kernel(
    rows, out, weights, stride_rows, stride_slot, stride_weights, stride_out, slots, width,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[row, columns] of all slots of a row, once ``down_kernel`` has ended."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    _add_slots(
        tl.program_id(1).to(tl.int64), n, width, rows, out, weights, slots, stride_rows, stride_slot,
        stride_weights, stride_out,
    )  # fmt: skip
