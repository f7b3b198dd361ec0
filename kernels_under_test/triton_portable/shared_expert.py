"""The shared experts: weight streaming with SiTU fused for one or two rows, split-K tensor cores above.

Like the subject's operation 3.16. Up to two rows a program holds the gate and the up rows of a few channels,
so that SiTU follows in registers, and a second kernel streams the down rows. From three rows on gate and up
are a split-K product whose FP32 parts the SiTU kernel adds in order, and the down projection is a product
without splits. -0.0 is never sent. The last kernel plays the reduce-scatter: ranks added in order, one
rounding. Nothing depends on which program ends first. ``TACTICS`` is the whole dispatch; ``shard`` is what
one rank runs.

What this cannot show: peer stores, the side stream, and the few SMs the subject leaves to the down rows.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import (
    interpreted,
    k_ranges,
    need_dense_last_axis,
    power_of_two,
    smallest_range,
)
from kernels_under_test.triton_portable.precise import situ
from kernels_under_test.triton_portable.rank_partials import published
from validation.dispatch.table import Route

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.moe.shared import SharedExpertArguments


@dataclass(frozen=True)
class Tactic:
    """How a range of batches is computed: path, rows a program holds, warps and stages of both products."""

    path: Literal["skinny", "split_k"]
    rows: int
    warps: int
    stages: int


# Largest batch of the range -> tactic. Above the last entry its programs are repeated over blocks of rows.
TACTICS = {
    1: Tactic("skinny", rows=1, warps=4, stages=3),
    2: Tactic("skinny", rows=2, warps=8, stages=3),
    16: Tactic("split_k", rows=16, warps=4, stages=4),
    32: Tactic("split_k", rows=32, warps=4, stages=4),
    64: Tactic("split_k", rows=64, warps=4, stages=3),
}
KERNELS = {
    "skinny": ("gate_up_situ_kernel", "down_skinny_kernel", "rank_sum_kernel"),
    "split_k": ("gate_up_split_kernel", "add_splits_situ_kernel", "down_dot_kernel", "rank_sum_kernel"),
}
# Columns of the result and K step of each product's program; the interpreter pays by the operation.
TILES = {
    "gate_up_situ": (2, 1024),
    "down_skinny": (16, 256),
    "gate_up_split": (64, 128),
    "down_dot": (64, 128),
}
INTERPRETED = {
    "gate_up_situ": (64, 8192),
    "down_skinny": (1024, 512),
    "gate_up_split": (128, 1024),
    "down_dot": (512, 128),
}


def dispatch(batch: int) -> Tactic:
    """The tactic for a batch, of the smallest range that holds it."""
    return smallest_range(TACTICS, batch)


@triton.jit
def gate_up_situ(
    h, gate_up, hidden, tile, row_tile, rank, stride_h, stride_rank, stride_channel, batch, width, k, beta,
    linear, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """hidden[rank, row, channel] = bf16(SiTU(bf16(h . gate row), bf16(h . up row))) of one tile. ``rank``
    int64"""
    channel = tile * COLUMNS + tl.arange(0, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    gate_at = gate_up + rank * stride_rank + channel[:, None].to(tl.int64) * stride_channel
    up_at = gate_at + tl.cast(width, tl.int64) * stride_channel
    h_at = h + row[:, None].to(tl.int64) * stride_h
    gate = tl.zeros([ROWS, COLUMNS, STEP], dtype=tl.float32)
    up = tl.zeros([ROWS, COLUMNS, STEP], dtype=tl.float32)
    for start in range(0, k, STEP):
        position = start + at[None, :]
        live = (channel[:, None] < width) & (position < k)
        w_gate = tl.load(gate_at + position, mask=live, other=0.0).to(tl.float32)
        w_up = tl.load(up_at + position, mask=live, other=0.0).to(tl.float32)
        v = tl.load(h_at + position, mask=(row[:, None] < batch) & (position < k), other=0.0).to(tl.float32)
        gate += v[:, None, :] * w_gate[None, :, :]
        up += v[:, None, :] * w_up[None, :, :]
    g = tl.sum(gate, axis=2).to(tl.bfloat16).to(tl.float32)
    u = tl.sum(up, axis=2).to(tl.bfloat16).to(tl.float32)
    place = (rank * batch + row[:, None]) * width + channel[None, :]
    live_out = (row[:, None] < batch) & (channel[None, :] < width)
    tl.store(hidden + place, situ(g, u, beta, linear).to(tl.bfloat16), mask=live_out)


@triton.jit
def gate_up_situ_kernel(
    h, gate_up, hidden, stride_h, stride_rank, stride_channel, batch, width, k, beta, linear,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    gate_up_situ(
        h, gate_up, hidden, tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64), stride_h,
        stride_rank, stride_channel, batch, width, k, beta, linear, ROWS, COLUMNS, STEP,
    )  # fmt: skip


@triton.jit
def gate_up_split_kernel(
    h, gate_up, pieces, stride_h, stride_rank, stride_channel, batch, n, k, k_split, splits, ranks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """pieces[split, rank, row, channel of gate and up] = the FP32 sum over this split's range of K."""
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(1) % splits
    row = tl.program_id(1) // splits * ROWS + tl.arange(0, ROWS)
    rank = tl.program_id(2).to(tl.int64)
    at = tl.arange(0, STEP)
    w_at = gate_up + rank * stride_rank + channel[:, None].to(tl.int64) * stride_channel
    h_at = h + row[None, :].to(tl.int64) * stride_h
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    for step in range(0, k_split, STEP):
        position = split * k_split + step + at
        w = tl.load(
            w_at + position[None, :], mask=(channel[:, None] < n) & (position[None, :] < k), other=0.0
        )
        v = tl.load(
            h_at + position[:, None], mask=(row[None, :] < batch) & (position[:, None] < k), other=0.0
        )
        total = tl.dot(w, v, total)
    place = ((split * ranks + rank) * batch + row[None, :]) * n + channel[:, None]
    tl.store(pieces + place, total, mask=(row[None, :] < batch) & (channel[:, None] < n))


