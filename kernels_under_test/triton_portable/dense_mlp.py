"""Dense MLP of layer 0 (the subject's operation 3.12): gate and up, SiTU, down, sum over ranks.

Up to two rows one kernel streams a gate row and its up row together and writes the bounded product; from
three rows on split-K products by ``tl.dot`` leave FP32 partial sums, and a second kernel adds them in order,
rounds gate and up, and applies SiTU. The down projection is that of ``rank_partials``. SiTU takes sigmoid(g)
as (1 + tanh(g / 2)) / 2, as the subject does here.

What this cannot show: the subject's padding of F to a multiple of its K tile (tails are masked here), and the
framework's all-reduce (here in rank order).
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    programmatic,
)
from kernels_under_test.triton_portable.precise import tanh
from kernels_under_test.triton_portable.rank_partials import (
    MOST_ELEMENTS,
    SKINNY_ROWS,
    Tile,
    add_ranks,
    first_weights,
    kernel_name,
    produce,
    row_product,
)
from validation.dispatch.table import Route, route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.dense import DenseMlpArguments

MAX_RANKS = 16
# Step along K of the skinny kernel: a whole row of the subject's gate is asked for before the wait.
SKINNY_STEP = 8192
# Largest number of rows -> tile of the split-K kernel, and how many ranges K is cut into.
TILES = {
    16: (Tile(rows=16, columns=64, step=128, warps=4, stages=5), 4),
    32: (Tile(rows=32, columns=64, step=128, warps=4, stages=4), 4),
    64: (Tile(rows=64, columns=64, step=128, warps=4, stages=4), 2),
}


@triton.jit
def _situ(gate, up):
    """BF16 SiTU of FP32 sums, which are rounded to BF16 first; beta 4 for the gate, 25 for up."""
    g = gate.to(tl.bfloat16).to(tl.float32)
    u = up.to(tl.bfloat16).to(tl.float32)
    left = (2.0 * tanh(g * 0.25)) * (1.0 + tanh(0.5 * g))
    return (left * (25.0 * tanh(u * 0.04))).to(tl.bfloat16)


@triton.jit
def gate_up_skinny_kernel(
    x, weight, hidden, stride_x, stride_weight_rank, stride_weight,
    stride_hidden_rank, stride_hidden, half, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """hidden[rank, row, column] of a few columns of one rank, all of K."""
    rank = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    gates = weight + rank * stride_weight_rank + column[:, None] * stride_weight
    ups = gates + tl.cast(half, tl.int64) * stride_weight
    first_gate = first_weights(gates, column, half, k, STEP)
    first_up = first_weights(ups, column, half, k, STEP)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    hidden += rank * stride_hidden_rank
    for row in tl.static_range(ROWS):
        at = x + row * stride_x
        gate = row_product(first_gate, gates, at, column, half, k, STEP, STEPS)
        up = row_product(first_up, ups, at, column, half, k, STEP, STEPS)
        tl.store(hidden + row * stride_hidden + column, _situ(gate, up), mask=column < half)


@triton.jit
def gate_up_split_kernel(
    x, weight, partial, stride_x, stride_weight_rank, stride_weight, rows, n, k, k_split,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """partial[split, rank, row, column] = the FP32 sum over this split's range of K, gate then up columns."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(1).to(tl.int64)
    rank = tl.program_id(2).to(tl.int64)
    row = tl.arange(0, ROWS).to(tl.int64)
    at = tl.arange(0, STEP)
    weight += rank * stride_weight_rank
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for step in range(0, k_split, STEP):
        position = split * k_split + step + at
        w_at = weight + column[:, None] * stride_weight + position[None, :]
        w = tl.load(w_at, mask=(column[:, None] < n) & (position[None, :] < k), other=0.0)
        x_at = x + row[None, :] * stride_x + position[:, None]
        v = tl.load(x_at, mask=(row[None, :] < rows) & (position[:, None] < k), other=0.0)
        total = tl.dot(w, v, total)
    base = (split * tl.num_programs(2) + rank) * rows
    live = (row[None, :] < rows) & (column[:, None] < n)
    tl.store(partial + (base + row[None, :]) * n + column[:, None], total, mask=live)


