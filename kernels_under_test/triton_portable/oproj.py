"""O-projection, sum over ranks, residual, and the AttnRes after attention (the subject's operation 3.11).

Four sequences: one fused kernel for one row on more than eight ranks, whose last program to finish sums and
norms; for few rows a producer whose last rank to finish a tile of columns sums it onto the prefix, and a
consumer that mixes and norms, one program a row; a producer (``rank_partials``) and a consumer that sums
too; and above the two-shot threshold a kernel of column owners between them. The one-shot sum adds four
consecutive groups of ranks, each in rank order; owners add in rank order. Which program is the last to
finish depends on the machine, what it computes does not. ``TABLE`` is the whole dispatch.

For a timing of one rank ``produce`` (``summed``, ``fused``) takes that rank's shard alone, with a mailbox in
which the others' partials lie already.

What this cannot show: clusters (the consumer here is one program a row), multicast, and waiting in mailboxes.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.attn_res import MAX_BLOCKS, _four_sums, _logits, _premix
from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    programmatic,
    workspace,
)
from kernels_under_test.triton_portable.rank_partials import (
    add_ranks,
    first_weights,
    kernel_name,
    produce,
    published,
    row_product,
    skinny_tile,
)
from validation.contracts.oproj_inputs import takes_two_shots
from validation.dispatch.table import Route, route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.oproj_arguments import OprojArguments

MAX_ROWS, MAX_RANKS, MAX_COLUMNS = 64, 16, 8192
GROUPS = 4  # of consecutive ranks, in the one-shot sum
MANY = 8  # more ranks than this: the fused kernel serves small batches


@triton.jit
def _group_sum(mailbox, stride_rank, column, inside, first, RANKS: tl.constexpr, SIZE: tl.constexpr):
    """FP32 sum of up to SIZE ranks from ``first`` on, in rank order. A rank that does not exist adds +0."""
    at = mailbox + tl.cast(first, tl.int64) * stride_rank + column
    group = tl.load(at, mask=inside & (first < RANKS), other=0.0).to(tl.float32)
    for rank in tl.static_range(1, SIZE):
        live = inside & (first + rank < RANKS)
        group += tl.load(at + tl.cast(rank, tl.int64) * stride_rank, mask=live, other=0.0).to(tl.float32)
    return group


@triton.jit
def _rank_sum(mailbox, stride_rank, column, inside, groups, RANKS: tl.constexpr, SIZE: tl.constexpr):
    """FP32 sum of the ranks' partials of one row: four groups of SIZE ranks, then the groups in order.

    Up to four ranks are in flight at a time: all of sixteen would not fit into registers. ``groups`` is 4, a
    number that the compiler does not know, so that it does not unroll the loop and load all at once.
    """
    total = tl.zeros_like(column).to(tl.float32)
    if SIZE > 2:
        for first in range(0, groups * SIZE, SIZE):
            total += _group_sum(mailbox, stride_rank, column, inside, first, RANKS, SIZE)
    else:
        for first in range(0, groups * SIZE, 2 * SIZE):
            one = _group_sum(mailbox, stride_rank, column, inside, first, RANKS, SIZE)
            two = _group_sum(mailbox, stride_rank, column, inside, first + SIZE, RANKS, SIZE)
            total = (total + one) + two
    return total


@triton.jit
def _new_prefix(
    mailbox, prefix, stride_rank, column, inside, groups, RANKS: tl.constexpr, SIZE: tl.constexpr,
    REPLACE: tl.constexpr,
):  # fmt: skip
    """The prefix of one row with the ranks' sum added or in its place, stored and returned."""
    if RANKS == 1:
        merged = tl.load(mailbox + column, mask=inside, other=0.0)
    else:
        merged = _rank_sum(mailbox, stride_rank, column, inside, groups, RANKS, SIZE).to(tl.bfloat16)
    if not REPLACE:
        old = tl.load(prefix + column, mask=inside, other=0.0).to(tl.float32)
        merged = (old + merged.to(tl.float32)).to(tl.bfloat16)
    # A short row is held by several threads at once; all must have read before one of them stores.
    tl.debug_barrier()
    tl.store(prefix + column, merged, mask=inside)
    return merged


