"""A MoE layer for one or two rows in few launches.

Like the subject's small-batch chains (its operations 3.18 and 3.19). One launch streams everything that reads
the input rows: the router, this rank's latent rows, and gate and up of its shared experts with SiTU in
registers. The next routes, quantises the latent and computes the shared down rows, each in programs of its
own. Then the experts of each rank, and the tail, as in ``experts`` and ``moe_tail``. Nothing depends on which
program ends first.

What this cannot show: one persistent grid that polls, clusters, and which SMs take the shared rows.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable import experts, moe_tail, route
from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis, power_of_two
from kernels_under_test.triton_portable.mx import quantise_tile
from kernels_under_test.triton_portable.rank_partials import published
from kernels_under_test.triton_portable.route import route_kernel
from kernels_under_test.triton_portable.shared_expert import down_skinny, gate_up_situ
from validation.contracts.moe import small_batch as stages
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.moe.small_batch import SmallBatchArguments

MOST_ROWS = 2
# Rows of weights and K step of a program of the first launch; rows and K step of the down role of the second;
# blocks of 32 that a program quantises.
FRONT, DOWN, BLOCKS = (4, 1024), (16, 256), 16
WARPS = 8


@triton.jit
def _rows_of(
    h, weight_at, live, stride_h, batch, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr
):
    """FP32 sums h . weight row, -0.0 as +0.0. [ROWS, COLUMNS]"""
    row = tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    h_at = h + row[:, None].to(tl.int64) * stride_h
    total = tl.zeros([ROWS, COLUMNS, STEP], dtype=tl.float32)
    for start in range(0, k, STEP):
        position = start + at[None, :]
        w = tl.load(weight_at[:, None] + position, mask=live[:, None] & (position < k), other=0.0)
        v = tl.load(h_at + position, mask=(row[:, None] < batch) & (position < k), other=0.0)
        total += v.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
    result = tl.sum(total, axis=2)
    return tl.where(result == 0, 0.0, result)


@triton.jit
def front_shared_kernel(
    h, router, down, gate_up, logits, latent, hidden,
    stride_h, stride_router_rank, stride_router, stride_down_rank, stride_down, stride_gate_rank, stride_gate,
    stride_logits, stride_latent, batch, k, experts, columns, width, beta, linear,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """By program: a tile of this shard's router rows, of its latent rows, or of its gate and up rows."""
    tile = tl.program_id(0)
    rank = tl.program_id(1).to(tl.int64)
    router_tiles = tl.cdiv(experts, COLUMNS)
    latent_tiles = tl.cdiv(columns, COLUMNS)
    row = tl.arange(0, ROWS)
    if tile < router_tiles:
        n = tile * COLUMNS + tl.arange(0, COLUMNS)
        at = router + rank * stride_router_rank + n.to(tl.int64) * stride_router
        found = _rows_of(h, at, n < experts, stride_h, batch, k, ROWS, COLUMNS, STEP)
        place = row[:, None].to(tl.int64) * stride_logits + rank * experts + n[None, :]
        tl.store(logits + place, found, mask=(row[:, None] < batch) & (n[None, :] < experts))
    elif tile < router_tiles + latent_tiles:
        n = (tile - router_tiles) * COLUMNS + tl.arange(0, COLUMNS)
        at = down + rank * stride_down_rank + n.to(tl.int64) * stride_down
        found = published(_rows_of(h, at, n < columns, stride_h, batch, k, ROWS, COLUMNS, STEP))
        place = row[:, None].to(tl.int64) * stride_latent + rank * columns + n[None, :]
        tl.store(latent + place, found, mask=(row[:, None] < batch) & (n[None, :] < columns))
    else:
        gate_up_situ(
            h, gate_up, hidden, tile - router_tiles - latent_tiles, 0, rank, stride_h, stride_gate_rank,
            stride_gate, batch, width, k, beta, linear, ROWS, COLUMNS, STEP,
        )  # fmt: skip


