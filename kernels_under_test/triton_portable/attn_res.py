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

from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    programmatic,
)
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.arguments import AttnResArguments

MAX_BLOCKS = 8
MERGE = {"add": 0, "replace": 1, "keep": 2}
FINISH = {"norm": 0, "final": 1, "mix": 2}


@triton.jit
def _logits(
    blocks, stride_block, score_gamma, score_proj, columns, blocks_read, eps,
    SLOTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Logits of all blocks, -inf where there is none: (sum x * weight) * rsqrt(mean x^2 + eps).

    All blocks are the rows of one tile: their loads are in flight together, and one reduction ends all.
    """
    slot = tl.arange(0, SLOTS)
    dots = tl.zeros([SLOTS, CHUNK], dtype=tl.float32)
    squares = tl.zeros([SLOTS, CHUNK], dtype=tl.float32)
    rows = blocks + slot.to(tl.int64)[:, None] * stride_block
    for chunk in tl.static_range(CHUNKS):
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = column < columns
        weight = tl.load(score_gamma + column, mask=inside, other=0.0).to(tl.float32)
        weight *= tl.load(score_proj + column, mask=inside, other=0.0).to(tl.float32)
        live = (slot < blocks_read)[:, None] & inside[None, :]
        x = tl.load(rows + column[None, :], mask=live, other=0.0).to(tl.float32)
        dots += x * weight[None, :]
        squares += x * x
    logits = tl.sum(dots, axis=1) * tl.rsqrt(tl.sum(squares, axis=1) / columns + eps)
    return tl.where(slot < blocks_read, logits, float("-inf"))


@triton.jit
def _premix(blocks, stride_block, column, inside, logits, blocks_read, SLOTS: tl.constexpr):
    """Largest logit of the blocks, sum of exp(logit - largest), and the blocks summed with these factors."""
    slot = tl.arange(0, SLOTS)
    largest = tl.max(logits, axis=0)
    # Without blocks every logit is -inf, and -inf - -inf would be NaN.
    factors = tl.where(slot < blocks_read, tl.exp(logits - largest), 0.0)
    mix = tl.zeros_like(column).to(tl.float32)
    for b in tl.static_range(SLOTS):
        x = tl.load(blocks + b * stride_block + column, mask=inside & (b < blocks_read), other=0.0)
        mix += tl.sum(tl.where(slot == b, factors, 0.0), axis=0) * x.to(tl.float32)
    return largest, tl.sum(factors, axis=0), mix


@triton.jit
def _four_sums(a, b, c, d):
    """Sums of four vectors by one reduction."""
    total = tl.sum(tl.join(tl.join(a, b), tl.join(c, d)), axis=0)
    ab, cd = tl.split(total)
    sum_a, sum_b = tl.split(ab)
    sum_c, sum_d = tl.split(cd)
    return sum_a, sum_b, sum_c, sum_d


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
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    prefix += row * stride_prefix
    blocks += row * stride_blocks

    # Blocks and weights were complete before the kernel before this one began: they need not wait for it.
    logits = _logits(
        blocks, stride_block, score_gamma, score_proj, columns, blocks_read, eps_score, SLOTS, CHUNK, CHUNKS
    )
    largest, total, mix = _premix(blocks, stride_block, column, inside, logits, blocks_read, SLOTS)
    weight = tl.load(score_gamma + column, mask=inside, other=0.0).to(tl.float32)
    weight *= tl.load(score_proj + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

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
    dot_last, last_last, mix_mix, mix_last = _four_sums(last * weight, last * last, mix * mix, mix * last)
    logit = dot_last * tl.rsqrt(last_last / columns + eps_score)
    top = tl.maximum(largest, logit)
    w_mix = tl.exp(largest - top)
    w_last = tl.exp(logit - top)
    den = w_mix * total + w_last
    if FINISH_AS == 0:
        square = w_mix * w_mix * mix_mix + 2.0 * w_mix * w_last * mix_last + w_last * w_last * last_last
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
    chunk = block if interpreted(a.out) else min(block, 1024)
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
        CHUNK=chunk,
        CHUNKS=-(-columns // chunk),
        SLOTS=MAX_BLOCKS,
        num_warps=min(8, max(1, block // 512)),
        **programmatic(a.out),
    )


TABLE = (Route(rows=1 << 30, kernels=("attn_res_kernel",)),)
OPERATIONS = {
    "attn_res": {"function": attn_res, "kernels": lambda case: ("attn_res_kernel",), "table": TABLE},
}
