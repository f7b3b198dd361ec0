"""Front of a MoE layer: router logits (FP32) and latent (BF16) of all ranks, or of one, in one launch.

Like the subject's weight-stationary front (its operation 3.13): the router rows and the latent-down rows of a
rank are one list of weight rows. Up to two tokens they stream through plain multiply-adds, each program
holding a few weight rows and all tokens; above, they are the left operand of ``tl.dot``, K is cut into
contiguous splits, and a second kernel adds the splits in order. Nothing depends on which program ends first.
Logits are never rounded, the latent once; zeros are stored as +0, since -0 arms the subject's mailboxes.

What this cannot show: the exchange between ranks, and the subject's clusters that cut K.
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
from kernels_under_test.triton_portable.rank_partials import published
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.moe.front import MoeFrontArguments


@dataclass(frozen=True)
class Tactic:
    """How a range of batches is computed: kernel, tokens and weight rows a program holds, K step."""

    kernel: Literal["stream", "split_k"]
    rows: int
    columns: int
    step: int
    splits: int
    warps: int
    stages: int


# Largest batch of the range -> tactic. The last entry's programs are repeated over blocks of tokens. Chosen
# by time on an H200. The subject streams up to four tokens; here tensor cores are faster from three on.
TACTICS = {
    1: Tactic("stream", rows=1, columns=2, step=512, splits=1, warps=2, stages=3),
    2: Tactic("stream", rows=2, columns=2, step=1024, splits=1, warps=4, stages=3),
    16: Tactic("split_k", rows=16, columns=64, step=128, splits=8, warps=4, stages=4),
    32: Tactic("split_k", rows=32, columns=64, step=128, splits=8, warps=4, stages=4),
    64: Tactic("split_k", rows=64, columns=64, step=128, splits=4, warps=4, stages=4),
}
# One rank alone has few weight rows: its programs take more of K at a time to keep the memory busy.
ONE_RANK = {1: Tactic("stream", rows=1, columns=2, step=2048, splits=1, warps=8, stages=3)}
# The interpreter pays by the operation, not by the element: the same kernels in larger tiles, K cut in two.
INTERPRETED_COLUMNS, INTERPRETED_STEP, INTERPRETED_SPLITS = 256, 4096, 2
MOST_ELEMENTS = 1 << 20  # of a tensor in Triton
ADD_BLOCK, ADDED_TOGETHER = 1024, 64  # packed rows and (interpreted) tokens of a program that adds splits
KERNELS = {"stream": ("front_stream_kernel",), "split_k": ("front_split_kernel", "front_add_kernel")}


def dispatch(batch: int, ranks: int) -> Tactic:
    """The tactic for a batch, of the smallest range that holds it; ``ranks`` share the launch."""
    if ranks == 1 and batch in ONE_RANK:
        return ONE_RANK[batch]
    return smallest_range(TACTICS, batch)


@triton.jit
def _shard(router, down, stride_router, stride_router_row, stride_down, stride_down_row, experts, columns,
           COLUMNS: tl.constexpr):  # fmt: skip
    """This program's tile of weight rows: rank's weight, its row pitch and length, first row, and whether it
    is the router's."""
    tile = tl.program_id(0).to(tl.int64)
    rank = tl.program_id(1).to(tl.int64)
    router_tiles = tl.cdiv(experts, COLUMNS)
    if tile < router_tiles:
        weight = router + rank * stride_router
        pitch = stride_router_row
        length = experts
        first = tile * COLUMNS
    else:
        weight = down + rank * stride_down
        pitch = stride_down_row
        length = columns
        first = (tile - router_tiles) * COLUMNS
    return weight, pitch, length, first, rank, tile < router_tiles


@triton.jit
def _positive_zero(x):
    return tl.where(x == 0.0, 0.0, x)


