"""The dense MLP in the stock order: packed GEMM, SiTU, GEMM on every rank, then an FP32 all-reduce."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_under_test.gemm import fp32_partial_sums
from validation.contracts.dense import DenseMlpArguments
from validation.providers import implements

BETA, LINEAR_BETA = 4.0, 25.0


@implements("dense_mlp", provider="torch", profile="stock")
def dense_mlp(a: DenseMlpArguments) -> None:
    """out = bf16(sum over ranks of the ranks' BF16 partials)."""
    partials = []
    with fp32_partial_sums():
        for gate_up, down in zip(a.gate_up, a.down, strict=True):
            hidden = _situ_and_mul(torch.mm(a.x, gate_up.T))
            partials.append(torch.mm(hidden, down.T))
    a.out.copy_(torch.stack(partials).float().sum(0))


def _situ_and_mul(gate_up: Tensor) -> Tensor:
    """SiTU of the first half of the columns times the bounded second half, FP32, rounded once to BF16."""
    gate, up = gate_up.float().chunk(2, -1)
    bounded = BETA * torch.tanh(gate / BETA) * torch.sigmoid(gate)
    return (bounded * (LINEAR_BETA * torch.tanh(up / LINEAR_BETA))).bfloat16()
