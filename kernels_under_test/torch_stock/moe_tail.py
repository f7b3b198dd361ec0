"""The MoE tail in the order of stock's second tier: all-reduce, RMSNorm with FP32 squares, up GEMM, add."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels_under_test.gemm import fp32_partial_sums
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.moe.tail import MoeTailArguments


@implements("moe_tail", provider="torch", profile="stock")
def moe_tail(a: MoeTailArguments) -> None:
    """out = bf16(bf16(n W_up^T) + bf16(sum of the shared partials)), -0.0 as +0.0."""
    z = _latent(a).float().sum(0).bfloat16().float()
    inverse = torch.rsqrt(z.square().mean(-1, keepdim=True) + a.eps)
    normed = (z * inverse * a.gamma.float()).bfloat16()
    with fp32_partial_sums():
        up = torch.cat([torch.mm(normed, shard.T) for shard in a.up.unbind(0)], -1)
    a.out.copy_((up + a.shared.float().sum(0).bfloat16()) + 0.0)


def _latent(a: MoeTailArguments) -> Tensor:
    """The ranks' partials, one's slots combined. BF16 [rank, row, latent]"""
    if a.own_rank < 0:
        return a.latent
    slots = a.rows.unflatten(0, (-1, a.weights.shape[1])).float()
    own = (slots * a.weights.float().unsqueeze(-1)).sum(1).bfloat16()
    latent = a.latent.clone()
    latent[a.own_rank] = own
    return latent