@triton.jit
def front_stream_kernel(
    h, router, down, logits, latent, stride_h, stride_router, stride_router_row, stride_down, stride_down_row,
    stride_logits, stride_latent, batch, experts, columns, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    weight, pitch, length, first, rank, is_router = _shard(
        router,
        down,
        stride_router,
        stride_router_row,
        stride_down,
        stride_down_row,
        experts,
        columns,
        COLUMNS,
    )
    column = first + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS).to(tl.int64)
    at = tl.arange(0, STEP)
    total = tl.zeros([ROWS, COLUMNS, STEP], dtype=tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for start in range(0, k, STEP):
        inside = start + at < k
        w_at = weight + column[:, None] * pitch + start + at[None, :]
        w = tl.load(w_at, mask=(column[:, None] < length) & inside[None, :], other=0.0)
        h_at = h + row[:, None] * stride_h + start + at[None, :]
        v = tl.load(h_at, mask=(row[:, None] < batch) & inside[None, :], other=0.0)
        total += v.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
    result = _positive_zero(tl.sum(total, axis=2))
    live = (row[:, None] < batch) & (column[None, :] < length)
    if is_router:
        tl.store(logits + row[:, None] * stride_logits + rank * experts + column[None, :], result, mask=live)
    else:
        rounded = published(result)
        tl.store(latent + row[:, None] * stride_latent + rank * columns + column[None, :], rounded, mask=live)


@triton.jit
def front_split_kernel(
    h, router, down, partial, stride_h, stride_router, stride_router_row, stride_down, stride_down_row,
    batch, blocks, experts, columns, k, k_split,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """partial[split, row, rank, packed row] = the FP32 sum over this split's range of K."""
    weight, pitch, length, first, rank, is_router = _shard(
        router,
        down,
        stride_router,
        stride_router_row,
        stride_down,
        stride_down_row,
        experts,
        columns,
        COLUMNS,
    )
    split = tl.program_id(2).to(tl.int64) // blocks
    column = first + tl.arange(0, COLUMNS)
    row = tl.program_id(2).to(tl.int64) % blocks * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    for step in range(0, k_split, STEP):
        position = split * k_split + step + at
        w_at = weight + column[:, None] * pitch + position[None, :]
        w = tl.load(w_at, mask=(column[:, None] < length) & (position[None, :] < k), other=0.0)
        h_at = h + row[None, :] * stride_h + position[:, None]
        v = tl.load(h_at, mask=(row[None, :] < batch) & (position[:, None] < k), other=0.0)
        total = tl.dot(w, v, total)
    packed = column + tl.where(is_router, 0, experts)
    width = experts + columns
    place = ((split * batch + row[None, :]) * tl.num_programs(1) + rank) * width + packed[:, None]
    tl.store(partial + place, total, mask=(row[None, :] < batch) & (column[:, None] < length))


@triton.jit
def front_add_kernel(
    partial, logits, latent, stride_logits, stride_latent, batch, experts, columns, splits,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of one rank: partial[0] + partial[1] + ..., in this order, to the logits and the latent."""
    packed = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    rank = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(2).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    ranks = tl.num_programs(1)
    width = experts + columns
    live = (row < batch) & (packed < width)
    total = tl.load(partial + (row * ranks + rank) * width + packed, mask=live, other=0.0)
    for split in range(1, splits):
        place = ((split * batch + row) * ranks + rank) * width + packed
        total += tl.load(partial + place, mask=live, other=0.0)
    total = _positive_zero(total)
    tl.store(logits + row * stride_logits + rank * experts + packed, total, mask=live & (packed < experts))
    rounded = published(total)
    place = latent + row * stride_latent + rank * columns + packed - experts
    tl.store(place, rounded, mask=live & (packed >= experts))


def moe_front(a: MoeFrontArguments) -> None:
    """Logits and latent of all ranks in one grid; see ``MoeFrontArguments``."""
    _launch(a.h, a.router, a.down, a.logits, a.latent)


def front(h: Tensor, router: Tensor, down: Tensor, logits: Tensor, latent: Tensor) -> None:
    """One rank's shard: router [E/T, D], down [L/T, D] into its slices logits [B, E/T], latent [B, L/T]."""
    _launch(h, router[None], down[None], logits, latent)


def _launch(h: Tensor, router: Tensor, down: Tensor, logits: Tensor, latent: Tensor) -> None:
    need_dense_last_axis(h=h, router=router, down=down, logits=logits, latent=latent)
    (ranks, experts, k), columns = router.shape, down.shape[1]
    expected = {
        "down": (ranks, columns, k),
        "logits": (len(h), ranks * experts),
        "latent": (len(h), ranks * columns),
    }
    for name, tensor in {"down": down, "logits": logits, "latent": latent}.items():
        if tuple(tensor.shape) != expected[name]:
            raise UserError(
                f"{name} is {list(tensor.shape)}; with these shards it must be {list(expected[name])}"
            )
    tactic = dispatch(len(h), ranks)
    run = _stream if tactic.kernel == "stream" else _split_k
    run(h, router, down, logits, latent, tactic)


def _tile(router: Tensor, down: Tensor, tactic: Tactic) -> tuple[int, int, int]:
    """Weight rows and K a program holds at a time, and programs a rank."""
    experts, columns = router.shape[1], down.shape[1]
    tile, step = tactic.columns, tactic.step
    if interpreted(router):
        tile = min(max(16, power_of_two(max(experts, columns))), INTERPRETED_COLUMNS)
        step = min(
            INTERPRETED_STEP, max(16, power_of_two(router.shape[2])), MOST_ELEMENTS // (tactic.rows * tile)
        )
    return tile, step, triton.cdiv(experts, tile) + triton.cdiv(columns, tile)


def _stream(h: Tensor, router: Tensor, down: Tensor, logits: Tensor, latent: Tensor, tactic: Tactic) -> None:
    tile, step, tiles = _tile(router, down, tactic)
    (ranks, experts, k), columns = router.shape, down.shape[1]
    front_stream_kernel[tiles, ranks](
        h, router, down, logits, latent, h.stride(0), router.stride(0), router.stride(1), down.stride(0),
        down.stride(1), logits.stride(0), latent.stride(0), len(h), experts, columns, k,
        ROWS=tactic.rows, COLUMNS=tile, STEP=step, num_warps=tactic.warps, num_stages=tactic.stages,
        **programmatic(h),
    )  # fmt: skip


def _split_k(h: Tensor, router: Tensor, down: Tensor, logits: Tensor, latent: Tensor, tactic: Tactic) -> None:
    (batch, k), (ranks, experts, _), columns = h.shape, router.shape, down.shape[1]
    tile, step, tiles = _tile(router, down, tactic)
    splits = INTERPRETED_SPLITS if interpreted(h) else tactic.splits
    step = min(step, max(16, power_of_two(triton.cdiv(k, splits))))
    k_split = triton.cdiv(triton.cdiv(k, splits), step) * step
    blocks = triton.cdiv(batch, tactic.rows)
    partial = torch.empty(
        tactic.splits, batch, ranks, experts + columns, dtype=torch.float32, device=h.device
    )
    front_split_kernel[tiles, ranks, splits * blocks](
        h, router, down, partial, h.stride(0), router.stride(0), router.stride(1), down.stride(0),
        down.stride(1), batch, blocks, experts, columns, k, k_split,
        ROWS=tactic.rows, COLUMNS=tile, STEP=step, num_warps=tactic.warps, num_stages=tactic.stages,
    )  # fmt: skip
    together = min(ADDED_TOGETHER, power_of_two(batch)) if interpreted(h) else 1
    front_add_kernel[triton.cdiv(experts + columns, ADD_BLOCK), ranks, triton.cdiv(batch, together)](
        partial, logits, latent, logits.stride(0), latent.stride(0), batch, experts, columns, splits,
        ROWS=together, BLOCK=ADD_BLOCK,
    )  # fmt: skip


def kernels(case: Case) -> tuple[str, ...]:
    """What ``moe_front`` launches for a case."""
    return KERNELS[dispatch(case["rows"], case["ranks"]).kernel]


TABLE = tuple(
    Route(
        rows=rows,
        kernels=KERNELS[tactic.kernel],
        settings={
            "rows": tactic.rows,
            "columns": tactic.columns,
            "step": tactic.step,
            "splits": tactic.splits,
        },
    )
    for rows, tactic in TACTICS.items()
)
OPERATIONS = {"moe_front": {"function": moe_front, "kernels": kernels, "table": TABLE}}
