"""Attention-residual mix and RMSNorm of one boundary, one program a row.

The association is that of the subject's AttnRes kernel (its operation 3.2). The blocks are mixed before the
new prefix is known: U = sum_b e_b X_b and S = sum_b e_b, with e_b = exp(logit_b - largest). With the prefix
P, the weights w_mix and w_last of U and P relative to the larger logit, and den = w_mix S + w_last, the
mixture is (w_mix U + w_last P) / den. The normed output never divides by den: its mean square comes from the
quadratic form Q = w_mix^2 sum U^2 + 2 w_mix w_last sum U P + w_last^2 sum P^2, and eps is multiplied by
den^2 instead.

What this cannot show: the subject's order of summation over seven clustered blocks, and its mailboxes.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import need_dense_last_axis, power_of_two
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.arguments import AttnResArguments

MAX_BLOCKS = 8
MERGE = {"add": 0, "replace": 1, "keep": 2}
FINISH = {"norm": 0, "final": 1, "mix": 2}


@triton.jit
def _score(v, weight, columns, eps):
    """Logit of one source: (sum v * weight) * rsqrt(mean v^2 + eps)."""
    return tl.sum(v * weight, axis=0) * tl.rsqrt(tl.sum(v * v, axis=0) / columns + eps)


@triton.jit
def _premix(blocks, stride_block, column, inside, weight, columns, blocks_read, eps, SLOTS: tl.constexpr):
    """Largest logit of the blocks, sum of exp(logit - largest), and the blocks summed with these factors."""
    slot = tl.arange(0, SLOTS)
    logits = tl.full([SLOTS], float("-inf"), dtype=tl.float32)
    for b in range(0, blocks_read):
        x = tl.load(blocks + tl.cast(b, tl.int64) * stride_block + column, mask=inside, other=0.0).to(
            tl.float32
        )
        logits = tl.where(slot == b, _score(x, weight, columns, eps), logits)
    largest = tl.max(logits, axis=0)
    # Without blocks every logit is -inf, and -inf - -inf would be NaN.
    factors = tl.where(slot < blocks_read, tl.exp(logits - largest), 0.0)
    mix = tl.zeros_like(weight)
    for b in range(0, blocks_read):
        x = tl.load(blocks + tl.cast(b, tl.int64) * stride_block + column, mask=inside, other=0.0).to(
            tl.float32
        )
        mix += tl.sum(tl.where(slot == b, factors, 0.0), axis=0) * x
    return largest, tl.sum(factors, axis=0), mix


@triton.jit(do_not_specialize=["blocks_read", "write_block"])
def attn_res_kernel(
    prefix,
    delta,
    blocks,
    score_gamma,
    score_proj,
    gamma,
    aux,
    out,
    stride_prefix,
    stride_delta,
    stride_blocks,
    stride_block,
    stride_aux,
    stride_out,
    columns,
    blocks_read,
    write_block,
    eps_score,
    eps,
    MERGE_AS: tl.constexpr,
    FINISH_AS: tl.constexpr,
    WRITE_BLOCK: tl.constexpr,
    WRITE_AUX: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    prefix += row * stride_prefix
    blocks += row * stride_blocks

    weight = tl.load(score_gamma + column, mask=inside, other=0.0).to(tl.float32)
    weight *= tl.load(score_proj + column, mask=inside, other=0.0).to(tl.float32)
    largest, total, mix = _premix(
        blocks, stride_block, column, inside, weight, columns, blocks_read, eps_score, SLOTS
    )

    if MERGE_AS == 2:
        merged = tl.load(prefix + column, mask=inside, other=0.0)
    else:
        merged = tl.load(delta + row * stride_delta + column, mask=inside, other=0.0)
        if MERGE_AS == 0:
            merged = merged.to(tl.float32) + tl.load(prefix + column, mask=inside, other=0.0).to(tl.float32)
            merged = merged.to(tl.bfloat16)
        # A short row is held by several threads at once; all must have read before one of them stores.
        tl.debug_barrier()
        tl.store(prefix + column, merged, mask=inside)
    if WRITE_BLOCK:
        tl.store(blocks + tl.cast(write_block, tl.int64) * stride_block + column, merged, mask=inside)
    if WRITE_AUX:
        tl.store(aux + row * stride_aux + column, merged, mask=inside)

    last = merged.to(tl.float32)
    logit = _score(last, weight, columns, eps_score)
    top = tl.maximum(largest, logit)
    w_mix = tl.exp(largest - top)
    w_last = tl.exp(logit - top)
    den = w_mix * total + w_last
    if FINISH_AS == 0:
        square = w_mix * w_mix * tl.sum(mix * mix, axis=0)
        square += 2.0 * w_mix * w_last * tl.sum(mix * last, axis=0)
        square += w_last * w_last * tl.sum(last * last, axis=0)
        scale = tl.rsqrt(square / columns + eps * den * den)
        result = (w_mix * scale) * mix + (w_last * scale) * last
    else:
        result = (w_mix / den) * mix + (w_last / den) * last
        if FINISH_AS == 1:
            result = result.to(tl.bfloat16).to(tl.float32)
            result *= tl.rsqrt(tl.sum(result * result, axis=0) / columns + eps)
    if FINISH_AS != 2:
        result *= tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + column, result.to(tl.bfloat16), mask=inside)


def attn_res(a: AttnResArguments) -> None:
    """Merge ``delta`` into the prefix, mix it with the blocks and norm it; see ``AttnResArguments``.

    Any B and D (one block of the next power of two; 8,192 columns on 16 warps for D = 7,168), 0 to 8 blocks.
    Rows, blocks and out may lie apart from each other; within a row they must be dense.
    """
    if not 0 <= a.blocks_read <= MAX_BLOCKS:
        raise UserError(f"blocks_read is {a.blocks_read}; it must be 0 to {MAX_BLOCKS}")
    need_dense_last_axis(
        prefix=a.prefix, delta=a.delta, blocks=a.blocks, aux=a.aux, out=a.out, gamma=a.gamma,
        score_gamma=a.score_gamma, score_proj=a.score_proj,
    )  # fmt: skip
    rows, columns = a.prefix.shape
    block = power_of_two(columns)
    attn_res_kernel[(rows,)](
        a.prefix,
        a.delta,
        a.blocks,
        a.score_gamma,
        a.score_proj,
        a.gamma,
        a.aux,
        a.out,
        a.prefix.stride(0),
        a.delta.stride(0),
        a.blocks.stride(0),
        a.blocks.stride(1),
        a.aux.stride(0),
        a.out.stride(0),
        columns,
        a.blocks_read,
        a.write_block,
        a.eps_score,
        a.eps,
        MERGE_AS=MERGE[a.merge],
        FINISH_AS=FINISH[a.finish],
        WRITE_BLOCK=a.write_block >= 0,
        WRITE_AUX=a.write_aux,
        BLOCK=block,
        SLOTS=MAX_BLOCKS,
        num_warps=min(16, max(1, block // 512)),
    )


TABLE = (Route(rows=1 << 30, kernels=("attn_res_kernel",)),)
OPERATIONS = {
    "attn_res": {"function": attn_res, "kernels": lambda case: ("attn_res_kernel",), "table": TABLE},
}
