"""MXFP8 quantisation with plain tensor operations on FP32 bit patterns."""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.moe.quantize import MxQuantizeArguments
from validation.providers import implements

BLOCK = 32


def quantized(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """E4M3 bytes of FP32 ``x`` [.., column] and E8M0 bytes [.., column / 32]. u8"""
    blocks = x.unflatten(-1, (-1, BLOCK))
    largest = torch.where(torch.isnan(blocks), 0.0, blocks.abs()).amax(-1)
    pattern = largest.contiguous().view(torch.int32)
    exponent, mantissa = pattern >> 23, pattern & 0x7FFFFF
    if rule == "floor":
        code = torch.where(exponent == 255, 254, (exponent - 8).clamp(min=0))
    else:
        raised = (exponent - 8 + (mantissa > 0x600000).int()).clamp(0, 254)
        code = torch.where(exponent == 0, 0, raised)
    rescale = torch.where(code >= 254, 0, (254 - code) << 23).view(torch.float32)
    scaled = (blocks * rescale[..., None]).clamp(-448.0, 448.0)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8).flatten(-2), code.to(torch.uint8)


@implements("mx_quantize", provider="torch", profile="stock")
def mx_quantize(a: MxQuantizeArguments) -> None:
    """codes[row, column], scales[row, column / 32] of x[row, column]."""
    codes, scales = quantized(a.x.float(), a.rule)
    a.codes.copy_(codes)
    a.scales.copy_(scales)
