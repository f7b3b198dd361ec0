"""Tensors laid out as a cache lays them out: rows apart, and NaN in every place that is not theirs."""

from __future__ import annotations

import torch

from kernels_under_test.interpreter import device

NAN = float("nan")


def spread(value: torch.Tensor, gap: int = 7, transposed: bool = False) -> torch.Tensor:
    """A copy on the test's device whose leading index moves over ``gap`` extra elements, all NaN.

    A vector is dense, between gaps. ``transposed``: the last two axes are stored the other way round, as a
    token-major convolution history is.
    """
    if value.ndim == 1:
        return spread(value[None], gap)[0]
    dense = value.transpose(-1, -2).contiguous() if transposed else value.contiguous()
    row = dense[0].numel()
    memory = torch.full((gap + (row + gap) * len(dense),), NAN, dtype=value.dtype, device=device())
    strides = (row + gap, *dense.stride()[1:])
    placed = memory.as_strided(dense.shape, strides, gap)
    placed.copy_(dense)
    return placed.transpose(-1, -2) if transposed else placed


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal elements, NaN equal to NaN."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def spacing(x: torch.Tensor) -> torch.Tensor:
    """Distance of neighbouring BF16 values at ``x`` (FP64)."""
    return 2.0 ** (torch.floor(torch.log2(x.abs().clamp(min=2.0**-126))) - 7)