@triton.jit
def _finish_row(
    mailbox, prefix, blocks, score_gamma, score_proj, gamma, x_moe, out, stride_mailbox_rank, stride_block,
    columns, blocks_read, groups, eps_score, eps,
    RANKS: tl.constexpr, SIZE: tl.constexpr, REPLACE: tl.constexpr, WRITE_X_MOE: tl.constexpr,
    SUMMED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Sum, residual, mix and norm of one row; every pointer stands at its row. ``SUMMED``: the prefix is
    the new one already."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    # The blocks were complete before the kernel before this one began: they need not wait for it.
    logits = _logits(
        blocks, stride_block, score_gamma, score_proj, columns, blocks_read, eps_score, SLOTS, CHUNK, CHUNKS
    )
    largest, total, mix = _premix(blocks, stride_block, column, inside, logits, blocks_read, SLOTS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    if SUMMED:
        merged = tl.load(prefix + column, mask=inside, other=0.0)
    else:
        merged = _new_prefix(
            mailbox, prefix, stride_mailbox_rank, column, inside, groups, RANKS, SIZE, REPLACE
        )

    last = merged.to(tl.float32)
    weight = tl.load(score_gamma + column, mask=inside, other=0.0).to(tl.float32)
    weight *= tl.load(score_proj + column, mask=inside, other=0.0).to(tl.float32)
    dot_last, last_last, mix_mix, mix_last = _four_sums(last * weight, last * last, mix * mix, mix * last)
    logit = dot_last * tl.rsqrt(last_last / columns + eps_score)
    top = tl.maximum(largest, logit)
    w_mix = tl.exp(largest - top)
    w_last = tl.exp(logit - top)
    den = w_mix * total + w_last
    square = w_mix * w_mix * mix_mix + 2.0 * w_mix * w_last * mix_last + w_last * w_last * last_last
    scale = tl.rsqrt(square / columns + eps * den * den)
    result = (w_mix * scale) * mix + (w_last * scale) * last
    result *= tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + column, result.to(tl.bfloat16), mask=inside)
    if WRITE_X_MOE:
        tl.store(x_moe + column, published(result), mask=inside)


@triton.jit(do_not_specialize=["blocks_read", "groups"])
def oproj_consumer_kernel(
    mailbox, prefix, blocks, score_gamma, score_proj, gamma, x_moe, out,
    stride_mailbox_rank, stride_mailbox, stride_prefix, stride_blocks, stride_block, stride_x_moe, stride_out,
    columns, blocks_read, groups, eps_score, eps,
    RANKS: tl.constexpr, SIZE: tl.constexpr, REPLACE: tl.constexpr, WRITE_X_MOE: tl.constexpr,
    SUMMED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    _finish_row(
        mailbox + row * stride_mailbox, prefix + row * stride_prefix, blocks + row * stride_blocks,
        score_gamma, score_proj, gamma, x_moe + row * stride_x_moe, out + row * stride_out,
        stride_mailbox_rank, stride_block, columns, blocks_read, groups, eps_score, eps,
        RANKS, SIZE, REPLACE, WRITE_X_MOE, SUMMED, BLOCK, CHUNK, CHUNKS, SLOTS, PDL,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_rank", "groups"])
def oproj_summed_kernel(
    y, weight, mailbox, arrived, prefix, stride_y_rank, stride_y, stride_weight_rank, stride_weight,
    stride_mailbox_rank, stride_mailbox, stride_prefix, n, k, first_rank, groups,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr,
    LAUNCHED: tl.constexpr, RANKS: tl.constexpr, SIZE: tl.constexpr, REPLACE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Partials of a few columns of one rank; of the LAUNCHED ranks the one that ends last adds all RANKS
    slots of these columns to the prefix and leaves the counter at 0."""
    tile, rank = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tile.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    weights = weight + rank * stride_weight_rank + column[:, None] * stride_weight
    w = first_weights(weights, column, n, k, STEP)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot = mailbox + (rank + first_rank) * stride_mailbox_rank
    for row in tl.static_range(ROWS):
        total = row_product(w, weights, y + rank * stride_y_rank + row * stride_y, column, n, k, STEP, STEPS)
        tl.store(slot + row * stride_mailbox + column, published(total), mask=column < n)
    # All threads have stored before one of them says so; its acquire orders what the others load after it.
    tl.debug_barrier()
    before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
    tl.debug_barrier()
    if before == LAUNCHED - 1:
        tl.store(arrived + tile, 0)
        for row in tl.static_range(ROWS):
            _new_prefix(
                mailbox + row * stride_mailbox, prefix + row * stride_prefix, stride_mailbox_rank, column,
                column < n, groups, RANKS, SIZE, REPLACE,
            )  # fmt: skip


@triton.jit(do_not_specialize=["blocks_read", "groups", "first_rank", "programs"])
def oproj_fused_kernel(
    y, weight, mailbox, arrived, prefix, blocks, score_gamma, score_proj, gamma, x_moe, out,
    stride_y_rank, stride_weight_rank, stride_weight, stride_mailbox_rank, stride_block,
    columns, k, first_rank, programs, blocks_read, groups, eps_score, eps,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr,
    RANKS: tl.constexpr, SIZE: tl.constexpr, REPLACE: tl.constexpr, WRITE_X_MOE: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Partials of a few columns of one rank; the program that arrives last finishes the row and leaves the
    counter at 0."""
    rank = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    weights = weight + rank * stride_weight_rank + column[:, None] * stride_weight
    w = first_weights(weights, column, columns, k, STEP)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    y += rank * stride_y_rank
    slot = mailbox + (rank + first_rank) * stride_mailbox_rank
    total = row_product(w, weights, y, column, columns, k, STEP, STEPS)
    tl.store(slot + column, published(total), mask=column < columns)
    # All threads have stored before one of them says so; its acquire orders what the others load after it.
    tl.debug_barrier()
    before = tl.atomic_add(arrived, 1, sem="acq_rel")
    tl.debug_barrier()
    if before == programs - 1:
        tl.store(arrived, 0)
        _finish_row(
            mailbox, prefix, blocks, score_gamma, score_proj, gamma, x_moe, out,
            stride_mailbox_rank, stride_block, columns, blocks_read, groups, eps_score, eps,
            RANKS, SIZE, REPLACE, WRITE_X_MOE, False, BLOCK, CHUNK, CHUNKS, SLOTS, False,
        )  # fmt: skip


def oproj(a: OprojArguments) -> None:
    """All ranks' partials, their sum, the new prefix and its mix; see ``OprojArguments``.

    Up to 64 rows, 16 ranks, 8,192 columns and 8 blocks. Rows, ranks and blocks may lie apart from each other.
    """
    ranks, rows, _ = a.y.shape
    if reason := _refused(ranks, rows, a.out.shape[1], a.blocks_read):
        raise UserError(reason)
    mailbox = a.mailbox[:, :rows]
    kernels = route(TABLE, rows, _when(ranks, a.two_shot)).kernels
    if kernels == ("oproj_fused_kernel",):
        fused(a.y, a.weight, mailbox, a)
        return
    if kernels[0] == "oproj_summed_kernel":
        summed(a.y, a.weight, mailbox, a)
        consume(mailbox, a, summed=True)
        return
    produce(a.y, a.weight, mailbox)
    if a.two_shot:
        gathered = torch.empty(1, rows, mailbox.shape[2], dtype=mailbox.dtype, device=mailbox.device)
        add_ranks(mailbox, gathered[0])
        mailbox = gathered
    consume(mailbox, a)


def summed(y: Tensor, weight: Tensor, mailbox: Tensor, a: OprojArguments, first_rank: int = 0) -> None:
    """Partials of the ranks from ``first_rank`` on into mailbox[T, B, D], and the sum over T onto the
    prefix; at most two rows."""
    _dense(mailbox, a)
    need_dense_last_axis(y=y, weight=weight)
    (launched, rows, k), columns, ranks = y.shape, weight.shape[1], mailbox.shape[0]
    tile = skinny_tile(columns, k, interpreted(y))
    tiles = triton.cdiv(columns, tile["COLUMNS"])
    oproj_summed_kernel[tiles, launched](
        y, weight, mailbox, workspace("oproj_summed", MAX_COLUMNS, y.device), a.prefix,
        *y.stride()[:2], *weight.stride()[:2], *mailbox.stride()[:2], a.prefix.stride(0), columns, k,
        first_rank, GROUPS,
        ROWS=rows, **tile, LAUNCHED=launched, RANKS=ranks, SIZE=triton.cdiv(ranks, GROUPS),
        REPLACE=a.merge == "replace", num_warps=4, **programmatic(y),
    )  # fmt: skip


def consume(mailbox: Tensor, a: OprojArguments, summed: bool = False) -> None:
    """Sum mailbox[T, B, D] over T in four groups of ranks (``summed``: the prefix has it) and finish every
    row."""
    _dense(mailbox, a)
    rows = mailbox.shape[1]
    options, block = _options(mailbox, a)
    oproj_consumer_kernel[(rows,)](
        mailbox, a.prefix, a.blocks, a.score_gamma, a.score_proj, a.gamma, a.x_moe, a.out,
        *mailbox.stride()[:2], a.prefix.stride(0), *a.blocks.stride()[:2], a.x_moe.stride(0), a.out.stride(0),
        a.out.shape[1], a.blocks_read, GROUPS, a.eps_score, a.eps,
        SUMMED=summed, **options, num_warps=min(8, max(1, block // 512)),
    )  # fmt: skip


def fused(y: Tensor, weight: Tensor, mailbox: Tensor, a: OprojArguments, first_rank: int = 0) -> None:
    """Partials of the ranks from ``first_rank`` on into mailbox[T, B, D], then all of ``consume``; for
    one row."""
    _dense(mailbox, a)
    need_dense_last_axis(y=y, weight=weight)
    (ranks, _, k), columns = y.shape, weight.shape[1]
    tile = skinny_tile(columns, k, interpreted(y))
    options, _ = _options(mailbox, a)
    grid = (triton.cdiv(columns, tile["COLUMNS"]), ranks)
    oproj_fused_kernel[grid](
        y, weight, mailbox, workspace("oproj_fused", 1, y.device),
        a.prefix, a.blocks, a.score_gamma, a.score_proj, a.gamma, a.x_moe, a.out,
        y.stride(0), *weight.stride()[:2], mailbox.stride(0), a.blocks.stride(1), columns, k,
        first_rank, grid[0] * grid[1], a.blocks_read, GROUPS, a.eps_score, a.eps, **tile,
        **options, num_warps=16,
    )  # fmt: skip


def _dense(mailbox: Tensor, a: OprojArguments) -> None:
    need_dense_last_axis(
        mailbox=mailbox, prefix=a.prefix, blocks=a.blocks, x_moe=a.x_moe, out=a.out, gamma=a.gamma,
        score_gamma=a.score_gamma, score_proj=a.score_proj,
    )  # fmt: skip


def _options(mailbox: Tensor, a: OprojArguments) -> tuple[dict[str, Any], int]:
    """Compile-time options of the row that follows the sum, and its block."""
    ranks, columns = mailbox.shape[0], a.out.shape[1]
    block = power_of_two(columns)
    chunk = block if interpreted(a.out) else min(block, 1024)
    options = {
        "RANKS": ranks, "SIZE": triton.cdiv(ranks, GROUPS), "REPLACE": a.merge == "replace",
        "WRITE_X_MOE": a.write_x_moe, "BLOCK": block, "CHUNK": chunk, "CHUNKS": triton.cdiv(columns, chunk),
        "SLOTS": MAX_BLOCKS,
    }  # fmt: skip
    return options | programmatic(a.out), block


def _refused(ranks: int, rows: int, columns: int, blocks: int) -> str | None:
    """Why this shape has no kernel, or None."""
    limits = {"rows": (rows, MAX_ROWS), "ranks": (ranks, MAX_RANKS), "columns": (columns, MAX_COLUMNS)}
    for name, (found, most) in (limits | {"blocks": (blocks, MAX_BLOCKS)}).items():
        if found > most:
            return f"oproj serves up to {most} {name}, not {found}"
    return None


def _when(ranks: int, two_shot: bool) -> str:
    return "two-shot" if two_shot else f"more than {MANY} ranks" if ranks > MANY else f"up to {MANY} ranks"


def supports(case: Case) -> str | None:
    return _refused(case["ranks"], case["rows"], case["width"], case["blocks"])


def kernels(case: Case) -> tuple[str, ...]:
    """What ``oproj`` launches for a case."""
    ranks, rows = case["ranks"], case["rows"]
    return route(TABLE, rows, _when(ranks, takes_two_shots(ranks, rows))).kernels


TABLE = (
    Route(1, ("oproj_fused_kernel",), {"groups": GROUPS}, when=f"more than {MANY} ranks"),
    Route(
        2,
        ("oproj_summed_kernel", "oproj_consumer_kernel"),
        {"groups": GROUPS},
        when=f"more than {MANY} ranks",
    ),
    Route(16, (kernel_name(16), "oproj_consumer_kernel"), {"groups": GROUPS}, when=f"more than {MANY} ranks"),
    Route(
        2, ("oproj_summed_kernel", "oproj_consumer_kernel"), {"groups": GROUPS}, when=f"up to {MANY} ranks"
    ),
    Route(32, (kernel_name(32), "oproj_consumer_kernel"), {"groups": GROUPS}, when=f"up to {MANY} ranks"),
    Route(64, (kernel_name(64), "add_ranks_kernel", "oproj_consumer_kernel"), {"groups": 1}, when="two-shot"),
)
OPERATIONS = {"oproj": {"function": oproj, "kernels": kernels, "table": TABLE, "supports": supports}}
