"""The kernel of ``kda``: convolution, decay gate, normalisation, delta rule and gated norm of one head.

Same roundings as the subject's specialised kernel (its operations 3.5 and 3.6, profile ``specialized``): the
convolution and the core output stay FP32, the product with F_b is rounded to BF16, the state is FP32, the
output is rounded once. Every load is masked to the live lanes of a padded head, so any head dimension works.

q, k and v of a head are convolved as the rows of one tile and then taken apart: a vector per part would
be held in the layouts of both sides of the state, which costs more registers than the state itself.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _row(tile, part, which):
    """Row ``which`` of a tile with one row a part."""
    return tl.sum(tl.where(part[:, None] == which, tile, 0.0), axis=0)


@triton.jit
def _decay(
    f_a, f_b, stride_f_b, dt_bias, rate, lower_bound, channel, inside,
    RANK: tl.constexpr, RANK_STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """exp(lower_bound * sigmoid(rate * (bf16(f_b f_a) + dt_bias))) of each key lane."""
    total = tl.zeros([BLOCK, RANK_STEP], dtype=tl.float32)
    for start in range(0, RANK, RANK_STEP):  # in steps, so that this tile and the state fit in registers
        r = start + tl.arange(0, RANK_STEP)
        low = tl.load(f_a + r, mask=r < RANK, other=0.0).to(tl.float32)
        tile = inside[:, None] & (r < RANK)[None, :]
        up = tl.load(f_b + channel[:, None] * stride_f_b + r[None, :], mask=tile, other=0.0).to(tl.float32)
        total += up * low[None, :]
    raw = tl.sum(total, axis=1).to(tl.bfloat16).to(tl.float32)
    bias = tl.load(dt_bias + channel, mask=inside, other=0.0)
    return tl.exp(lower_bound * tl.sigmoid(rate * (raw + bias)))


@triton.jit
def _delta_rule(state, q, k, v, decay, beta):
    """One step of the recurrence on the tile state[v, k]; returns the new state and its read-out by q."""
    state *= decay[None, :]
    missing = (v - tl.sum(state * k[None, :], axis=1)) * beta
    state += missing[:, None] * k[None, :]
    return state, tl.sum(state * q[None, :], axis=1)


@triton.jit
def kda_kernel(
    projected,
    conv_weight,
    f_b,
    a_log,
    dt_bias,
    norm_weight,
    slots,
    accepted,
    conv_state,
    state,
    out,
    stride_projected,
    stride_tap,
    stride_part,
    stride_f_b,
    stride_slots_request,
    stride_slots_token,
    stride_accepted,
    stride_conv_slot,
    stride_conv_channel,
    stride_conv_column,
    stride_state_slot,
    stride_state_head,
    stride_out,
    heads,
    lower_bound,
    q_scale,
    eps_l2,
    eps,
    TOKENS: tl.constexpr,
    VERIFY: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    RANK: tl.constexpr,
    STRIDE_V: tl.constexpr,
    STRIDE_K: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK_STEP: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < HEAD_DIM
    width = heads * HEAD_DIM
    channel = head * HEAD_DIM + lane  # within one part, and of the output
    slots += request * stride_slots_request
    projected += request * TOKENS * stride_projected
    out += request * TOKENS * stride_out

    last = 0
    if VERIFY:
        last = tl.load(accepted + request * stride_accepted) - 1
    source = tl.load(slots + last * stride_slots_token).to(tl.int64)
    if source <= 0:
        for t in range(TOKENS):
            nothing = tl.zeros([BLOCK], dtype=tl.bfloat16)
            tl.store(out + t * stride_out + channel, nothing, mask=inside)
        return

    # Rows q, k, v and output gate, as they follow each other in a row of ``projected``.
    part = tl.arange(0, 4)
    is_gate = (part == 3)[:, None]
    live = (part < 3)[:, None] & inside[None, :]
    four = part[:, None] * width + channel[None, :]
    weight = conv_weight + part[:, None] * stride_part + channel[None, :]
    w0 = tl.load(weight, mask=live, other=0.0)
    w1 = tl.load(weight + stride_tap, mask=live, other=0.0)
    w2 = tl.load(weight + 2 * stride_tap, mask=live, other=0.0)
    w3 = tl.load(weight + 3 * stride_tap, mask=live, other=0.0)
    norm_at = norm_weight + lane[None, :] + tl.zeros_like(four)
    norm = tl.load(norm_at, mask=is_gate & inside[None, :], other=0.0).to(tl.float32)

    conv_state += tl.load(slots).to(tl.int64) * stride_conv_slot
    column0 = conv_state + four * stride_conv_channel
    first = column0 + tl.cast(last, tl.int64) * stride_conv_column
    x0 = tl.load(first, mask=live, other=0.0)
    x1 = tl.load(first + stride_conv_column, mask=live, other=0.0)
    x2 = tl.load(first + 2 * stride_conv_column, mask=live, other=0.0)

    state += head * stride_state_head
    tile_at = lane[:, None] * STRIDE_V + lane[None, :] * STRIDE_K
    tile = inside[:, None] & inside[None, :]
    s = tl.load(state + source * stride_state_slot + tile_at, mask=tile, other=0.0)
    # Lanes of a short vector are held by several threads; all must have read before one of them stores.
    tl.debug_barrier()
    tl.store(column0, x1, mask=live)
    tl.store(column0 + stride_conv_column, x2, mask=live)

    rate = tl.exp(tl.load(a_log + head))
    for t in range(TOKENS):
        row = projected + t * stride_projected
        x3 = tl.load(row + four, mask=inside[None, :], other=0.0)
        tl.store(column0 + (t + 2) * stride_conv_column, x3, mask=live)
        u = w0 * x0.to(tl.float32)
        u += w1 * x1.to(tl.float32)
        u += w2 * x2.to(tl.float32)
        u += w3 * x3.to(tl.float32)
        u = tl.where(is_gate, x3.to(tl.float32), u)
        z = tl.sigmoid(u) * tl.where(is_gate, norm, u)  # SiLU of q, k, v; gate times norm weight
        x0, x1, x2 = x1, x2, x3

        q, k, v, gate = _row(z, part, 0), _row(z, part, 1), _row(z, part, 2), _row(z, part, 3)
        q *= tl.rsqrt(tl.sum(q * q, axis=0) + eps_l2) * q_scale
        k *= tl.rsqrt(tl.sum(k * k, axis=0) + eps_l2)
        f_a = row + 4 * width
        decay = _decay(
            f_a, f_b, stride_f_b, dt_bias, rate, lower_bound, channel, inside, RANK, RANK_STEP, BLOCK
        )
        beta = tl.sigmoid(tl.load(f_a + RANK + head).to(tl.float32))
        s, o = _delta_rule(s, q, k, v, decay, beta)
        o *= tl.rsqrt(tl.sum(o * o, axis=0) / HEAD_DIM + eps) * gate
        tl.store(out + t * stride_out + channel, o.to(tl.bfloat16), mask=inside)
        target = tl.load(slots + t * stride_slots_token).to(tl.int64)
        tl.store(state + target * stride_state_slot + tile_at, s, mask=tile & (target > 0))
