"""The input projection as the stock path calls it: one BF16 GEMM with FP32 accumulation."""

from __future__ import annotations

import torch

from kernels_under_test.gemm import fp32_partial_sums
from validation.contracts.arguments import ProjectionArguments
from validation.providers import implements


@implements("projection", provider="torch", profile="stock")
def projection(a: ProjectionArguments) -> None:
    """out[row, column] = bf16(x W^T)."""
    with fp32_partial_sums():
        torch.mm(a.x, a.weight.T, out=a.out)
