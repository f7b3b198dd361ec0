"""Routed experts in the stock order, expert by expert: unpack, gate and up, SiTU in FP32, MXFP8, down."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_under_test.torch_stock.mx_quantize import quantized
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.providers import implements

BETA, LINEAR_BETA = 4.0, 25.0
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def _scale(codes: Tensor) -> Tensor:
    """2**(code - 127) in FP32; code 255 is NaN."""
    return codes.view(torch.float8_e8m0fnu).float()


def _scaled(values: Tensor, codes: Tensor) -> Tensor:
    return (values.unflatten(-1, (-1, 32)) * _scale(codes.contiguous())[..., None]).flatten(-2)


def _unpacked(nibbles: Tensor, scales: Tensor) -> Tensor:
    """FP32 values of MXFP4 bytes, low nibble first."""
    table = torch.tensor(_E2M1, device=nibbles.device)
    return _scaled(table[torch.stack([nibbles & 15, nibbles >> 4], -1).flatten(-2).int()], scales)


def _from_bytes(codes: Tensor, scales: Tensor) -> Tensor:
    return _scaled(codes.contiguous().view(torch.float8_e4m3fn).float(), scales)


def situ(g: Tensor, u: Tensor) -> Tensor:
    """beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta)"""
    return BETA * torch.tanh(g / BETA) * torch.sigmoid(g) * (LINEAR_BETA * torch.tanh(u / LINEAR_BETA))


@implements("experts", provider="torch", profile="stock")
def experts(a: ExpertsArguments) -> None:
    """out[row, column] = bf16(sum over slots of weight * bf16(W2 MX(SiTU(W13 x))))."""
    x = _from_bytes(a.x, a.x_scale)
    rows = torch.empty(*a.ids.shape, a.out.shape[1], dtype=torch.bfloat16, device=x.device)
    for expert in a.ids.unique().tolist():
        row, slot = (a.ids == expert).nonzero(as_tuple=True)
        gate, up = (
            x[row] @ _unpacked(a.w13[expert, part], a.w13_scale[expert, part]).T
            for part in (slice(0, a.live), slice(a.padded, a.padded + a.live))
        )
        hidden = _from_bytes(*quantized(situ(gate, up), "no_saturation"))
        w2 = _unpacked(a.w2[expert, :, : a.live // 2], a.w2_scale[expert, :, : a.live // 32])
        rows[row, slot] = (hidden @ w2.T).bfloat16()
    if a.rows is not None:
        a.rows.copy_(rows)
    a.out.copy_((rows.float() * a.weights.float()[..., None]).sum(1) + 0.0)  # never -0
