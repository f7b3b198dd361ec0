"""The MoE tail: one launch for one or two rows, norm, split-K up-projection and finish above.

Like the subject's operation 3.17. Up to two rows every program adds the ranks' latent partials and norms the
row again for the few columns that it streams W_up for, then adds the shared sum in its epilogue. From three
rows on the row is reduced and normed once, tensor cores multiply K slices, and a last kernel adds the slices
in order, rounds, and adds the shared sum. A rank whose 16 expert slots arrive as rows combines them first.
Nothing depends on which program ends first. ``TACTICS`` is the whole dispatch; ``tail`` given one shard of
W_up is what one rank runs.

What this cannot show: mailboxes, multicast, clusters and the two-shot exchange.
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
    programmatic,
    smallest_range,
)
from kernels_under_test.triton_portable.rank_partials import published
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.moe.tail import MoeTailArguments

WIDEST = 8192  # latent columns that one program holds at most
LARGEST = 1 << 20  # elements of a Triton tensor


@dataclass(frozen=True)
class Tactic:
    """How a range of batches is computed: path, rows of a product's program, warps and stages of it."""

    path: Literal["fused", "split_k"]
    rows: int
    warps: int
    stages: int


# Largest batch of the range -> tactic. Above the last entry its programs are repeated over blocks of rows.
TACTICS = {
    2: Tactic("fused", rows=1, warps=8, stages=1),
    16: Tactic("split_k", rows=16, warps=4, stages=4),
    32: Tactic("split_k", rows=32, warps=4, stages=4),
    64: Tactic("split_k", rows=64, warps=4, stages=3),
}
KERNELS = {
    "fused": ("tail_fused_kernel",),
    "split_k": ("reduce_norm_kernel", "up_split_kernel", "tail_finish_kernel"),
}
# Columns and K step of one rank's split-K product.
COLUMNS, STEP = 64, 128


def dispatch(batch: int) -> Tactic:
    """The tactic for a batch, of the smallest range that holds it."""
    return smallest_range(TACTICS, batch)


@triton.jit
def combine_slots_kernel(
    rows, weights, combined, stride_rows, stride_weights, width, SLOTS: tl.constexpr, BLOCK: tl.constexpr
):
    """combined[row] = bf16(sum over slots of rows[SLOTS row + slot] * weights[row, slot]), in slot order."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    inside = column < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for slot in tl.static_range(SLOTS):
        weight = tl.load(weights + row * stride_weights + slot).to(tl.float32)
        value = tl.load(rows + (row * SLOTS + slot) * stride_rows + column, mask=inside, other=0.0)
        total += value.to(tl.float32) * weight
    tl.store(combined + row * width + column, total.to(tl.bfloat16), mask=inside)


@triton.jit
def _normed(
    latent, combined, gamma, row, stride_rank, stride_row, width, own, eps, RANKS: tl.constexpr,
    OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """n of one row: ranks added in order, every square rounded to BF16. BF16 [BLOCK], 0 beyond ``width``"""
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    at = latent + row * stride_row + column
    for rank in tl.static_range(RANKS):
        if OWN:
            theirs = tl.load(at, mask=inside & (own != rank), other=0.0)
            mine = tl.load(combined + row * width + column, mask=inside & (own == rank), other=0.0)
            total += tl.where(own == rank, mine, theirs).to(tl.float32)
        else:
            total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        at += stride_rank
    z = total.to(tl.bfloat16).to(tl.float32)
    squares = (z * z).to(tl.bfloat16).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(squares, axis=0) / width + eps)
    g = tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    return (z * inverse * g).to(tl.bfloat16)


@triton.jit
def _shared_sum(shared, at, live, stride_rank, RANKS: tl.constexpr):
    """bf16(shared[0] + shared[1] + ...) at offsets ``at``, as FP32."""
    total = tl.load(shared + at, mask=live, other=0.0).to(tl.float32)
    for _ in tl.static_range(1, RANKS):
        at += stride_rank
        total += tl.load(shared + at, mask=live, other=0.0).to(tl.float32)
    return total.to(tl.bfloat16).to(tl.float32)


@triton.jit
def tail_fused_kernel(
    latent, combined, gamma, up, shared, out, stride_latent_rank, stride_latent, stride_up_rank, stride_up,
    stride_shared_rank, stride_shared, stride_out, width, channels, own, first, eps,
    RANKS: tl.constexpr, OWN: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[row, channels of rank first + program_id(2)], from the partials to the end."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1).to(tl.int64)
    shard = tl.program_id(2).to(tl.int64)
    column = tl.arange(0, BLOCK)
    w_at = up + shard * stride_up_rank + channel[:, None].to(tl.int64) * stride_up + column[None, :]
    w = tl.load(w_at, mask=(channel[:, None] < channels) & (column[None, :] < width), other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    n = _normed(
        latent, combined, gamma, row, stride_latent_rank, stride_latent, width, own, eps, RANKS, OWN, BLOCK
    )
    product = tl.sum(w.to(tl.float32) * n.to(tl.float32)[None, :], axis=1)
    place = (first + shard) * channels + channel
    live = channel < channels
    s = _shared_sum(shared, row * stride_shared + place, live, stride_shared_rank, RANKS)
    result = product.to(tl.bfloat16).to(tl.float32) + s
    tl.store(out + row * stride_out + place, published(result), mask=live)


@triton.jit
def reduce_norm_kernel(
    latent, combined, gamma, normed, stride_latent_rank, stride_latent, width, own, eps,
    RANKS: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """normed[row] = n of that row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    n = _normed(
        latent, combined, gamma, row, stride_latent_rank, stride_latent, width, own, eps, RANKS, OWN, BLOCK
    )
    tl.store(normed + row * width + column, n, mask=column < width)


