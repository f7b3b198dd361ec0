"""Routing, quantisation and routed experts without a loop over experts: every slot gathers its weights.

Catches and cannot catch: nothing by itself.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from kernels_under_test.torch_stock.experts import situ
from kernels_under_test.torch_stock.mx_quantize import quantized
from kernels_under_test.torch_stock.route import route

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


_VALUES = _E2M1 + tuple(-v for v in _E2M1)


@functools.cache
def _table_on(device: torch.device) -> Tensor:
    """Made once: nothing may be copied from the host while a graph is captured."""
    return torch.tensor(_VALUES, device=device)


def _table(device: torch.device) -> Tensor:
    """FP32 values of the sixteen codes. (A compiler cannot look into a cache; on the CPU none is needed.)"""
    return torch.tensor(_VALUES) if device.type == "cpu" else _table_on(device)


def mx_quantize(a: Any) -> None:
    codes, scales = quantized(a.x.float(), a.rule)
    a.codes.copy_(codes)
    a.scales.copy_(scales)


def _scale(codes: Tensor) -> Tensor:
    """2**(code - 127) of codes below 255, in FP32."""
    wide = codes.int()
    return torch.where(wide > 0, wide << 23, 1 << 22).view(torch.float32)


def _scaled(values: Tensor, codes: Tensor) -> Tensor:
    return (values.unflatten(-1, (-1, 32)) * _scale(codes)[..., None]).flatten(-2)


def _unpacked(nibbles: Tensor, scales: Tensor) -> Tensor:
    """FP32 values of MXFP4 bytes, low nibble first."""
    table = _table(nibbles.device)
    codes = torch.stack([nibbles & 15, nibbles >> 4], -1).flatten(-2)
    return _scaled(table[codes.long()], scales)


def _values(codes: Tensor, scales: Tensor) -> Tensor:
    return _scaled(codes.view(torch.float8_e4m3fn).float(), scales)


def experts(a: Any) -> None:
    """out[row] = bf16(sum over slots of weight * bf16(W2 MX(SiTU(W13 x))))."""
    x, ids = _values(a.x, a.x_scale), a.ids.long()
    halves = []
    for part in (slice(0, a.live), slice(a.padded, a.padded + a.live)):
        w = _unpacked(a.w13[:, part][ids], a.w13_scale[:, part][ids])
        halves.append(torch.einsum("bk,bsnk->bsn", x, w))
    hidden = _values(*quantized(situ(halves[0], halves[1]), "no_saturation"))
    blocks = a.live // 32
    w2 = _unpacked(a.w2[..., : a.live // 2][ids], a.w2_scale[..., :blocks][ids])
    rows = torch.einsum("bsn,bsln->bsl", hidden, w2).bfloat16()
    if a.rows is not None:
        a.rows.copy_(rows)
    a.out.copy_((rows.float() * a.weights.float()[..., None]).sum(1) + 0.0)


OPERATIONS = {"route": route, "mx_quantize": mx_quantize, "experts": experts}
