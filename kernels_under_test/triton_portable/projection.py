"""y = bf16(x W^T): a skinny kernel for one or two rows, split-K with tensor cores above.

Like the subject's packed input projections (its operations 3.3 and 3.4): up to two rows the weights stream
through plain multiply-adds; from three rows on they are the left operand of ``tl.dot``, each split sums a
contiguous range of K in FP32, and a second kernel adds the splits in order and rounds once. Nothing depends
on which program ends first, so equal calls give equal bits. ``TACTICS`` is the whole dispatch.

What this cannot show: the subject's clusters, in which partial sums travel through shared memory.
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
    need_dense_last_axis,
    power_of_two,
    programmatic,
    smallest_range,
)
from validation.dispatch.table import Route

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.arguments import ProjectionArguments
    from validation.contracts.contract import Case


@dataclass(frozen=True)
class Tactic:
    """How a range of batches is computed: kernel, rows and columns of ``out`` a program holds, K step."""

    kernel: Literal["skinny", "split_k"]
    rows: int
    columns: int
    step: int
    splits: int
    warps: int
    stages: int


# Largest batch of the range -> tactic. Above the last entry its programs are repeated over blocks of rows.
TACTICS = {
    1: Tactic("skinny", rows=1, columns=2, step=8192, splits=1, warps=4, stages=3),
    2: Tactic("skinny", rows=2, columns=2, step=8192, splits=1, warps=4, stages=3),
    16: Tactic("split_k", rows=16, columns=64, step=128, splits=4, warps=4, stages=4),
    32: Tactic("split_k", rows=32, columns=64, step=64, splits=2, warps=4, stages=5),
    64: Tactic("split_k", rows=64, columns=64, step=128, splits=2, warps=4, stages=4),
}
# The interpreter pays by the operation, not by the element: the same kernels and splits in larger tiles.
INTERPRETED = {"skinny": (64, 8192), "split_k": (512, 1024)}


def dispatch(batch: int) -> Tactic:
    """The tactic for a batch, of the smallest range that holds it."""
    return smallest_range(TACTICS, batch)


@triton.jit
def skinny_kernel(
    x, weight, out, stride_x, stride_weight, stride_out, batch, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A few columns for a few rows. The first STEP weights of each column are asked for before the kernel
    waits for the one that writes x: with STEPS = 1 that is all of them."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1).to(tl.int64) * ROWS
    at = tl.arange(0, STEP)
    rows = weight + column[:, None] * stride_weight + at[None, :]
    w = tl.load(rows, mask=(column[:, None] < n) & (at < k)[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for row in tl.static_range(ROWS):
        live = first + row < batch
        x_at = x + (first + row) * stride_x + at
        total = w.to(tl.float32) * tl.load(x_at, mask=live & (at < k), other=0.0).to(tl.float32)[None, :]
        for step in range(1, STEPS):
            inside = step * STEP + at < k
            more = tl.load(rows + step * STEP, mask=(column[:, None] < n) & inside[None, :], other=0.0)
            v = tl.load(x_at + step * STEP, mask=live & inside, other=0.0)
            total += more.to(tl.float32) * v.to(tl.float32)[None, :]
        result = tl.sum(total, axis=1).to(tl.bfloat16)
        tl.store(out + (first + row) * stride_out + column, result, mask=live & (column < n))


@triton.jit
def split_k_kernel(
    x, weight, partial, stride_x, stride_weight, batch, n, k, k_split,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """partial[split, row, column] = the FP32 sum over this split's range of K."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    for step in range(0, k_split, STEP):
        position = split * k_split + step + at
        w_at = weight + column[:, None] * stride_weight + position[None, :]
        w = tl.load(w_at, mask=(column[:, None] < n) & (position[None, :] < k), other=0.0)
        x_at = x + row[None, :] * stride_x + position[:, None]
        v = tl.load(x_at, mask=(row[None, :] < batch) & (position[:, None] < k), other=0.0)
        total = tl.dot(w, v, total)
    live = (row[None, :] < batch) & (column[:, None] < n)
    tl.store(partial + (split * batch + row[None, :]) * n + column[:, None], total, mask=live)


@triton.jit
def add_splits_kernel(partial, out, stride_out, batch, n, splits, BLOCK: tl.constexpr):
    """out[row, column] = bf16(partial[0] + partial[1] + ...), in this order."""
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(partial + row * n + column, mask=column < n, other=0.0)
    for split in range(1, splits):
        total += tl.load(partial + (split * batch + row) * n + column, mask=column < n, other=0.0)
    tl.store(out + row * stride_out + column, total.to(tl.bfloat16), mask=column < n)


def projection(a: ProjectionArguments) -> None:
    """out[B, N] = bf16(x[B, K] weight[N, K]^T), FP32 accumulation, one rounding; any B, N, K.

    Rows may lie apart; K and N must be dense.
    """
    need_dense_last_axis(x=a.x, weight=a.weight, out=a.out)
    tactic = dispatch(a.x.shape[0])
    columns, step = tactic.columns, tactic.step
    if interpreted(a.x):
        columns, step = INTERPRETED[tactic.kernel]
    run = _skinny if tactic.kernel == "skinny" else _split_k
    run(a.x, a.weight, a.out, tactic, columns, step)


def _skinny(x: Tensor, weight: Tensor, out: Tensor, tactic: Tactic, columns: int, step: int) -> None:
    (batch, k), n = x.shape, weight.shape[0]
    step = min(power_of_two(k), step)
    columns = max(1, columns * tactic.step // step) if not interpreted(x) else columns
    grid = (triton.cdiv(n, columns), triton.cdiv(batch, tactic.rows))
    skinny_kernel[grid](
        x, weight, out, x.stride(0), weight.stride(0), out.stride(0), batch, n, k,
        ROWS=tactic.rows, COLUMNS=columns, STEP=step, STEPS=triton.cdiv(k, step),
        num_warps=tactic.warps, num_stages=tactic.stages, **programmatic(x),
    )  # fmt: skip


def _split_k(x: Tensor, weight: Tensor, out: Tensor, tactic: Tactic, columns: int, step: int) -> None:
    (batch, k), n = x.shape, weight.shape[0]
    k_split = triton.cdiv(triton.cdiv(k, tactic.splits), step) * step
    partial = torch.empty(tactic.splits, batch, n, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, columns), tactic.splits, triton.cdiv(batch, tactic.rows))
    split_k_kernel[grid](
        x, weight, partial, x.stride(0), weight.stride(0), batch, n, k, k_split,
        ROWS=tactic.rows, COLUMNS=columns, STEP=step, num_warps=tactic.warps, num_stages=tactic.stages,
    )  # fmt: skip
    add_splits_kernel[triton.cdiv(n, 1024), batch](
        partial, out, out.stride(0), batch, n, tactic.splits, BLOCK=1024
    )


def kernels(case: Case) -> tuple[str, ...]:
    """What ``projection`` launches for a case."""
    return ("skinny_kernel",) if case["rows"] <= 2 else ("split_k_kernel", "add_splits_kernel")


TABLE = tuple(
    Route(
        rows=rows,
        kernels=("skinny_kernel",) if tactic.kernel == "skinny" else ("split_k_kernel", "add_splits_kernel"),
        settings={
            "rows": tactic.rows,
            "columns": tactic.columns,
            "step": tactic.step,
            "splits": tactic.splits,
        },
    )
    for rows, tactic in TACTICS.items()
)
OPERATIONS = {"projection": {"function": projection, "kernels": kernels, "table": TABLE}}