@triton.jit
def up_split_kernel(
    normed, up, pieces, stride_up_rank, stride_up, batch, channels, width, k_split, splits, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """pieces[split, row, column] = the FP32 sum over this split's range of K, for the shards given."""
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(1) % splits
    row = tl.program_id(1) // splits * ROWS + tl.arange(0, ROWS)
    shard = tl.program_id(2).to(tl.int64)
    at = tl.arange(0, STEP)
    w_at = up + shard * stride_up_rank + channel[:, None].to(tl.int64) * stride_up
    n_at = normed + row[None, :].to(tl.int64) * width
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    for step in range(0, k_split, STEP):
        k = split * k_split + step + at
        w = tl.load(w_at + k[None, :], mask=(channel[:, None] < channels) & (k[None, :] < width), other=0.0)
        v = tl.load(n_at + k[:, None], mask=(row[None, :] < batch) & (k[:, None] < width), other=0.0)
        total = tl.dot(w, v, total)
    place = (split * batch + row[None, :].to(tl.int64)) * columns + shard * channels + channel[:, None]
    tl.store(pieces + place, total, mask=(row[None, :] < batch) & (channel[:, None] < channels))


@triton.jit
def tail_finish_kernel(
    pieces, shared, out, stride_shared_rank, stride_shared, stride_out, batch, columns, first_column, splits,
    RANKS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = bf16(bf16(the splits' sum, in order) + bf16(the shared sum)), -0.0 as +0.0."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    live = (row < batch) & (column < columns)
    at = pieces + row * columns + column
    total = tl.load(at, mask=live, other=0.0)
    for _ in range(1, splits):
        at += batch * columns
        total += tl.load(at, mask=live, other=0.0)
    s = _shared_sum(shared, row * stride_shared + first_column + column, live, stride_shared_rank, RANKS)
    result = total.to(tl.bfloat16).to(tl.float32) + s
    tl.store(out + row * stride_out + first_column + column, published(result), mask=live)


def moe_tail(a: MoeTailArguments) -> None:
    """out[B, D] of all ranks; any number of rows and ranks, up to ``WIDEST`` latent columns.

    Rows may lie apart; within a row everything must be dense.
    """
    need_dense_last_axis(
        latent=a.latent, rows=a.rows, weights=a.weights, shared=a.shared, gamma=a.gamma, up=a.up, out=a.out
    )
    if a.latent.shape[2] > WIDEST:
        raise UserError(f"a latent of {a.latent.shape[2]} columns; at most {WIDEST} are served")
    own = combine(a.rows, a.weights) if a.own_rank >= 0 else None
    tail(a.latent, a.shared, a.gamma, a.up, a.out, a.eps, own, a.own_rank)


def combine(rows: Tensor, weights: Tensor) -> Tensor:
    """One rank's partial from its expert slots. BF16 [row, latent]"""
    batch, slots, width = *weights.shape, rows.shape[1]
    combined = torch.empty(batch, width, dtype=torch.bfloat16, device=rows.device)
    block = min(power_of_two(width), 2048) if interpreted(rows) else 256
    combine_slots_kernel[triton.cdiv(width, block), batch](
        rows, weights, combined, rows.stride(0), weights.stride(0), width, SLOTS=slots, BLOCK=block,
        num_warps=1 if block == 256 else 4,
    )  # fmt: skip
    return combined


def tail(
    latent: Tensor, shared: Tensor, gamma: Tensor, up: Tensor, out: Tensor, eps: float,
    combined: Tensor | None = None, own_rank: int = -1, first: int = 0,
) -> None:  # fmt: skip
    """The columns of ``out`` of the ranks ``first``, ... whose shards of W_up are given (first axis)."""
    batch = latent.shape[1]
    run = _fused if dispatch(batch).path == "fused" else _split_k
    run(latent, shared, gamma, up, out, eps, combined, own_rank, first)


def _fused(
    latent: Tensor, shared: Tensor, gamma: Tensor, up: Tensor, out: Tensor, eps: float,
    combined: Tensor | None, own: int, first: int,
) -> None:  # fmt: skip
    (ranks, batch, width), (shards, channels, _) = latent.shape, up.shape
    tactic = dispatch(batch)
    held = 4 if channels >= 512 else 2
    if interpreted(up):  # as large as a tensor may be, and two tiles of some shapes
        held = min(power_of_two(channels), LARGEST // power_of_two(width), 32)
    tail_fused_kernel[triton.cdiv(channels, held), batch, shards](
        latent, latent if combined is None else combined, gamma, up, shared, out, latent.stride(0),
        latent.stride(1), up.stride(0), up.stride(1), shared.stride(0), shared.stride(1), out.stride(0),
        width, channels, own, first, eps, RANKS=ranks, OWN=combined is not None, CHANNELS=held,
        BLOCK=power_of_two(width), num_warps=tactic.warps, num_stages=tactic.stages, **programmatic(up),
    )  # fmt: skip


def _split_k(
    latent: Tensor, shared: Tensor, gamma: Tensor, up: Tensor, out: Tensor, eps: float,
    combined: Tensor | None, own: int, first: int,
) -> None:  # fmt: skip
    (ranks, batch, width), (shards, channels, _) = latent.shape, up.shape
    tactic, here = dispatch(batch), interpreted(up)
    normed = torch.empty(batch, width, dtype=torch.bfloat16, device=up.device)
    reduce_norm_kernel[(batch,)](
        latent, latent if combined is None else combined, gamma, normed, latent.stride(0), latent.stride(1),
        width, own, eps, RANKS=ranks, OWN=combined is not None, BLOCK=power_of_two(width), num_warps=8,
    )  # fmt: skip
    splits, k_split = k_ranges(channels, width, COLUMNS, STEP)
    held = min(max(16, power_of_two(channels)), 32) if here else COLUMNS
    pieces = torch.empty(splits, batch, shards * channels, dtype=torch.float32, device=up.device)
    up_split_kernel[triton.cdiv(channels, held), splits * triton.cdiv(batch, tactic.rows), shards](
        normed, up, pieces, up.stride(0), up.stride(1), batch, channels, width, k_split, splits,
        shards * channels, ROWS=tactic.rows, COLUMNS=held, STEP=STEP, num_warps=tactic.warps,
        num_stages=tactic.stages,
    )  # fmt: skip
    block, tall = (min(power_of_two(shards * channels), 256), 16) if here else (256, 1)
    tail_finish_kernel[triton.cdiv(shards * channels, block), triton.cdiv(batch, tall)](
        pieces, shared, out, shared.stride(0), shared.stride(1), out.stride(0), batch, shards * channels,
        first * channels, splits, RANKS=ranks, ROWS=tall, BLOCK=block, num_warps=4 if here else 2,
    )  # fmt: skip


def kernels(case: Case) -> tuple[str, ...]:
    """What ``moe_tail`` launches for a case."""
    front = ("combine_slots_kernel",) if case["own"] >= 0 else ()
    return front + KERNELS[dispatch(case["rows"]).path]


def supports(case: Case) -> str | None:
    """Why a case is not served, or None."""
    wide = case["latent"] > WIDEST
    return f"a latent of {case['latent']} columns; at most {WIDEST} are served" if wide else None


TABLE = tuple(
    Route(rows=rows, kernels=front + KERNELS[tactic.path], settings={"rows": tactic.rows}, when=when)
    for when, front in (("", ()), ("slots combined here", ("combine_slots_kernel",)))
    for rows, tactic in TACTICS.items()
)
OPERATIONS = {
    "moe_tail": {"function": moe_tail, "kernels": kernels, "table": TABLE, "supports": supports},
}
