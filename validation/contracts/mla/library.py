"""What a library does that takes an FP8 cache apart on loading: keys scaled and rounded to BF16, BF16
weights.

Catches and cannot catch: nothing by itself; ``mla_attention`` reads it for its profile ``library``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.value import Value, accumulate


def scaled_keys(keys: Tensor, scale: float) -> Tensor:
    """E4M3 bytes times ``scale``, in FP32 and rounded to BF16. A NaN code is NaN."""
    return (keys.view(torch.float8_e4m3fn).float() * scale).bfloat16()


def with_rounded_weights(ar: Arithmetic, latent: Value, e: Value, values: Tensor) -> Value:
    """``latent`` with the noise of weights ``e`` [.., key] that are rounded to BF16 for the product with
    ``values`` [key, d] and not for their sum.

    They are rounded relative to the largest score seen so far: at a place in the grid that the order of the
    keys decides, so the error is smeared over a spacing. A weight of 1 is exact, whatever came before it.
    """
    if not ar.noisy:
        return latent
    spacing = BF16.spacing(e.mean)
    rounding = torch.where((e.mean == 1) | (e.mean == 0), 0.0, spacing * spacing / 12)
    total = e.mean.sum(-1, keepdim=True)
    added = (rounding / (total * total)) @ (values * values)
    variance = accumulate(latent.variance, added)
    return Value(ar, latent.mean, variance, latent.jump_variance, latent.jump, latent.bits)
