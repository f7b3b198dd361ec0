"""Latent attention with its cache sharded over ranks: every rank attends with all heads; rows are merged.

As the subject's operation 3.10: split attention and a merge per rank, whose rows are BF16 and whose log sums
are FP32 and of base two; then one kernel that each head's owner would run, which adds the ranks' rows in rank
order with FP32 weights. A rank that sees no key has a row of zeros and a log sum of -inf.

What this cannot show: the exchange itself; the ranks' grids run side by side on one device.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis
from kernels_under_test.triton_portable.mla_attention import Splits, check, unsupported
from kernels_under_test.triton_portable.mla_latent import LATENT
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.mla.dcp_arguments import MlaDcpArguments

MOST_RANKS = 16
# What a log sum must exceed for its rank to take part (the subject's mark of an empty shard is -3e38).
NOTHING = tl.constexpr(-3.0e38)


@triton.jit
def exponential(log_sum, largest):
    """The weight of a rank's row before all are divided by their sum: 0 where the rank saw no key."""
    return tl.where(log_sum > NOTHING, tl.exp2(log_sum - largest), 0.0)


@triton.jit
def normaliser(weight):
    """What makes weights of the sum ``weight`` shares of 1; 1 where there are none."""
    return 1.0 / tl.where(weight == 0.0, 1.0, weight)


@triton.jit
def dcp_merge_kernel(
    rows, log_sums, out, lengths, stride_rank, stride_sums, stride_out, tokens, heads, ranks,
    HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """out[row, h] = bf16(sum over ranks, in order, of their shares of the exponentials times their rows).

    ``rows`` [rank, row, head, d] BF16, ``log_sums`` [rank, row, head] FP32. A NaN row stays NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    inside = head < heads
    sums = log_sums + row * heads + head
    alive = tl.load(lengths + row // tokens) > 0
    largest = tl.full([HEADS], NOTHING, dtype=tl.float32)
    for rank in range(0, ranks):
        largest = tl.maximum(largest, tl.load(sums + rank * stride_sums, mask=inside, other=NOTHING))
    weight = tl.zeros([HEADS], dtype=tl.float32)
    for rank in range(0, ranks):
        log_sum = tl.load(sums + rank * stride_sums, mask=inside, other=NOTHING)
        weight += exponential(log_sum, largest)
    scale = normaliser(weight)
    at = tl.arange(0, D)
    total = tl.zeros([HEADS, D], dtype=tl.float32)
    for rank in range(0, ranks):
        log_sum = tl.load(sums + rank * stride_sums, mask=inside, other=NOTHING)
        share = exponential(log_sum, largest) * scale
        place = rows + tl.cast(rank, tl.int64) * stride_rank + (row * heads + head[:, None]) * D + at[None, :]
        total += share[:, None] * tl.load(place, mask=inside[:, None], other=0.0).to(tl.float32)
    total = tl.where(alive, total, 0.0)
    tl.store(
        out + row * stride_out + head[:, None] * D + at[None, :], total.to(tl.bfloat16), mask=inside[:, None]
    )


def mla_dcp(a: MlaDcpArguments) -> None:
    """out[row, head] of every head's owner: all ranks' rows merged by their log sums (``MlaDcpArguments``).

    Any number of requests and heads, 1 to 8 tokens, 1 to 16 ranks, any page size and interleave.
    """
    check(a.query, a.cache, a.out, a.tokens)
    need_dense_last_axis(block_table=a.block_table, totals=a.totals)
    if reason := _unsupported_ranks(a.ranks):
        raise UserError(reason)
    rows, heads = a.query.shape[:2]
    requests = a.totals.shape[0]
    work = Splits.of(a.query, requests, a.tokens, a.capacity, a.ranks)
    of_ranks = torch.empty(a.ranks, rows, heads, LATENT, dtype=torch.bfloat16, device=a.query.device)
    log_sums = torch.empty(a.ranks, rows, heads, dtype=torch.float32, device=a.query.device)
    work.attend(a.query, a.cache, a.block_table, a.totals, a.softmax_scale, a.k_scale, a.interleave)
    work.merge(of_ranks, log_sums)
    block = triton.next_power_of_2(heads) if interpreted(a.query) else 2
    dcp_merge_kernel[rows, triton.cdiv(heads, block)](
        of_ranks, log_sums, a.out, a.totals, of_ranks.stride(0), log_sums.stride(0), a.out.stride(0),
        a.tokens, heads, a.ranks, HEADS=block, D=LATENT, num_warps=4,
    )  # fmt: skip


def _unsupported_ranks(ranks: int) -> str | None:
    return None if 1 <= ranks <= MOST_RANKS else f"there are {ranks} ranks; there must be 1 to {MOST_RANKS}"


def supports(case: Case) -> str | None:
    return unsupported(case["tokens"]) or _unsupported_ranks(case["ranks"])


KERNELS = ("mla_split_kernel", "mla_merge_kernel", "dcp_merge_kernel")
OPERATIONS = {
    "mla_dcp": {
        "function": mla_dcp,
        "kernels": lambda case: KERNELS,
        "table": (Route(1 << 30, KERNELS),),
        "supports": supports,
    },
}
