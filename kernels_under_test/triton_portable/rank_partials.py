"""Row-parallel products: every rank's BF16 partial in one launch, and their sum over ranks.

The o-projection and both down projections are of this kind. Up to two rows a rank's weight streams through
plain multiply-adds, one program for a few columns and all of K; from three rows on it is the left operand of
``tl.dot``. A partial is rounded once to BF16, and -0 becomes +0: in the subject -0 marks a mailbox word that
has not arrived. K is not split over programs, so nothing depends on which program ends first.

``produce`` takes any number of ranks: all of them in a test of numbers, one in a test of speed.

What this cannot show: multicast, mailboxes, and the subject's split of K over the warps of a program.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    programmatic,
    smallest_range,
)

if TYPE_CHECKING:
    from torch import Tensor

# Rows up to which the skinny kernel serves.
SKINNY_ROWS = 2
# Largest step along K of the skinny kernel, and how many weights of its columns a program asks for at once.
SKINNY_STEP, IN_FLIGHT = 256, 8192
# Most of either kernel's step in the interpreter.
INTERPRETED_STEP = 256
# Largest tile that Triton takes, reached in the interpreter alone.
MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a partial that a program of the dot kernel holds, and its step along K."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


# Largest number of rows -> tile. Above the last entry its programs are repeated over blocks of rows.
TILES = {
    16: Tile(rows=16, columns=64, step=128, warps=4, stages=5),
    32: Tile(rows=32, columns=64, step=128, warps=4, stages=4),
    64: Tile(rows=64, columns=64, step=128, warps=4, stages=4),
}


@triton.jit
def published(total):
    """The BF16 value of an FP32 partial, with +0 for -0."""
    rounded = total.to(tl.bfloat16).to(tl.float32)
    return tl.where(rounded == 0.0, 0.0, rounded).to(tl.bfloat16)


@triton.jit
def first_weights(weights, column, n, k, STEP: tl.constexpr):
    """The first STEP weights of each column. [COLUMNS, STEP]"""
    at = tl.arange(0, STEP)
    return tl.load(weights + at[None, :], mask=(column[:, None] < n) & (at < k)[None, :], other=0.0)


@triton.jit
def row_product(w, weights, y, column, n, k, STEP: tl.constexpr, STEPS: tl.constexpr):
    """FP32 products of one row with columns whose first weights are loaded already. [COLUMNS]"""
    at = tl.arange(0, STEP)
    total = w.to(tl.float32) * tl.load(y + at, mask=at < k, other=0.0).to(tl.float32)[None, :]
    for step in range(1, STEPS):
        position = step * STEP + at
        inside = position < k
        more = tl.load(weights + position[None, :], mask=(column[:, None] < n) & inside[None, :], other=0.0)
        v = tl.load(y + position, mask=inside, other=0.0)
        total += more.to(tl.float32) * v.to(tl.float32)[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def partial_skinny_kernel(
    y, weight, mailbox, stride_y_rank, stride_y, stride_weight_rank, stride_weight,
    stride_mailbox_rank, stride_mailbox, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """mailbox[rank, row, column] of a few columns of one rank, all of K. Its first weights are asked for
    before it waits for the kernel that writes y."""
    rank = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    weights = weight + rank * stride_weight_rank + column[:, None] * stride_weight
    w = first_weights(weights, column, n, k, STEP)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    y += rank * stride_y_rank
    mailbox += rank * stride_mailbox_rank
    for row in tl.static_range(ROWS):
        total = row_product(w, weights, y + row * stride_y, column, n, k, STEP, STEPS)
        tl.store(mailbox + row * stride_mailbox + column, published(total), mask=column < n)


@triton.jit
def partial_dot_kernel(
    y, weight, mailbox, stride_y_rank, stride_y, stride_weight_rank, stride_weight,
    stride_mailbox_rank, stride_mailbox, rows, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """mailbox[rank, row, column] of a tile of one rank, by tensor cores."""
    rank = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(2).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    y += rank * stride_y_rank
    weight += rank * stride_weight_rank
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for start in range(0, k, STEP):
        position = start + at
        w_at = weight + column[:, None] * stride_weight + position[None, :]
        w = tl.load(w_at, mask=(column[:, None] < n) & (position[None, :] < k), other=0.0)
        y_at = y + row[None, :] * stride_y + position[:, None]
        v = tl.load(y_at, mask=(row[None, :] < rows) & (position[:, None] < k), other=0.0)
        total = tl.dot(w, v, total)
    to = mailbox + rank * stride_mailbox_rank + row[None, :] * stride_mailbox + column[:, None]
    tl.store(to, published(total), mask=(row[None, :] < rows) & (column[:, None] < n))


@triton.jit
def add_ranks_kernel(
    mailbox, out, stride_mailbox_rank, stride_mailbox, stride_out, n,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[row, column] = bf16(mailbox[0] + mailbox[1] + ...): FP32, in rank order."""
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = mailbox + row * stride_mailbox + column
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.load(at, mask=column < n, other=0.0).to(tl.float32)
    for rank in tl.static_range(1, RANKS):
        part = tl.load(at + tl.cast(rank, tl.int64) * stride_mailbox_rank, mask=column < n, other=0.0)
        total += part.to(tl.float32)
    tl.store(out + row * stride_out + column, total.to(tl.bfloat16), mask=column < n)


