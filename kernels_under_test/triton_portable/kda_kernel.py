"""The kernel of ``kda``: convolution, decay gate, normalisation, delta rule and gated norm of one head.

Same roundings as the subject's specialised kernel (kimi_k3_ops 3.5, 3.6, profile ``specialized``): the
convolution and the core output stay FP32, the product with F_b is rounded to BF16, the state is FP32, the
output is rounded once. Every load is masked to the live lanes of a padded head, so any head dimension works.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _convolved(tap0, tap1, tap2, x, weight, stride_tap, lane, inside):
    """SiLU of the width-4 causal convolution of one part (q, k or v); not rounded."""
    u = tl.load(weight + lane, mask=inside, other=0.0) * tap0
    u += tl.load(weight + stride_tap + lane, mask=inside, other=0.0) * tap1
    u += tl.load(weight + 2 * stride_tap + lane, mask=inside, other=0.0) * tap2
    u += tl.load(weight + 3 * stride_tap + lane, mask=inside, other=0.0) * x
    return u * tl.sigmoid(u)


@triton.jit
def _taps(history, stride_column, lane_at, inside):
    """The three inputs before the first token of one part, oldest first, as FP32."""
    tap0 = tl.load(history + lane_at, mask=inside, other=0.0).to(tl.float32)
    tap1 = tl.load(history + stride_column + lane_at, mask=inside, other=0.0).to(tl.float32)
    tap2 = tl.load(history + 2 * stride_column + lane_at, mask=inside, other=0.0).to(tl.float32)
    return tap0, tap1, tap2


@triton.jit
def _decay(f_a, f_b, stride_f_b, dt_bias, rate, lower_bound, lane, inside, rank, RANK_BLOCK: tl.constexpr):
    """exp(lower_bound * sigmoid(rate * (bf16(f_b f_a) + dt_bias))) of each key lane."""
    r = tl.arange(0, RANK_BLOCK)
    low = tl.load(f_a + r, mask=r < rank, other=0.0).to(tl.float32)
    tile = inside[:, None] & (r < rank)[None, :]
    up = tl.load(f_b + lane[:, None] * stride_f_b + r[None, :], mask=tile, other=0.0).to(tl.float32)
    raw = tl.sum(up * low[None, :], axis=1).to(tl.bfloat16).to(tl.float32)
    bias = tl.load(dt_bias + lane, mask=inside, other=0.0)
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
    stride_state_v,
    stride_state_k,
    stride_out,
    heads,
    head_dim,
    rank,
    lower_bound,
    q_scale,
    eps_l2,
    eps,
    TOKENS: tl.constexpr,
    VERIFY: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < head_dim
    width = heads * head_dim
    channel = head * head_dim + lane  # within one part, and of the output
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

    conv_state += tl.load(slots).to(tl.int64) * stride_conv_slot
    history = conv_state + tl.cast(last, tl.int64) * stride_conv_column
    q_at = channel * stride_conv_channel
    k_at = (width + channel) * stride_conv_channel
    v_at = (2 * width + channel) * stride_conv_channel
    q0, q1, q2 = _taps(history, stride_conv_column, q_at, inside)
    k0, k1, k2 = _taps(history, stride_conv_column, k_at, inside)
    v0, v1, v2 = _taps(history, stride_conv_column, v_at, inside)

    state += head * stride_state_head
    tile_at = lane.to(tl.int64)[:, None] * stride_state_v + lane[None, :] * stride_state_k
    tile = inside[:, None] & inside[None, :]
    s = tl.load(state + source * stride_state_slot + tile_at, mask=tile, other=0.0)
    # Lanes of a short vector are held by several threads; all must have read before one of them stores.
    tl.debug_barrier()
    for j in tl.static_range(2):
        at = conv_state + j * stride_conv_column
        tl.store(at + q_at, (q1 if j == 0 else q2).to(tl.bfloat16), mask=inside)
        tl.store(at + k_at, (k1 if j == 0 else k2).to(tl.bfloat16), mask=inside)
        tl.store(at + v_at, (v1 if j == 0 else v2).to(tl.bfloat16), mask=inside)

    rate = tl.exp(tl.load(a_log + head))
    norm = tl.load(norm_weight + lane, mask=inside, other=0.0).to(tl.float32)
    for t in range(TOKENS):
        row = projected + t * stride_projected
        fresh = conv_state + (t + 2) * stride_conv_column
        xq = tl.load(row + channel, mask=inside, other=0.0)
        xk = tl.load(row + width + channel, mask=inside, other=0.0)
        xv = tl.load(row + 2 * width + channel, mask=inside, other=0.0)
        tl.store(fresh + q_at, xq, mask=inside)
        tl.store(fresh + k_at, xk, mask=inside)
        tl.store(fresh + v_at, xv, mask=inside)
        q3, k3, v3 = xq.to(tl.float32), xk.to(tl.float32), xv.to(tl.float32)
        q = _convolved(q0, q1, q2, q3, conv_weight, stride_tap, channel, inside)
        k = _convolved(k0, k1, k2, k3, conv_weight + stride_part, stride_tap, channel, inside)
        v = _convolved(v0, v1, v2, v3, conv_weight + 2 * stride_part, stride_tap, channel, inside)
        q0, q1, q2 = q1, q2, q3
        k0, k1, k2 = k1, k2, k3
        v0, v1, v2 = v1, v2, v3

        f_a = row + 4 * width
        decay = _decay(f_a, f_b, stride_f_b, dt_bias, rate, lower_bound, channel, inside, rank, RANK_BLOCK)
        beta = tl.sigmoid(tl.load(f_a + rank + head).to(tl.float32))
        q *= tl.rsqrt(tl.sum(q * q, axis=0) + eps_l2) * q_scale
        k *= tl.rsqrt(tl.sum(k * k, axis=0) + eps_l2)
        s, o = _delta_rule(s, q, k, v, decay, beta)

        gate = tl.sigmoid(tl.load(row + 3 * width + channel, mask=inside, other=0.0).to(tl.float32))
        o *= tl.rsqrt(tl.sum(o * o, axis=0) / head_dim + eps) * norm * gate
        tl.store(out + t * stride_out + channel, o.to(tl.bfloat16), mask=inside)
        target = tl.load(slots + t * stride_slots_token).to(tl.int64)
        tl.store(state + target * stride_state_slot + tile_at, s, mask=tile & (target > 0))
