"""The kernels of ``mla_query``: plain multiply-adds for a few rows, tensor cores above.

Same roundings as the subject's MlaQuery (its operation 3.7): the normalised q, q_b's result and the absorbed
q in BF16, then one FP32 product with the inverse scale and one saturating cast to E4M3. What two kernels
share travels through BF16 memory, where the subject's clusters use shared memory; it is rounded to BF16 there
anyway.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _e4m3(x):
    """Saturated at 448; a NaN is no larger than anything, so it stays."""
    x = tl.where(x > 448.0, 448.0, x)
    return tl.where(x < -448.0, -448.0, x).to(tl.float8e4nv)


@triton.jit
def _normed(row, weight, at, inside, mean_factor, eps, DIVIDE: tl.constexpr):
    """bf16(x * rsqrt(mean x^2 + eps) * weight) of one row; ``mean_factor`` is the width (DIVIDE) or its
    inverse."""
    x = tl.load(row + at, mask=inside, other=0.0).to(tl.float32)
    squares = tl.sum(x * x, axis=0)
    mean = squares / mean_factor if DIVIDE else squares * mean_factor
    gamma = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    return (x * tl.rsqrt(mean + eps) * gamma).to(tl.bfloat16)


@triton.jit
def _insert(
    row, norm_latent, slot, cache, stride_page, stride_place, page, latent, rope, eps, inverse_k,
    LATENT: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """The key of one token into its cache row. ``row`` points at its latent; slot -1: nothing."""
    if slot >= 0:
        cache += (slot // page) * stride_page + (slot % page) * stride_place
        at = tl.arange(0, LATENT)
        inside = at < latent
        key = _normed(row, norm_latent, at, inside, 1.0 / latent, eps, False).to(tl.float32)
        tl.store(cache + at, _e4m3(key * inverse_k), mask=inside)
        at = tl.arange(0, ROPE)
        k_pe = tl.load(row + latent + at, mask=at < rope, other=0.0).to(tl.float32)
        tl.store(cache + latent + at, _e4m3(k_pe * inverse_k), mask=at < rope)


@triton.jit
def query_up_kernel(
    projected, norm_q, norm_latent, w_q, slots, cache, q,
    stride_projected, stride_w_q, stride_page, stride_place, stride_q,
    columns, rank, latent, rope, page, tiles, eps, inverse_k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANK: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """q[row] = bf16(W_q c[row]) for COLUMNS of W_q's rows, held in registers while the tokens pass; the
    programs beyond ``tiles`` insert one key each."""
    program = tl.program_id(0)
    column = program.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, RANK)
    live = column < columns
    w_at = w_q + column[:, None] * stride_w_q + at[None, :]
    w = tl.load(w_at, mask=live[:, None] & (at < rank)[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if program < tiles:
        for row in tl.static_range(ROWS):
            x_at = projected + tl.cast(row, tl.int64) * stride_projected
            c = _normed(x_at, norm_q, at, at < rank, rank * 1.0, eps, True)
            total = tl.sum(w.to(tl.float32) * c.to(tl.float32)[None, :], axis=1)
            tl.store(q + row * stride_q + column, total.to(tl.bfloat16), mask=live)
    else:
        token = (program - tiles).to(tl.int64)
        _insert(
            projected + token * stride_projected + rank, norm_latent, tl.load(slots + token), cache,
            stride_page, stride_place, page, latent, rope, eps, inverse_k, LATENT, ROPE,
        )  # fmt: skip


@triton.jit
def query_absorb_kernel(
    q, w_uk, query, stride_q, stride_head, stride_nope, stride_query, stride_query_head,
    nope, rope, latent, inverse_q,
    ROWS: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """query[row, head]: TILE latent bytes of all tokens; the first tile's program writes the rope bytes
    too."""
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    p = tl.arange(0, NOPE)
    pe = tl.arange(0, ROPE)
    inside = column < latent
    w_at = w_uk + head * stride_head + p[:, None] * stride_nope + column[None, :]
    w = tl.load(w_at, mask=(p < nope)[:, None] & inside[None, :], other=0.0).to(tl.float32)
    q += head * (nope + rope)
    query += head * stride_query_head
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for row in tl.static_range(ROWS):
        q_at = q + row * stride_q
        out_at = query + tl.cast(row, tl.int64) * stride_query
        x = tl.load(q_at + p, mask=p < nope, other=0.0).to(tl.float32)
        absorbed = tl.sum(w * x[:, None], axis=0).to(tl.bfloat16).to(tl.float32)
        tl.store(out_at + column, _e4m3(absorbed * inverse_q), mask=inside)
        if tl.program_id(1) == 0:
            x_pe = tl.load(q_at + nope + pe, mask=pe < rope, other=0.0).to(tl.float32)
            tl.store(out_at + latent + pe, _e4m3(x_pe * inverse_q), mask=pe < rope)


@triton.jit
def query_norm_kernel(
    projected, norm_q, norm_latent, slots, cache, c,
    stride_projected, stride_page, stride_place, stride_c,
    rank, latent, rope, page, eps, inverse_k,
    RANK: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """c[row] = bf16 of the normalised q; the second program of a row inserts its key."""
    row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    x_at = projected + row * stride_projected
    if tl.program_id(1) == 0:
        at = tl.arange(0, RANK)
        normed = _normed(x_at, norm_q, at, at < rank, rank * 1.0, eps, True)
        tl.store(c + row * stride_c + at, normed, mask=at < rank)
    else:
        _insert(
            x_at + rank, norm_latent, tl.load(slots + row), cache,
            stride_page, stride_place, page, latent, rope, eps, inverse_k, LATENT, ROPE,
        )  # fmt: skip


@triton.jit
def query_up_tiled_kernel(
    c, w_q, q, stride_c, stride_w_q, stride_q, rows, columns, rank,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """q = bf16(c W_q^T), ROWS tokens by COLUMNS of W_q's rows a program, K in steps."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in range(0, rank, STEP):
        inside = start + at < rank
        c_at = c + row[:, None] * stride_c + start + at[None, :]
        x = tl.load(c_at, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        w_at = w_q + column[None, :] * stride_w_q + start + at[:, None]
        w = tl.load(w_at, mask=(column < columns)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(x, w, total)
    live = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(q + row[:, None] * stride_q + column[None, :], total.to(tl.bfloat16), mask=live)


@triton.jit
def query_absorb_tiled_kernel(
    q, w_uk, query, stride_q, stride_head, stride_nope, stride_query, stride_query_head,
    rows, nope, rope, latent, inverse_q,
    ROWS: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """query[row, head]: TILE latent bytes of ROWS tokens; the first tile's program writes the rope bytes
    too."""
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row = tl.program_id(2).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    p = tl.arange(0, NOPE)
    inside = column < latent
    live = (row < rows)[:, None]
    w_at = w_uk + head * stride_head + p[:, None] * stride_nope + column[None, :]
    w = tl.load(w_at, mask=(p < nope)[:, None] & inside[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    q_at = q + row[:, None] * stride_q + head * (nope + rope)
    out_at = query + row[:, None] * stride_query + head * stride_query_head
    x = tl.load(q_at + p[None, :], mask=live & (p < nope)[None, :], other=0.0)
    absorbed = tl.dot(x, w).to(tl.bfloat16).to(tl.float32)
    tl.store(out_at + column[None, :], _e4m3(absorbed * inverse_q), mask=live & inside[None, :])
    if tl.program_id(1) == 0:
        pe = tl.arange(0, ROPE)[None, :]
        x_pe = tl.load(q_at + nope + pe, mask=live & (pe < rope), other=0.0).to(tl.float32)
        tl.store(out_at + latent + pe, _e4m3(x_pe * inverse_q), mask=live & (pe < rope))
