"""Front of a MoE layer as the stock path calls it: one FP32-output GEMM for the router, one BF16 GEMM down.

The stock path computes all rows on every rank; here each rank's rows are computed and put in place, which
gives the same values. Zeros are made positive, as the exchange needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels_under_test.gemm import fp32_partial_sums
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.moe.front import MoeFrontArguments


@implements("moe_front", provider="torch", profile="stock")
def moe_front(a: MoeFrontArguments) -> None:
    """logits[row, expert] FP32 and latent[row, column] BF16, rank after rank."""
    experts, columns = a.router.shape[1], a.down.shape[1]
    with fp32_partial_sums():
        for rank in range(a.ranks):
            logits = _fp32_product(a.h, a.router[rank])
            latent = torch.mm(a.h, a.down[rank].T)
            # x + 0 turns -0 into +0 and leaves everything else alone.
            a.logits[:, rank * experts : (rank + 1) * experts] = logits + 0.0
            a.latent[:, rank * columns : (rank + 1) * columns] = latent + 0.0


def _fp32_product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T of BF16 operands in FP32, not rounded after."""
    if x.is_cuda:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    return torch.mm(x.float(), weight.float().T)
