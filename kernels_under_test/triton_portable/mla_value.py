"""MLA value up-projection and output gate: bf16(bf16(latent W_UV) * sigmoid(gate)), zero for padding
requests.

Like the subject's MlaValue (its operation 3.9): heads by tiles of value columns by tiles of tokens, the value
rounded before the gate, padding rows selected away. Up to ``MOST_SMALL`` rows W_UV's tile stays in registers
while the tokens pass through plain multiply-adds (the subject always uses tensor cores); above, ``tl.dot``.

What this cannot show: the subject's two accumulation chains, and its refined reciprocal.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

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
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.mla.value import MlaValueArguments

MOST_SMALL = 4
# A program of the small path holds all latents of its columns in registers.
MOST_LATENT = 1024
SMALL_TILE = 16
# Tokens a program of the tiled path holds, and its K step.
ROWS, STEP = 16, 128
# Largest batch -> value columns a program: few tokens are cut finer, so that more of the device works.
TILES = {16: 16, 64: 32}


@triton.jit
def value_kernel(
    x, gate, w_uv, lengths, out,
    stride_x, stride_x_head, stride_gate, stride_w_head, stride_w, stride_out,
    tokens, width, dim,
    ROWS: tl.constexpr, LATENT: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """TILE value columns of one head for all tokens, one token after the other."""
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = tl.arange(0, LATENT)
    inside = column < dim
    w_at = w_uv + head * stride_w_head + at[:, None] * stride_w + column[None, :]
    w = tl.load(w_at, mask=(at < width)[:, None] & inside[None, :], other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for row in tl.static_range(ROWS):
        wide = tl.cast(row, tl.int64)
        x_at = x + wide * stride_x + head * stride_x_head
        latent = tl.load(x_at + at, mask=at < width, other=0.0).to(tl.float32)
        v = tl.sum(w * latent[:, None], axis=0).to(tl.bfloat16).to(tl.float32)
        g = tl.load(gate + wide * stride_gate + head * dim + column, mask=inside, other=0.0).to(tl.float32)
        alive = tl.load(lengths + row // tokens) > 0
        result = tl.where(alive, v * tl.sigmoid(g), 0.0).to(tl.bfloat16)
        tl.store(out + wide * stride_out + head * dim + column, result, mask=inside)


@triton.jit
def value_tiled_kernel(
    x, gate, w_uv, lengths, out,
    stride_x, stride_x_head, stride_gate, stride_w_head, stride_w, stride_out,
    rows, tokens, width, dim,
    ROWS: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """TILE value columns of one head for ROWS tokens, on tensor cores."""
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row = tl.program_id(2).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    live = row < rows
    tile = live[:, None] & (column < dim)[None, :]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros([ROWS, TILE], dtype=tl.float32)
    for start in range(0, width, STEP):
        inside = start + at < width
        x_at = x + row[:, None] * stride_x + head * stride_x_head + start + at[None, :]
        latent = tl.load(x_at, mask=live[:, None] & inside[None, :], other=0.0)
        w_at = w_uv + head * stride_w_head + (start + at)[:, None] * stride_w + column[None, :]
        w = tl.load(w_at, mask=inside[:, None] & (column < dim)[None, :], other=0.0)
        total = tl.dot(latent, w, total)
    v = total.to(tl.bfloat16).to(tl.float32)
    g = tl.load(gate + row[:, None] * stride_gate + head * dim + column[None, :], mask=tile, other=0.0)
    alive = tl.load(lengths + row // tokens, mask=live, other=0) > 0
    result = tl.where(alive[:, None], v * tl.sigmoid(g.to(tl.float32)), 0.0).to(tl.bfloat16)
    tl.store(out + row[:, None] * stride_out + head * dim + column[None, :], result, mask=tile)


def refusal(latent: int) -> str | None:
    """Why this size is not served, or None."""
    return f"a latent of {latent} is not supported; at most {MOST_LATENT}" if latent > MOST_LATENT else None


def tile_of(rows: int) -> int:
    """Value columns a program holds."""
    if rows <= MOST_SMALL:
        return SMALL_TILE
    return smallest_range(TILES, rows)


def mla_value(a: MlaValueArguments) -> None:
    """out[row, head * V]; see ``MlaValueArguments``. Any rows, heads and V; rows and heads may lie apart."""
    if reason := refusal(a.latent.shape[2]):
        raise UserError(reason)
    need_dense_last_axis(
        latent=a.latent, projected=a.projected, w_uv=a.w_uv, lengths=a.lengths, out=a.out
    )  # fmt: skip
    rows, heads, width = a.latent.shape
    small = rows <= MOST_SMALL
    tile, step = tile_of(rows), STEP
    if interpreted(a.out):
        tile, step = max(power_of_two(a.dim), 16), max(min(power_of_two(width), 2 * STEP), 16)
    operands = (
        a.latent, a.gate, a.w_uv, a.lengths, a.out,
        *a.latent.stride()[:2], a.projected.stride(0), *a.w_uv.stride()[:2], a.out.stride(0),
    )  # fmt: skip
    sizes = (a.tokens, width, a.dim)
    tiles = triton.cdiv(a.dim, tile)
    options = {"TILE": tile, "num_warps": 4, **programmatic(a.out)}
    if small:
        value_kernel[(heads, tiles)](*operands, *sizes, ROWS=rows, LATENT=power_of_two(width), **options)
        return
    grid = (heads, tiles, triton.cdiv(rows, ROWS))
    value_tiled_kernel[grid](*operands, rows, *sizes, ROWS=ROWS, STEP=step, num_stages=4, **options)


def kernels(case: Case) -> tuple[str, ...]:
    """What ``mla_value`` launches for a case."""
    small = case["requests"] * case["tokens"] <= MOST_SMALL
    return ("value_kernel",) if small else ("value_tiled_kernel",)


TABLE = (
    Route(MOST_SMALL, ("value_kernel",), {"tile": SMALL_TILE}),
    *(
        Route(most, ("value_tiled_kernel",), {"rows": ROWS, "tile": tile, "step": STEP})
        for most, tile in TILES.items()
    ),
)
OPERATIONS = {
    "mla_value": {
        "function": mla_value,
        "kernels": kernels,
        "table": TABLE,
        "supports": lambda case: refusal(case["latent"]),
    },
}
