"""Flash-decoding over latent FP8 keys: the kernels of ``mla_attention`` and ``mla_dcp``.

A program takes a tile of query rows (token t and head h of a request are row t * H + h) and one split of the
keys, and runs an online softmax in base two. FP8 values are exact in BF16, and a weight is the sum of three
BF16 numbers (8 bits each of its 24), so products are exact and sums FP32. On Hopper a warp group multiplies
what lies in shared memory: keys are its 64 rows in both products, and a block of them is put there once.

Partial rows and their log2 sums are FP32 and are merged in the order of the splits: equal calls give equal
bits. A split without keys writes a log sum of -inf and no row; a merge does not read its row.

What this cannot show: the subject's clusters and its fast paths in other number formats.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl

LATENT = 512
ROPE = 64


@triton.jit
def _owned(positions, rank, ranks, interleave):
    """How many of the first ``positions`` positions are the rank's; all of them with one rank."""
    turn = ranks * interleave
    rest = positions % turn - rank * interleave
    return positions // turn * interleave + tl.minimum(tl.maximum(rest, 0), interleave)


@triton.jit
def _key_rows(table, position, stride_page, stride_slot, PAGE: tl.constexpr):
    """Offset of every position's key from the start of the rank's cache. int64 [key]"""
    page = tl.load(table + position // PAGE).to(tl.int64)
    return page * stride_page + (position % PAGE).to(tl.int64) * stride_slot


@triton.jit
def _exact(codes):
    """E4M3 numbers as BF16, which holds them all. By FP16 and FP32, since Hopper's only instruction from FP16
    to BF16 takes one number at a time."""
    return codes.to(tl.float16).to(tl.float32).to(tl.bfloat16)


@triton.jit
def _add_weighted(values, weights, total):
    """total [d, row] + values [key, d]^T weights [key, row], with all 24 bits of the FP32 weights."""
    high = weights.to(tl.bfloat16)
    rest = weights - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    across = tl.trans(values)
    total = tl.dot(across, low, total)
    total = tl.dot(across, middle, total)
    return tl.dot(across, high, total)


@triton.jit
def _codes(
    cache, table, first, stop, stride_page, stride_slot,
    PAGE: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, D_ROPE: tl.constexpr,
):  # fmt: skip
    """What the cache holds of KEYS keys from ``first``: [key, D] and [key, D_ROPE]. From ``stop`` on: of the
    last key once more, since nobody's memory may be read."""
    position = tl.minimum(first + tl.arange(0, KEYS), stop - 1)
    key = cache + _key_rows(table, position, stride_page, stride_slot, PAGE)[:, None]
    return tl.load(key + tl.arange(0, D)[None, :]), tl.load(key + D + tl.arange(0, D_ROPE)[None, :])


@triton.jit
def _query(query, row_at, live_row, begin: tl.constexpr, WIDTH: tl.constexpr):
    """Columns ``begin`` and on of the query's rows. BF16 [WIDTH, row]"""
    at = begin + tl.arange(0, WIDTH)
    return tl.trans(_exact(tl.load(query + row_at[:, None] + at[None, :], mask=live_row[:, None], other=0.0)))


@triton.jit
def _attend(
    query, cache, table, row_at, live_row, seen, start, stop, stride_page, stride_slot, scale,
    PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, D_ROPE: tl.constexpr,
):  # fmt: skip
    """Mean of the values [row, d] over the keys from ``start`` to ``stop`` that a row sees, and its log2 sum.

    Rows that see none of them: mean 0 and -inf. Keys are the long side of both products, so that a warp
    group's instruction is full; a block of them is asked for while the one before it is worked on.
    """
    q, q_rope = _query(query, row_at, live_row, 0, D), _query(query, row_at, live_row, D, D_ROPE)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    weight = tl.zeros([ROWS], dtype=tl.float32)
    total = tl.zeros([D, ROWS], dtype=tl.float32)
    latent, rope = _codes(cache, table, start, stop, stride_page, stride_slot, PAGE, KEYS, D, D_ROPE)
    values, values_rope = _exact(latent), _exact(rope)
    for first in range(start, stop, KEYS):
        latent, rope = _codes(
            cache, table, first + KEYS, stop, stride_page, stride_slot, PAGE, KEYS, D, D_ROPE
        )
        scores = tl.dot(values_rope, q_rope, tl.dot(values, q)) * scale
        position = first + tl.arange(0, KEYS)
        scores = tl.where(position[:, None] < seen[None, :], scores, float("-inf"))
        # A NaN score makes its row NaN through the exponential; the maximum is of numbers.
        top = tl.maximum(largest, tl.max(tl.where(scores == scores, scores, float("-inf")), axis=0))
        base = tl.where(top == float("-inf"), 0.0, top)
        factors = tl.exp2(scores - base[None, :])
        kept = tl.exp2(largest - base)
        weight = weight * kept + tl.sum(factors, axis=0)
        total = _add_weighted(values, factors, total * kept[None, :])
        largest = top
        # At the end, for the compiler multiplies from shared memory only what an iteration is given.
        values, values_rope = _exact(latent), _exact(rope)
    empty = weight == 0.0
    weight = tl.where(empty, 1.0, weight)
    mean = tl.trans(total / weight[None, :])
    return mean, tl.where(empty, float("-inf"), tl.log2(weight) + largest)


@triton.jit
def _split_of_keys(
    query, cache, block_table, lengths, partial, log_sums,
    stride_q_row, stride_q_head, stride_rank, stride_page, stride_slot, stride_table_rank, stride_table,
    scale, k_scale, requests, tokens, heads, ranks, interleave, splits,
    PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    D: tl.constexpr, D_ROPE: tl.constexpr,
):  # fmt: skip
    """partial[rank, request, split, row, d] and log_sums[rank, request, split, row] of this program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    pair = tl.program_id(2).to(tl.int64)
    rank = pair // requests
    request = pair % requests
    count = tokens * heads
    live_row = row < count
    token = row // heads
    length = tl.load(lengths + request)
    seen = tl.where(live_row & (length > 0), length - tokens + 1 + token, 0)
    seen = _owned(tl.maximum(seen, 0), rank.to(tl.int32), ranks, interleave)
    local = _owned(length, rank.to(tl.int32), ranks, interleave)
    # Whole blocks of keys a split, the same for all programs of the request.
    share = tl.cdiv(tl.cdiv(local, splits), KEYS) * KEYS
    start = split * share
    stop = tl.minimum(start + share, local)
    place = (pair * splits + split) * count + row
    if start >= stop:
        tl.store(log_sums + place, tl.full([ROWS], float("-inf"), dtype=tl.float32), mask=live_row)
    else:
        row_at = (request * tokens + token) * stride_q_row + (row % heads) * stride_q_head
        mean, log_sum = _attend(
            query, cache + rank * stride_rank,
            block_table + rank * stride_table_rank + request * stride_table,
            row_at, live_row, seen, start, stop, stride_page, stride_slot, scale,
            PAGE, ROWS, KEYS, D, D_ROPE,
        )  # fmt: skip
        at = tl.arange(0, D)
        tl.store(partial + place[:, None] * D + at[None, :], mean * k_scale, mask=live_row[:, None])
        tl.store(log_sums + place, log_sum, mask=live_row)


@triton.jit
def _merge_splits(
    partial, log_sums, first, step, splits, inside, column,
    D: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Columns of the rows at ``first`` [row], merged over splits ``step`` places apart, and their log2 sums.

    SPLITS at a time, in order. A split whose log sum is -inf has written no row.
    """
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    for begin in range(0, splits, SPLITS):
        split = begin + tl.arange(0, SPLITS)
        live = inside[:, None] & (split[None, :] < splits)
        sums = tl.load(log_sums + first[:, None] + split[None, :] * step, mask=live, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(tl.where(sums == sums, sums, float("-inf")), axis=1))
    base = tl.where(largest == float("-inf"), 0.0, largest)
    weight = tl.zeros([ROWS], dtype=tl.float32)
    total = tl.zeros([ROWS, column.shape[0]], dtype=tl.float32)
    for begin in range(0, splits, SPLITS):
        split = begin + tl.arange(0, SPLITS)
        live = inside[:, None] & (split[None, :] < splits)
        place = first[:, None] + split[None, :] * step
        sums = tl.load(log_sums + place, mask=live, other=float("-inf"))
        factors = tl.exp2(sums - base[:, None])
        there = (sums != float("-inf"))[:, :, None]
        rows = tl.load(partial + place[:, :, None] * D + column[None, None, :], mask=there, other=0.0)
        total += tl.sum(factors[:, :, None] * rows, axis=1)
        weight += tl.sum(factors, axis=1)
    empty = weight == 0.0
    weight = tl.where(empty, 1.0, weight)
    return total / weight[:, None], tl.where(empty, float("-inf"), tl.log2(weight) + base)


@triton.jit
def mla_split_kernel(
    query, cache, block_table, lengths, partial, log_sums,
    stride_q_row, stride_q_head, stride_rank, stride_page, stride_slot, stride_table_rank, stride_table,
    scale, k_scale, requests, tokens, heads, ranks, interleave, splits,
    PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    D: tl.constexpr, D_ROPE: tl.constexpr,
):  # fmt: skip
    """One split of one tile of rows of one request (on one rank); see the module."""
    _split_of_keys(
        query, cache, block_table, lengths, partial, log_sums,
        stride_q_row, stride_q_head, stride_rank, stride_page, stride_slot, stride_table_rank, stride_table,
        scale, k_scale, requests, tokens, heads, ranks, interleave, splits,
        PAGE, ROWS, KEYS, D, D_ROPE,
    )  # fmt: skip


@triton.jit
def mla_merge_kernel(
    partial, log_sums, out, out_log_sums, stride_out_rank, stride_out_row, requests, tokens, heads, splits,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr, D: tl.constexpr, LOG_SUMS: tl.constexpr,
):  # fmt: skip
    """out[rank, request * tokens + t, h] = bf16 of the merged row; its log2 sum if ``LOG_SUMS``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pair = tl.program_id(2).to(tl.int64)
    count = tokens * heads
    inside = row < count
    first = pair * splits * count + row
    mean, log_sum = _merge_splits(
        partial, log_sums, first, count, splits, inside, column, D, ROWS, SPLITS
    )  # fmt: skip
    rank = pair // requests
    request = pair % requests
    out_row = out + rank * stride_out_rank + (request * tokens + row // heads) * stride_out_row
    to = out_row[:, None] + (row % heads)[:, None] * D + column[None, :]
    tl.store(to, mean.to(tl.bfloat16), mask=inside[:, None])
    if LOG_SUMS:
        tl.store(out_log_sums + pair * count + row, log_sum, mask=inside & (tl.program_id(1) == 0))


@triton.jit
def mla_counted_kernel(
    query, cache, block_table, lengths, partial, log_sums, counters, out,
    stride_q_row, stride_q_head, stride_rank, stride_page, stride_slot, stride_table_rank, stride_table,
    stride_out_row, scale, k_scale, requests, tokens, heads, ranks, interleave, splits,
    PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    D: tl.constexpr, D_ROPE: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr,
):  # fmt: skip
    """As ``mla_split_kernel``; the program of a tile that finishes last merges all its splits, in their
    order, and puts the tile's counter back to 0."""
    _split_of_keys(
        query, cache, block_table, lengths, partial, log_sums,
        stride_q_row, stride_q_head, stride_rank, stride_page, stride_slot, stride_table_rank, stride_table,
        scale, k_scale, requests, tokens, heads, ranks, interleave, splits,
        PAGE, ROWS, KEYS, D, D_ROPE,
    )  # fmt: skip
    # All threads have stored before one of them counts; the count releases and acquires.
    tl.debug_barrier()
    pair = tl.program_id(2).to(tl.int64)
    counter = counters + pair * tl.num_programs(0) + tl.program_id(0)
    if tl.atomic_add(counter, 1) == splits - 1:
        tl.debug_barrier()
        count = tokens * heads
        column = tl.arange(0, D)
        for begin in range(0, ROWS, MERGE_ROWS):
            row = tl.program_id(0) * ROWS + begin + tl.arange(0, MERGE_ROWS)
            inside = row < count
            first = pair * splits * count + row
            mean, _ = _merge_splits(
                partial, log_sums, first, count, splits, inside, column, D, MERGE_ROWS, MERGE_SPLITS
            )  # fmt: skip
            out_row = out + (pair * tokens + row // heads) * stride_out_row
            to = out_row[:, None] + (row % heads)[:, None] * D + column[None, :]
            tl.store(to, mean.to(tl.bfloat16), mask=inside[:, None])
        tl.store(counter, 0)
