"""The o-projection in the stock order: one BF16 GEMM a rank, an FP32 all-reduce, then AttnRes."""

from __future__ import annotations

import torch

from kernels_under_test.gemm import fp32_partial_sums
from kernels_under_test.torch_stock.attn_res import attn_res
from validation.contracts.oproj_arguments import OprojArguments
from validation.providers import implements


@implements("oproj", provider="torch", profile="stock")
def oproj(a: OprojArguments) -> None:
    """Update the prefix, write the normed mixture and, where asked for, its copy without -0."""
    with fp32_partial_sums():
        partials = torch.stack([torch.mm(y, w.T) for y, w in zip(a.y, a.weight, strict=True)])
    reduced = partials.float().sum(0).bfloat16()
    attn_res(a.boundary(reduced))
    if a.write_x_moe:
        a.x_moe.copy_(torch.where(a.out == 0, 0.0, a.out))