def tile(rows: int, n: int, k: int, on_cpu: bool) -> Tile:
    """The dot kernel's tile. The interpreter pays by the operation, not by the element: there, larger tiles
    of the same kernel."""
    chosen = smallest_range(TILES, rows)
    if not on_cpu:
        return chosen
    columns, step = (
        max(16, min(power_of_two(size), most)) for size, most in ((n, 1024), (k, INTERPRETED_STEP))
    )
    return Tile(chosen.rows, columns, step, chosen.warps, chosen.stages)


def skinny_tile(n: int, k: int, on_cpu: bool) -> dict[str, int]:
    """Columns and steps of a program of the skinny kernel."""
    step = min(power_of_two(k), INTERPRETED_STEP if on_cpu else SKINNY_STEP)
    columns = (
        min(power_of_two(n), MOST_ELEMENTS // step, 1024) if on_cpu else max(1, IN_FLIGHT // max(step, 128))
    )
    return {"COLUMNS": columns, "STEP": step, "STEPS": triton.cdiv(k, step)}


def kernel_name(rows: int) -> str:
    """What ``produce`` launches for that many rows."""
    return "partial_skinny_kernel" if rows <= SKINNY_ROWS else "partial_dot_kernel"


def produce(y: Tensor, weight: Tensor, mailbox: Tensor) -> None:
    """mailbox[T, B, N] = bf16(y[T, B, K] weight[T, N, K]^T) of every rank given, +0 for -0; any shape.

    Ranks and rows may lie apart; K and N must be dense.
    """
    need_dense_last_axis(y=y, weight=weight, mailbox=mailbox)
    (ranks, rows, k), n = y.shape, weight.shape[1]
    strides = (*y.stride()[:2], *weight.stride()[:2], *mailbox.stride()[:2])
    if rows <= SKINNY_ROWS:
        options = skinny_tile(n, k, interpreted(y))
        partial_skinny_kernel[triton.cdiv(n, options["COLUMNS"]), ranks](
            y, weight, mailbox, *strides, n, k, ROWS=rows, **options, num_warps=4, **programmatic(y)
        )
        return
    t = tile(rows, n, k, interpreted(y))
    partial_dot_kernel[triton.cdiv(n, t.columns), ranks, triton.cdiv(rows, t.rows)](
        y, weight, mailbox, *strides, rows, n, k, ROWS=t.rows, COLUMNS=t.columns, STEP=t.step,
        num_warps=t.warps, num_stages=t.stages, **programmatic(y),
    )  # fmt: skip


def add_ranks(mailbox: Tensor, out: Tensor) -> None:
    """out[B, N] = bf16 of the FP32 sum of mailbox[T, B, N] in rank order."""
    need_dense_last_axis(mailbox=mailbox, out=out)
    ranks, rows, n = mailbox.shape
    block = 8192 if interpreted(out) else 256 if rows <= 8 else 1024
    add_ranks_kernel[triton.cdiv(n, block), rows](
        mailbox, out, *mailbox.stride()[:2], out.stride(0), n,
        RANKS=ranks, BLOCK=block, num_warps=max(1, min(4, block // 256)), **programmatic(out),
    )  # fmt: skip
