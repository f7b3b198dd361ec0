"""KDA decode with the value rows of a head spread over several programs; the last one to end norms the head.

One token a request (the subject's operation 3.5), same roundings as ``kda_kernel``. As in the subject's
clusters every program of a head convolves all of q and k and owns some rows of v and of the state. Where a
cluster would exchange the core output through shared memory, here it lies in FP32 scratch: every program
counts itself when its part is written, and whoever counts last (all have then read the convolution history)
applies the gated norm over the whole head and moves the history of q and k on. The counter ends at zero, as
the next call needs it, and every sum has a fixed order, so equal calls give equal bits.

What this cannot show: the exchange within a cluster.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl

from kernels_under_test.triton_portable.kda_kernel import _decay, _delta_rule


@triton.jit
def _taps(conv, stride_column, x, live):
    """The three inputs of the history and the new one, BF16."""
    x0 = tl.load(conv, mask=live, other=0.0)
    x1 = tl.load(conv + stride_column, mask=live, other=0.0)
    x2 = tl.load(conv + 2 * stride_column, mask=live, other=0.0)
    return x0, x1, x2, tl.load(x, mask=live, other=0.0)


@triton.jit
def _convolved(x0, x1, x2, x3, weight, stride_tap, live):
    """SiLU of the width-4 convolution, FP32."""
    u = tl.load(weight, mask=live, other=0.0) * x0.to(tl.float32)
    u += tl.load(weight + stride_tap, mask=live, other=0.0) * x1.to(tl.float32)
    u += tl.load(weight + 2 * stride_tap, mask=live, other=0.0) * x2.to(tl.float32)
    u += tl.load(weight + 3 * stride_tap, mask=live, other=0.0) * x3.to(tl.float32)
    return u * tl.sigmoid(u)


@triton.jit
def _moved_on(conv, stride_column, x1, x2, x3, live):
    tl.store(conv, x1, mask=live)
    tl.store(conv + stride_column, x2, mask=live)
    tl.store(conv + 2 * stride_column, x3, mask=live)


@triton.jit
def kda_split_kernel(
    projected,
    conv_weight,
    f_b,
    a_log,
    dt_bias,
    norm_weight,
    slots,
    conv_state,
    state,
    out,
    scratch,
    counters,
    stride_projected,
    stride_tap,
    stride_part,
    stride_f_b,
    stride_slots_request,
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
    HEAD_DIM: tl.constexpr,
    RANK: tl.constexpr,
    STRIDE_V: tl.constexpr,
    STRIDE_K: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK_STEP: tl.constexpr,
    PDL: tl.constexpr,
):
    part = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < HEAD_DIM
    own = part * ROWS + tl.arange(0, ROWS)  # rows of v and of the state
    mine = own < HEAD_DIM
    width = heads * HEAD_DIM
    channel = head * HEAD_DIM + lane
    own_channel = head * HEAD_DIM + own
    projected += request * stride_projected
    out += request * stride_out

    source = tl.load(slots + request * stride_slots_request).to(tl.int64)
    if source <= 0:
        if PDL:
            tl.extra.cuda.gdc_wait()
        tl.store(out + own_channel, tl.zeros([ROWS], dtype=tl.bfloat16), mask=mine)
        return

    # The state of an earlier step need not wait for the projection before this kernel.
    tile_at = own[:, None] * STRIDE_V + lane[None, :] * STRIDE_K
    tile = mine[:, None] & inside[None, :]
    state += source * stride_state_slot + head * stride_state_head
    s = tl.load(state + tile_at, mask=tile, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    conv_state += source * stride_conv_slot
    q_conv = conv_state + channel * stride_conv_channel
    k_conv = conv_state + (width + channel) * stride_conv_channel
    v_conv = conv_state + (2 * width + own_channel) * stride_conv_channel
    q0, q1, q2, q3 = _taps(q_conv, stride_conv_column, projected + channel, inside)
    k0, k1, k2, k3 = _taps(k_conv, stride_conv_column, projected + width + channel, inside)
    v0, v1, v2, v3 = _taps(v_conv, stride_conv_column, projected + 2 * width + own_channel, mine)
    q = _convolved(q0, q1, q2, q3, conv_weight + channel, stride_tap, inside)
    k = _convolved(k0, k1, k2, k3, conv_weight + stride_part + channel, stride_tap, inside)
    v = _convolved(v0, v1, v2, v3, conv_weight + 2 * stride_part + own_channel, stride_tap, mine)
    q *= tl.rsqrt(tl.sum(q * q, axis=0) + eps_l2) * q_scale
    k *= tl.rsqrt(tl.sum(k * k, axis=0) + eps_l2)
    f_a = projected + 4 * width
    rate = tl.exp(tl.load(a_log + head))
    decay = _decay(f_a, f_b, stride_f_b, dt_bias, rate, lower_bound, channel, inside, RANK, RANK_STEP, BLOCK)
    beta = tl.sigmoid(tl.load(f_a + RANK + head).to(tl.float32))
    s, o = _delta_rule(s, q, k, v, decay, beta)
    tl.store(state + tile_at, s, mask=tile)

    scratch += (request * heads + head) * BLOCK
    tl.store(scratch + own, o, mask=mine)
    # All lanes must have read their taps and written their part before one of them counts this program.
    tl.debug_barrier()
    _moved_on(v_conv, stride_conv_column, v1, v2, v3, mine)
    counters += request * heads + head
    before = tl.atomic_add(counters, 1, sem="acq_rel")
    if before == SPLITS - 1:
        tl.store(counters, 0)
        _moved_on(q_conv, stride_conv_column, q1, q2, q3, inside)
        _moved_on(k_conv, stride_conv_column, k1, k2, k3, inside)
        whole = tl.load(scratch + lane, mask=inside, other=0.0, cache_modifier=".cg")
        gate = tl.load(projected + 3 * width + channel, mask=inside, other=0.0).to(tl.float32)
        norm = tl.load(norm_weight + lane, mask=inside, other=0.0).to(tl.float32)
        whole *= tl.rsqrt(tl.sum(whole * whole, axis=0) / HEAD_DIM + eps) * (norm * tl.sigmoid(gate))
        tl.store(out + channel, whole.to(tl.bfloat16), mask=inside)
