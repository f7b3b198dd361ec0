"""The shared experts in the stock order: one BF16 GEMM, SiTU in FP32, one BF16 GEMM, and a sum over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels_under_test.gemm import fp32_partial_sums
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.moe.shared import SharedExpertArguments


@implements("shared_expert", provider="torch", profile="stock")
def shared_expert(a: SharedExpertArguments) -> None:
    """partial[rank] = that rank's share; out = their FP32 sum, rounded once."""
    for gate_up, down, partial in zip(a.gate_up, a.down, a.partial, strict=True):
        shard(a.h, gate_up, down, partial, a.beta, a.linear_beta)
    a.out.copy_(a.partial.float().sum(0) + 0.0)


def shard(h: Tensor, gate_up: Tensor, down: Tensor, partial: Tensor, beta: float, linear: float) -> None:
    """One rank: partial = bf16(bf16(SiTU(bf16(h W_gu^T))) W_d^T), -0.0 as +0.0."""
    with fp32_partial_sums():
        gate, up = torch.mm(h, gate_up.T).float().chunk(2, -1)
        hidden = situ(gate, up, beta, linear).bfloat16()
        partial.copy_(torch.mm(hidden, down.T) + 0.0)


def situ(gate: Tensor, up: Tensor, beta: float, linear: float) -> Tensor:
    """FP32, with tanh and sigmoid of the library."""
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear * torch.tanh(up / linear))