@triton.jit
def add_splits_situ_kernel(pieces, hidden, lines, width, splits, beta, linear, BLOCK: tl.constexpr):
    """hidden[line, channel] = bf16(SiTU(...)) of the splits' sums in order; a line is a row of a rank."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < lines * width
    place = pieces + at + at // width * width  # a line of pieces is 2 * width long
    gate = tl.load(place, mask=live, other=0.0)
    up = tl.load(place + width, mask=live, other=0.0)
    for _ in range(1, splits):
        place += lines * 2 * width
        gate += tl.load(place, mask=live, other=0.0)
        up += tl.load(place + width, mask=live, other=0.0)
    g = gate.to(tl.bfloat16).to(tl.float32)
    u = up.to(tl.bfloat16).to(tl.float32)
    tl.store(hidden + at, situ(g, u, beta, linear).to(tl.bfloat16), mask=live)


@triton.jit
def down_skinny(
    hidden, down, partial, tile, row_tile, rank, stride_rank, stride_column, stride_partial_rank,
    stride_partial, batch, width, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """partial[rank, row, column] = bf16(hidden . down row) of one tile, -0.0 as +0.0. ``rank`` int64"""
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    w_at = down + rank * stride_rank + column[:, None].to(tl.int64) * stride_column
    h_at = hidden + (rank * batch + row[:, None]) * width
    total = tl.zeros([ROWS, COLUMNS, STEP], dtype=tl.float32)
    for start in range(0, width, STEP):
        position = start + at[None, :]
        w = tl.load(w_at + position, mask=(column[:, None] < n) & (position < width), other=0.0)
        v = tl.load(h_at + position, mask=(row[:, None] < batch) & (position < width), other=0.0)
        total += v.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
    result = published(tl.sum(total, axis=2))
    place = rank * stride_partial_rank + row[:, None].to(tl.int64) * stride_partial + column[None, :]
    tl.store(partial + place, result, mask=(row[:, None] < batch) & (column[None, :] < n))


@triton.jit
def down_skinny_kernel(
    hidden, down, partial, stride_rank, stride_column, stride_partial_rank, stride_partial, batch, width, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    down_skinny(
        hidden, down, partial, tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64), stride_rank,
        stride_column, stride_partial_rank, stride_partial, batch, width, n, ROWS, COLUMNS, STEP,
    )  # fmt: skip


@triton.jit
def down_dot_kernel(
    hidden, down, partial, stride_rank, stride_column, stride_partial_rank, stride_partial, batch, width, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """partial[rank, row, column] = bf16(hidden . down row), -0.0 as +0.0."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    rank = tl.program_id(2).to(tl.int64)
    at = tl.arange(0, STEP)
    w_at = down + rank * stride_rank + column[:, None].to(tl.int64) * stride_column
    h_at = hidden + (rank * batch + row[None, :]) * width
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    for start in range(0, width, STEP):
        at_k = start + at
        w = tl.load(w_at + at_k[None, :], mask=(column[:, None] < n) & (at_k[None, :] < width), other=0.0)
        v = tl.load(h_at + at_k[:, None], mask=(row[None, :] < batch) & (at_k[:, None] < width), other=0.0)
        total = tl.dot(w, v, total)
    result = published(total)
    place = rank * stride_partial_rank + row[None, :].to(tl.int64) * stride_partial + column[:, None]
    tl.store(partial + place, result, mask=(row[None, :] < batch) & (column[:, None] < n))


