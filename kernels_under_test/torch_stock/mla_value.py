"""MLA value in the stock order: one bmm rounded to BF16, then attention output times sigmoid in FP32, one
cast."""

from __future__ import annotations

import torch

from kernels_under_test.gemm import fp32_partial_sums
from validation.contracts.mla.value import MlaValueArguments
from validation.providers import implements


@implements("mla_value", provider="torch", profile="stock")
def mla_value(a: MlaValueArguments) -> None:
    """out[row, head * V] = bf16(bf16(latent W_UV) * sigmoid(gate)); padding rows are zero."""
    with fp32_partial_sums():
        v = torch.bmm(a.latent.transpose(0, 1), a.w_uv).transpose(0, 1)
    gated = v.float() * torch.sigmoid(a.gate.float())
    a.out.copy_(torch.where(a.live[:, None, None], gated, 0.0).flatten(1))
