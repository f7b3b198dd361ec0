"""Routing: exact top-16 of biased sigmoids and their weights, one program a row.

A key and its expert are one 64-bit integer: the key's bits in an order that integers keep, below them the
complement of the id. Its maximum is the largest key and, among equal ones, the lowest id, so the choice is
exact and total whatever the order of comparison. As in the subject's operation 3.14, candidates above a
threshold are compacted and ranked by counting; where ties leave more than 64, the maximum is taken sixteen
times. Scores by an accurate division, the sum over the 16 unscaled. One kernel serves every batch: taking
maxima round by round, tried for small ones, was slower at any (6.1 against 4.3 microseconds on an H200).

What this cannot show: the subject's butterfly sum, its poll, and the latent copy it carries.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import need_dense_last_axis, power_of_two, programmatic
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.moe.route import RouteArguments

SLOTS = 16
MAX_EXPERTS = 4096
GROUPS, CANDIDATES = 32, 64
WARPS = 8
LOWEST = tl.constexpr(-(2**63))


@triton.jit
def _sigmoid(x):
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def _packed(logits, bias, row, stride_logits, experts, BLOCK: tl.constexpr):
    """Keys over complements of ids, int64 [1, expert]; lanes beyond the experts are the lowest number."""
    expert = tl.arange(0, BLOCK)
    inside = (expert < experts)[None, :]
    x = tl.load(logits + row[:, None] * stride_logits + expert[None, :], mask=inside, other=0.0)
    b = tl.load(bias + expert, mask=expert < experts, other=0.0)
    key = _sigmoid(x) + b[None, :]
    key = tl.where(key != key, float("-inf"), key)
    bits = key.to(tl.int32, bitcast=True)
    # Negative floats descend as their bits ascend: flip all bits but the sign's.
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    packed = (bits.to(tl.int64) << 32) | (BLOCK - 1 - expert)[None, :].to(tl.int64)
    return tl.where(inside, packed, LOWEST)


@triton.jit
def _emit(
    best, logits, ids, weights, row, stride_logits, stride_ids, stride_weights, top, scale,
    RENORMALISE: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Store the ids in ``best`` [1, slot] and the weights of their scores."""
    slot = tl.arange(0, SLOTS)
    live = (slot < top)[None, :]
    expert = BLOCK - 1 - (best & 0xFFFFFFFF).to(tl.int32)
    x = tl.load(logits + row[:, None] * stride_logits + expert, mask=live, other=0.0)
    score = tl.where(live, _sigmoid(x), 0.0)
    weight = score * scale
    if RENORMALISE:
        weight = tl.div_rn(weight, (tl.sum(score, axis=1) + 1e-20)[:, None])
    tl.store(ids + row[:, None] * stride_ids + slot[None, :], expert, mask=live)
    tl.store(weights + row[:, None] * stride_weights + slot[None, :], weight.to(tl.bfloat16), mask=live)


@triton.jit
def _rounds(packed, top, SLOTS: tl.constexpr):
    """The ``top`` largest of ``packed`` [1, slot], by taking the maximum again and again."""
    slot = tl.arange(0, SLOTS)
    best = tl.zeros([1, SLOTS], dtype=tl.int64)
    for j in range(0, top):
        largest = tl.max(packed, axis=1)[:, None]
        best = tl.where(slot[None, :] == j, largest, best)
        packed = tl.where(packed == largest, LOWEST, packed)
    return best


@triton.jit
def _descending(values, SLOTS: tl.constexpr):
    """The largest of ``values`` [n], in order: each goes to the slot that its rank names. [1, slot]"""
    slot = tl.arange(0, SLOTS)
    rank = tl.sum((values[None, :] > values[:, None]).to(tl.int32), axis=1)
    return tl.max(tl.where(rank[None, :] == slot[:, None], values[None, :], LOWEST), axis=1)[None, :]


@triton.jit
def route_kernel(
    logits, bias, ids, weights, scratch, stride_logits, stride_ids, stride_weights, experts, top, scale,
    RENORMALISE: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr,
    CANDIDATES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The sixteenth largest of 32 group maxima is no larger than the sixteenth largest key: what reaches it
    is compacted and ranked by counting; more than 64 candidates take the rounds."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    packed = _packed(logits, bias, row, stride_logits, experts, BLOCK)
    maxima = tl.max(tl.reshape(packed, [BLOCK // GROUPS, GROUPS]), axis=0)
    rank = tl.sum((maxima[None, :] > maxima[:, None]).to(tl.int32), axis=1)
    threshold = tl.max(tl.where(rank >= SLOTS - 1, maxima, LOWEST), axis=0)
    flat = tl.reshape(packed, [BLOCK])
    candidate = (flat >= threshold) & (flat > LOWEST)
    count = tl.sum(candidate.to(tl.int32), axis=0)
    if count <= CANDIDATES:
        place = scratch + tl.program_id(0) * CANDIDATES
        tl.store(place + tl.cumsum(candidate.to(tl.int32), axis=0) - 1, flat, mask=candidate)
        tl.debug_barrier()
        lane = tl.arange(0, CANDIDATES)
        best = _descending(tl.load(place + lane, mask=lane < count, other=LOWEST), SLOTS)
    else:
        best = _rounds(packed, top, SLOTS)
    _emit(
        best, logits, ids, weights, row, stride_logits, stride_ids, stride_weights, top, scale,
        RENORMALISE, BLOCK, SLOTS,
    )  # fmt: skip


def route(a: RouteArguments) -> None:
    """ids and weights of every row, by descending key, equal keys by ascending id; see ``RouteArguments``."""
    need_dense_last_axis(logits=a.logits, bias=a.bias, ids=a.ids, weights=a.weights)
    if reason := _refused(a.logits.shape[1], a.top):
        raise UserError(f"route: {reason}")
    batch, experts = a.logits.shape
    scratch = torch.empty(batch, CANDIDATES, dtype=torch.int64, device=a.logits.device)
    route_kernel[(batch,)](
        a.logits, a.bias, a.ids, a.weights, scratch, a.logits.stride(0), a.ids.stride(0), a.weights.stride(0),
        experts, a.top, a.scale, RENORMALISE=a.renormalise,
        BLOCK=max(2 * GROUPS, power_of_two(experts)), SLOTS=SLOTS, GROUPS=GROUPS, CANDIDATES=CANDIDATES,
        num_warps=WARPS, **programmatic(a.logits),
    )  # fmt: skip


def _refused(experts: int, top: int) -> str | None:
    """Why a shape is not served."""
    if not 1 <= top <= SLOTS:
        return f"{top} slots; 1 to {SLOTS} are served"
    if not top <= experts <= MAX_EXPERTS:
        return f"{experts} experts for {top} slots; {top} to {MAX_EXPERTS} are served"
    return None


def supports(case: Case) -> str | None:
    """The same for a case of the plan."""
    return _refused(case["experts"], dict(case.shape).get("top", SLOTS))


TABLE = (Route(rows=1 << 30, kernels=("route_kernel",), settings={"warps": WARPS}),)
OPERATIONS = {
    "route": {
        "function": route,
        "kernels": lambda case: ("route_kernel",),
        "supports": supports,
        "table": TABLE,
    },
}