@triton.jit
def rank_sum_kernel(
    partial, out, stride_rank, stride_row, stride_out, batch, n, ranks,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row, column] = bf16(partial[0] + partial[1] + ...) in FP32, in this order, -0.0 as +0.0."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    live = (row < batch) & (column < n)
    at = partial + row * stride_row + column
    total = tl.load(at, mask=live, other=0.0).to(tl.float32)
    for _ in range(1, ranks):
        at += stride_rank
        total += tl.load(at, mask=live, other=0.0).to(tl.float32)
    result = published(total)
    tl.store(out + row * stride_out + column, result, mask=live)


def shared_expert(a: SharedExpertArguments) -> None:
    """Partials of all ranks and their sum; any number of rows, ranks, columns and channels.

    Rows may lie apart; within a row everything must be dense.
    """
    need_dense_last_axis(h=a.h, gate_up=a.gate_up, down=a.down, partial=a.partial, out=a.out)
    shard(a.h, a.gate_up, a.down, a.partial, a.beta, a.linear_beta)
    sum_ranks(a.partial, a.out)


def sum_ranks(partial: Tensor, out: Tensor) -> None:
    """out[row, column] = bf16(sum of partial[rank] in rank order)."""
    ranks, rows, n = partial.shape
    block, tall = (min(power_of_two(n), 4096), 16) if interpreted(partial) else (1024, 1)
    rank_sum_kernel[triton.cdiv(n, block), triton.cdiv(rows, tall)](
        partial, out, partial.stride(0), partial.stride(1), out.stride(0), rows, n, ranks, ROWS=tall,
        BLOCK=block, num_warps=4,
    )  # fmt: skip


def shard(h: Tensor, gate_up: Tensor, down: Tensor, partial: Tensor, beta: float, linear: float) -> None:
    """The partials of the ranks whose shards are given (first axis): one of them is what one rank runs."""
    tactic = dispatch(h.shape[0])
    (ranks, _, width), rows = down.shape, h.shape[0]
    hidden = torch.empty(ranks, rows, width, dtype=torch.bfloat16, device=h.device)
    if tactic.path == "skinny":
        _gate_up_skinny(h, gate_up, hidden, beta, linear, tactic)
        _down(down_skinny_kernel, "down_skinny", hidden, down, partial, tactic)
    else:
        _gate_up_split(h, gate_up, hidden, beta, linear, tactic)
        _down(down_dot_kernel, "down_dot", hidden, down, partial, tactic)


