"""Vocabulary-parallel embedding: a gather on every rank and a sum over ranks, fused above 64 rows.

Like the subject's ``EmbeddingGather`` (its operation 3.1): up to 64 rows one program moves 1,024 columns of
one token with 128 threads, and rows that a rank does not own are zero. The framework's all-reduce is played
by a second kernel that adds the ranks in order and writes every rank's copy. Above 64 rows, where the subject
runs its stock path, one kernel reads each row from its owner; adding +0 does there to -0.0 what the sum does.

What this cannot show: a real all-reduce.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis, power_of_two
from validation.dispatch.table import Route, route

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.vocabulary.embedding import EmbeddingArguments

# Tokens and columns a program moves, by kernel; the interpreter pays by the operation, not by the element.
TILES = {"embedding_gather_kernel": (1, 1024), "embedding_rows_kernel": (4, 1024)}
INTERPRETED_ROWS = 32


@triton.jit
def embedding_gather_kernel(
    ids, weight, partial, stride_ids, stride_weight_rank, stride_weight, rows, columns, shard, org_vocab,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """partial[rank, token, column] = this rank's row of the table, or 0."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    rank = tl.program_id(2).to(tl.int64)
    index = tl.load(ids + token.to(tl.int64) * stride_ids, mask=token < rows, other=-1).to(tl.int64)
    local = index - rank * shard
    mine = (index >= 0) & (index < org_vocab) & (local >= 0) & (local < shard)
    live = (token < rows)[:, None] & (column < columns)[None, :]
    at = rank * stride_weight_rank + local[:, None] * stride_weight + column[None, :]
    value = tl.load(weight + at, mask=live & mine[:, None], other=0.0)
    place = (rank * rows + token[:, None]) * columns + column[None, :]
    tl.store(partial + place, value, mask=live)


@triton.jit
def embedding_sum_kernel(
    partial, out, stride_out_rank, stride_out, rows, columns, ranks,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[every rank, token, column] = partial[0] + partial[1] + ..., in BF16: one addend at most is not
    0."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    live = (token < rows)[:, None] & (column < columns)[None, :]
    place = partial + token[:, None] * columns + column[None, :]
    total = tl.load(place, mask=live, other=0.0)
    for _ in range(1, ranks):
        place += rows * columns
        total += tl.load(place, mask=live, other=0.0)
    target = out + token[:, None] * stride_out + column[None, :]
    for _ in range(0, ranks):
        tl.store(target, total, mask=live)
        target += stride_out_rank


@triton.jit
def embedding_rows_kernel(
    ids, weight, out, stride_ids, stride_weight_rank, stride_weight, stride_out_rank, stride_out,
    rows, columns, shard, org_vocab, ranks, SUMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[every rank, token, column] = the row of the rank that owns the token, or 0."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    index = tl.load(ids + token * stride_ids, mask=token < rows, other=-1).to(tl.int64)
    valid = (index >= 0) & (index < org_vocab)
    owner = index // shard
    at = owner * stride_weight_rank + (index - owner * shard) * stride_weight
    live = (token < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(weight + at[:, None] + column[None, :], mask=live & valid[:, None], other=0.0)
    if SUMS:
        value += 0.0
    target = out + token[:, None] * stride_out + column[None, :]
    for _ in range(0, ranks):
        tl.store(target, value, mask=live)
        target += stride_out_rank


TABLE = (
    Route(64, ("embedding_gather_kernel", "embedding_sum_kernel"), {"columns": 1024, "rows": 1}),
    Route(1 << 30, ("embedding_rows_kernel",), {"columns": 1024, "rows": 4}),
)


def embedding(a: EmbeddingArguments) -> None:
    """out[every rank, B, D] BF16 from ids [B] of either width; any B, D, number of ranks; rows may lie
    apart."""
    need_dense_last_axis(weight=a.weight, out=a.out)
    tokens = a.tokens
    (ranks, shard, columns), rows = a.weight.shape, tokens.shape[0]
    kernel = route(TABLE, rows).kernels[0]
    tile, block = TILES[kernel]
    if interpreted(tokens):
        tile, block = INTERPRETED_ROWS, power_of_two(columns)
    grid = (triton.cdiv(columns, block), triton.cdiv(rows, tile))
    table = (a.weight.stride(0), a.weight.stride(1))
    copies = (a.out.stride(0), a.out.stride(1))
    options = {"ROWS": tile, "BLOCK": block, "num_warps": 4}
    if kernel == "embedding_rows_kernel":
        embedding_rows_kernel[grid](
            tokens, a.weight, a.out, tokens.stride(0), *table, *copies,
            rows, columns, shard, a.org_vocab, ranks, SUMS=ranks > 1, **options,
        )  # fmt: skip
        return
    partial = torch.empty(ranks, rows, columns, dtype=torch.bfloat16, device=tokens.device)
    embedding_gather_kernel[(*grid, ranks)](
        tokens, a.weight, partial, tokens.stride(0), *table, rows, columns, shard, a.org_vocab, **options
    )
    embedding_sum_kernel[grid](partial, a.out, *copies, rows, columns, ranks, **options)


def kernels(case: Case) -> tuple[str, ...]:
    """What ``embedding`` launches for a case."""
    return route(TABLE, case["rows"]).kernels