@triton.jit
def route_shared_kernel(
    logits, bias, ids, weights, scratch, latent, codes, scales, hidden, down, partial,
    stride_logits, stride_ids, stride_weights, stride_latent, stride_down_rank, stride_down,
    stride_partial_rank, stride_partial, batch, experts, top, scale, blocks, width, n,
    EXPERTS: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr, CANDIDATES: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """By program: the choice of a row's experts, a tile of its latent in MXFP8, or shared down rows."""
    row = tl.program_id(0)
    role = tl.program_id(1)
    rank = tl.program_id(2).to(tl.int64)
    tiles = tl.cdiv(blocks, BLOCKS)
    if role == 0:
        if rank == 0:
            route_kernel(
                logits, bias, ids, weights, scratch, stride_logits, stride_ids, stride_weights, experts, top,
                scale, True, EXPERTS, SLOTS, GROUPS, CANDIDATES, False,
            )  # fmt: skip
    elif role <= tiles:
        if rank == 0:
            place = row.to(tl.int64)
            quantise_tile(
                latent + place * stride_latent, codes + place * blocks * 32, scales + place * blocks,
                role - 1, blocks, False, BLOCKS,
            )  # fmt: skip
    else:
        if row == 0:
            down_skinny(
                hidden, down, partial, role - 1 - tiles, 0, rank, stride_down_rank, stride_down,
                stride_partial_rank, stride_partial, batch, width, n, ROWS, COLUMNS, STEP,
            )  # fmt: skip


def small_batch(a: SmallBatchArguments) -> None:
    """All ranks' MoE layer for one or two rows; see ``SmallBatchArguments``. Within a row all is dense."""
    rows, width = a.latent.shape
    if why := reason(rows, a.ids.shape[1], width, a.live, a.logits.shape[1]):
        raise UserError(why)
    need_dense_last_axis(
        h=a.h, router=a.router, down=a.down, gate_up=a.gate_up, shared_down=a.shared_down, up=a.up,
        logits=a.logits, latent=a.latent, ids=a.ids, weights=a.weights, routed=a.routed, shared=a.shared,
        out=a.out, bias=a.bias, gamma=a.gamma,
    )  # fmt: skip
    hidden = front_and_gate(a.h, a.router, a.down, a.gate_up, a.logits, a.latent)
    x = route_and_down(a, hidden, a.shared_down, a.shared)
    for rank in range(a.ranks):
        experts.experts(stages.experts_arguments(a, rank, x, a.ids, a.weights))
    moe_tail.tail(a.routed, a.shared, a.gamma, a.up, a.out, a.eps)


def front_and_gate(
    h: Tensor, router: Tensor, down: Tensor, gate_up: Tensor, logits: Tensor, latent: Tensor
) -> Tensor:
    """Logits and latent of the shards given (first axis), and their shared hidden [rank, row, channel]."""
    (ranks, count, k), rows = router.shape, h.shape[0]
    width, columns = gate_up.shape[1] // 2, down.shape[1]
    hidden = torch.empty(ranks, rows, width, dtype=torch.bfloat16, device=h.device)
    held, step = FRONT
    if interpreted(h):
        held, step = min(power_of_two(max(count, columns, width)), 16), power_of_two(k)
    tiles = sum(triton.cdiv(n, held) for n in (count, columns, width))
    front_shared_kernel[tiles, ranks](
        h, router, down, gate_up, logits, latent, hidden, h.stride(0), router.stride(0), router.stride(1),
        down.stride(0), down.stride(1), gate_up.stride(0), gate_up.stride(1), logits.stride(0),
        latent.stride(0), rows, k, count, columns, width, stages.shared.BETA, stages.shared.LINEAR_BETA,
        ROWS=rows, COLUMNS=held, STEP=step, num_warps=4 * rows, num_stages=3,
    )  # fmt: skip
    return hidden


def route_and_down(
    a: SmallBatchArguments, hidden: Tensor, down: Tensor, partial: Tensor
) -> tuple[Tensor, Tensor]:
    """ids, weights and the ``partial`` of the shards given; returns the latent's bytes and scales."""
    (rows, count), (ranks, _, width), n = a.logits.shape, hidden.shape, down.shape[1]
    blocks, where = a.latent.shape[1] // 32, a.h.device
    codes = torch.empty(rows, blocks * 32, dtype=torch.uint8, device=where)
    scales = torch.empty(rows, blocks, dtype=torch.uint8, device=where)
    scratch = torch.empty(rows, route.CANDIDATES, dtype=torch.int64, device=where)
    (held, step), size = DOWN, BLOCKS
    if interpreted(a.h):
        held, step, size = min(power_of_two(n), 128), power_of_two(width), min(power_of_two(blocks), 2)
    roles = 1 + triton.cdiv(blocks, size) + triton.cdiv(n, held)
    route_shared_kernel[rows, roles, ranks](
        a.logits, a.bias, a.ids, a.weights, scratch, a.latent, codes, scales, hidden, down, partial,
        a.logits.stride(0), a.ids.stride(0), a.weights.stride(0), a.latent.stride(0), down.stride(0),
        down.stride(1), partial.stride(0), partial.stride(1), rows, count, a.ids.shape[1], a.scale, blocks,
        width, n, EXPERTS=max(2 * route.GROUPS, power_of_two(count)), SLOTS=route.SLOTS,
        GROUPS=route.GROUPS, CANDIDATES=route.CANDIDATES, BLOCKS=size, ROWS=rows, COLUMNS=held, STEP=step,
        num_warps=WARPS,
    )  # fmt: skip
    return codes, scales


def reason(rows: int, slots: int, latent: int, live: int, count: int) -> str | None:
    """Why a shape is not served, or None."""
    if rows > MOST_ROWS:
        return f"{rows} rows; the small-batch chain serves at most {MOST_ROWS}"
    if not 1 <= slots <= route.SLOTS:
        return f"{slots} slots; 1 to {route.SLOTS} are served"
    if not slots <= count <= route.MAX_EXPERTS:
        return f"{count} experts for {slots} slots; {slots} to {route.MAX_EXPERTS} are served"
    return experts.reason(rows, slots, latent, live)


def supports(case: Case) -> str | None:
    count = case["ranks"] * case["experts"]
    return reason(case["rows"], case["slots"], case["latent"], case["live"], count)


FIRST = ("front_shared_kernel", "route_shared_kernel")


def kernels(case: Case) -> tuple[str, ...]:
    """What ``small_batch`` launches for a case: the experts once for every rank."""
    rows = case["rows"]
    tail = moe_tail.KERNELS[moe_tail.dispatch(rows).path]
    return FIRST + experts.dispatch(rows).kernels * case["ranks"] + tail


TABLE = tuple(
    Route(
        rows=rows,
        kernels=(*FIRST, *experts.dispatch(rows).kernels, *moe_tail.KERNELS[moe_tail.dispatch(rows).path]),
        settings={"front": FRONT, "down": DOWN},
        when="one rank",
    )
    for rows in (1, 2)
)
OPERATIONS = {
    "small_batch": {"function": small_batch, "kernels": kernels, "table": TABLE, "supports": supports},
}