def _tiles(product: str, tensor: Tensor, n: int, k: int) -> tuple[int, int]:
    """Columns and K step of a product [.., k] x [n, k]; interpreted, no larger than the product."""
    if not interpreted(tensor):
        return TILES[product]
    columns, step = INTERPRETED[product]
    return min(columns, max(power_of_two(n), 16)), min(step, max(power_of_two(k), 16))


def _gate_up_skinny(
    h: Tensor, gate_up: Tensor, hidden: Tensor, beta: float, linear: float, tactic: Tactic
) -> None:
    (ranks, rows, width), k = hidden.shape, h.shape[1]
    columns, step = _tiles("gate_up_situ", h, width, k)
    gate_up_situ_kernel[triton.cdiv(width, columns), triton.cdiv(rows, tactic.rows), ranks](
        h, gate_up, hidden, h.stride(0), gate_up.stride(0), gate_up.stride(1), rows, width, k, beta, linear,
        ROWS=tactic.rows, COLUMNS=columns, STEP=step, num_warps=tactic.warps, num_stages=tactic.stages,
    )  # fmt: skip


def _gate_up_split(
    h: Tensor, gate_up: Tensor, hidden: Tensor, beta: float, linear: float, tactic: Tactic
) -> None:
    (ranks, rows, width), k = hidden.shape, h.shape[1]
    columns, step = _tiles("gate_up_split", h, 2 * width, k // 4)
    splits, k_split = k_ranges(2 * width, k, columns, step)
    pieces = torch.empty(splits, ranks, rows, 2 * width, dtype=torch.float32, device=h.device)
    grid = (triton.cdiv(2 * width, columns), splits * triton.cdiv(rows, tactic.rows), ranks)
    gate_up_split_kernel[grid](
        h, gate_up, pieces, h.stride(0), gate_up.stride(0), gate_up.stride(1), rows, 2 * width, k, k_split,
        splits, ranks, ROWS=tactic.rows, COLUMNS=columns, STEP=step, num_warps=tactic.warps,
        num_stages=tactic.stages,
    )  # fmt: skip
    block = 1 << 12 if interpreted(h) else 256
    add_splits_situ_kernel[(triton.cdiv(hidden.numel(), block),)](
        pieces, hidden, ranks * rows, width, splits, beta, linear, BLOCK=block, num_warps=4
    )


def _down(
    kernel: triton.JITFunction, name: str, hidden: Tensor, down: Tensor, partial: Tensor, tactic: Tactic
) -> None:
    (ranks, rows, width), n = hidden.shape, down.shape[1]
    columns, step = _tiles(name, hidden, n, width)
    kernel[triton.cdiv(n, columns), triton.cdiv(rows, tactic.rows), ranks](
        hidden, down, partial, down.stride(0), down.stride(1), partial.stride(0), partial.stride(1), rows,
        width, n, ROWS=tactic.rows, COLUMNS=columns, STEP=step, num_warps=tactic.warps,
        num_stages=tactic.stages,
    )  # fmt: skip


def kernels(case: Case) -> tuple[str, ...]:
    """What ``shared_expert`` launches for a case."""
    return KERNELS[dispatch(case["rows"]).path]


TABLE = tuple(
    Route(rows=rows, kernels=KERNELS[tactic.path], settings={"rows": tactic.rows, "warps": tactic.warps})
    for rows, tactic in TACTICS.items()
)
OPERATIONS = {"shared_expert": {"function": shared_expert, "kernels": kernels, "table": TABLE}}
