"""Operations whose matmuls, norms and rank sums are those of vLLM's batch-invariant mode, all of them Triton.

vLLM's: the persistent matmul and the batched one (FP32 accumulation in one chain of K tiles of 64, one
rounding to BF16), RMSNorm (one rounding), the sum over ranks in rank order (FP32, one rounding), the
AttnRes kernel behind the o-projection. Ours, in torch: SiTU, sigmoid gates and scales (compiled in vLLM, or
left to its compiler), -0 made +0 where the operation asks for it, gathering and copies.

The matmul's offsets are 32-bit unless an operand has more than 2**31 elements, however far apart its rows
lie: a view whose strides pass that is read elsewhere. Such a case is not served.

What this cannot show: the matmuls that Kimi K3 runs by default (skinny, split-K, cuBLAS), all compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels_under_test.vllm_release import modules
from kernels_under_test.vllm_triton.attn_res import attn_res
from validation.providers import implements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.dense import DenseMlpArguments
    from validation.contracts.mla.value import MlaValueArguments
    from validation.contracts.moe.shared import SharedExpertArguments
    from validation.contracts.moe.tail import MoeTailArguments
    from validation.contracts.oproj_arguments import OprojArguments
    from validation.contracts.vocabulary.logits import LogitsArguments

_mode = modules.module(modules.BATCH_INVARIANT)
matmul, bmm, rms_norm = _mode.matmul_persistent, _mode.bmm_batch_invariant, _mode.rms_norm_batch_invariant

BLOCK = 1024
BETA, LINEAR_BETA = 4.0, 25.0


def rank_sum(partials: Iterable[Tensor]) -> Tensor:
    """Sum in rank order of equal BF16 tensors, rounded once: the kernel of vLLM's all-reduce of this mode."""
    gathered = torch.stack(list(partials))
    out = torch.empty_like(gathered[0])
    grid = (-(-out.numel() // BLOCK),)
    _mode._fixed_order_sum_kernel[grid](
        gathered,
        out,
        out.numel(),
        out.numel(),
        WORLD_SIZE=len(gathered),
        BLOCK_SIZE=BLOCK,
        LARGE=gathered.numel() > 2**31,
    )
    return out


def gated(both: Tensor, beta: float = BETA, linear: float = LINEAR_BETA) -> Tensor:
    """SiTU of the first half of the columns times the bounded second half, FP32, rounded once to BF16."""
    g, u = both.float().chunk(2, -1)
    hidden = beta * torch.tanh(g / beta) * torch.sigmoid(g) * (linear * torch.tanh(u / linear))
    return hidden.bfloat16()


@implements("oproj", provider="vllm_triton", profile="stock", requires=("triton",))
def oproj(a: OprojArguments) -> None:
    """Update the prefix, write the normed mixture and, where asked for, its copy without -0."""
    attn_res(a.boundary(rank_sum(matmul(y, w.T) for y, w in zip(a.y, a.weight, strict=True))))
    if a.write_x_moe:
        a.x_moe.copy_(torch.where(a.out == 0, 0.0, a.out))


@implements("dense_mlp", provider="vllm_triton", profile="stock", requires=("triton",))
def dense_mlp(a: DenseMlpArguments) -> None:
    """out = bf16(sum over ranks of the ranks' BF16 partials)."""
    shards = zip(a.gate_up, a.down, strict=True)
    a.out.copy_(rank_sum(matmul(gated(matmul(a.x, gate_up.T)), down.T) for gate_up, down in shards))


@implements("shared_expert", provider="vllm_triton", profile="stock", requires=("triton",))
def shared_expert(a: SharedExpertArguments) -> None:
    """partial[rank] = that rank's share; out = their FP32 sum, rounded once."""
    for gate_up, down, partial in zip(a.gate_up, a.down, a.partial, strict=True):
        hidden = gated(matmul(a.h, gate_up.T), a.beta, a.linear_beta)
        partial.copy_(matmul(hidden, down.T) + 0.0)
    a.out.copy_(rank_sum(a.partial) + 0.0)


@implements("mla_value", provider="vllm_triton", profile="stock", requires=("triton",))
def mla_value(a: MlaValueArguments) -> None:
    """out[row, head * V] = bf16(bf16(latent W_UV) * sigmoid(gate)); padding rows are zero."""
    v = bmm(a.latent.transpose(0, 1), a.w_uv).transpose(0, 1)
    result = v.float() * torch.sigmoid(a.gate.float())
    a.out.copy_(torch.where(a.live[:, None, None], result, 0.0).flatten(1))


def near(case: Case) -> str | None:
    wrap = "vllm's matmul has 32-bit offsets for up to 2**31 elements, however far apart they lie"
    return wrap if case.regime == "wide_offsets" else None


@implements("logits", provider="vllm_triton", profile="stock", requires=("triton",), supports=near)
def logits(a: LogitsArguments) -> None:
    """out[every rank] = the logits of the wanted rows; hidden = all rows normalised, where they all are."""
    if a.norm == "all":
        a.hidden.copy_(rms_norm(a.x, a.gamma, a.eps))
        rows = a.hidden[a.rows_wanted]
    else:
        rows = a.x[a.rows_wanted]
        if a.norm == "sampled":
            rows = rms_norm(rows, a.gamma, a.eps)
    gathered = torch.cat([matmul(rows, shard.T) for shard in a.weight], -1)[:, : a.org_vocab]
    a.out.copy_(gathered if a.scale == 1.0 else gathered * a.scale)


@implements("moe_tail", provider="vllm_triton", profile="stock", requires=("triton",))
def moe_tail(a: MoeTailArguments) -> None:
    """out = bf16(bf16(n W_up^T) + bf16(sum of the shared partials)), -0.0 as +0.0."""
    normed = rms_norm(rank_sum(_partials(a)), a.gamma, a.eps)
    up = torch.cat([matmul(normed, shard.T) for shard in a.up], -1)
    a.out.copy_((up + rank_sum(a.shared)) + 0.0)


def _partials(a: MoeTailArguments) -> list[Tensor]:
    """The ranks' latents, the own one's slots combined. BF16 [row, latent] each"""
    latents = list(a.latent)
    if a.own_rank >= 0:
        slots = a.rows.unflatten(0, (-1, a.weights.shape[1])).float()
        latents[a.own_rank] = (slots * a.weights.float().unsqueeze(-1)).sum(1).bfloat16()
    return latents