@triton.jit
def dense_situ_kernel(
    partial, hidden, stride_hidden_rank, stride_hidden, rows, half,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """hidden[rank, row, column]: splits added in order, gate and up rounded, SiTU, rounded."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    rank = tl.program_id(2).to(tl.int64)
    inside = column < half
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    at = partial + (rank * rows + row) * (2 * half) + column
    apart = tl.num_programs(2).to(tl.int64) * rows * (2 * half)
    gate = tl.load(at, mask=inside, other=0.0)
    up = tl.load(at + half, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        gate += tl.load(at + split * apart, mask=inside, other=0.0)
        up += tl.load(at + split * apart + half, mask=inside, other=0.0)
    tl.store(hidden + rank * stride_hidden_rank + row * stride_hidden + column, _situ(gate, up), mask=inside)


def dense_mlp(a: DenseMlpArguments) -> None:
    """out[B, D] of all ranks; see ``DenseMlpArguments``. Up to 64 rows and 16 ranks, any D and F."""
    (ranks, width, half), rows = a.down.shape, a.x.shape[0]
    if reason := _refused(ranks, rows):
        raise UserError(reason)
    need_dense_last_axis(out=a.out)
    hidden = torch.empty(ranks, rows, half, dtype=a.x.dtype, device=a.x.device)
    partials = torch.empty(ranks, rows, width, dtype=a.x.dtype, device=a.x.device)
    hide(a.x, a.gate_up, hidden)
    produce(hidden, a.down, partials)
    add_ranks(partials, a.out)


def hide(x: Tensor, gate_up: Tensor, hidden: Tensor) -> None:
    """hidden[T, B, F] = bf16(SiTU(bf16 gate, bf16 up)) of x[B, K] and gate_up[T, 2 F, K] of these ranks."""
    need_dense_last_axis(x=x, gate_up=gate_up, hidden=hidden)
    if x.shape[0] <= SKINNY_ROWS:
        _skinny(x, gate_up, hidden)
    else:
        _split_k(x, gate_up, hidden)


def _skinny(x: Tensor, gate_up: Tensor, hidden: Tensor) -> None:
    ranks, rows, half = hidden.shape
    k = x.shape[1]
    step = min(power_of_two(k), SKINNY_STEP)
    columns = (
        min(power_of_two(half), MOST_ELEMENTS // step) if interpreted(x) else max(1, SKINNY_STEP // step)
    )
    gate_up_skinny_kernel[triton.cdiv(half, columns), ranks](
        x, gate_up, hidden, x.stride(0), *gate_up.stride()[:2], *hidden.stride()[:2], half, k,
        ROWS=rows, COLUMNS=columns, STEP=step, STEPS=triton.cdiv(k, step), num_warps=4, **programmatic(x),
    )  # fmt: skip


def _split_k(x: Tensor, gate_up: Tensor, hidden: Tensor) -> None:
    ranks, rows, half = hidden.shape
    k, n = x.shape[1], gate_up.shape[1]
    tile, splits = next(choice for most, choice in TILES.items() if rows <= most)
    columns, step, block = tile.columns, tile.step, 256
    if interpreted(x):
        # Two steps at least, so that both paths of the loop are run.
        columns, step = (max(16, min(power_of_two(size), 1024)) for size in (n, triton.cdiv(k, 2 * splits)))
        block = power_of_two(half)
    k_split = triton.cdiv(triton.cdiv(k, splits), step) * step
    partial = torch.empty(splits, ranks, rows, n, dtype=torch.float32, device=x.device)
    gate_up_split_kernel[triton.cdiv(n, columns), splits, ranks](
        x, gate_up, partial, x.stride(0), *gate_up.stride()[:2], rows, n, k, k_split,
        ROWS=tile.rows, COLUMNS=columns, STEP=step,
        num_warps=tile.warps, num_stages=tile.stages, **programmatic(x),
    )  # fmt: skip
    dense_situ_kernel[triton.cdiv(half, block), rows, ranks](
        partial, hidden, *hidden.stride()[:2], rows, half, SPLITS=splits, BLOCK=block, num_warps=4,
        **programmatic(x),
    )  # fmt: skip


def _refused(ranks: int, rows: int) -> str | None:
    """Why this shape has no kernel, or None."""
    if rows > max(TILES):
        return f"dense_mlp serves up to {max(TILES)} rows, not {rows}"
    return f"dense_mlp serves up to {MAX_RANKS} ranks, not {ranks}" if ranks > MAX_RANKS else None


def supports(case: Case) -> str | None:
    return _refused(case["ranks"], case["rows"])


def kernels(case: Case) -> tuple[str, ...]:
    """What ``dense_mlp`` launches for a case."""
    return route(TABLE, case["rows"]).kernels


TABLE = (
    Route(SKINNY_ROWS, ("gate_up_skinny_kernel", kernel_name(SKINNY_ROWS), "add_ranks_kernel")),
    *(
        Route(
            rows,
            ("gate_up_split_kernel", "dense_situ_kernel", kernel_name(rows), "add_ranks_kernel"),
            {"rows": tile.rows, "columns": tile.columns, "step": tile.step, "splits": splits},
        )
        for rows, (tile, splits) in TILES.items()
    ),
)
OPERATIONS = {"dense_mlp": {"function": dense_mlp, "kernels": kernels, "table": TABLE, "supports": supports}}
