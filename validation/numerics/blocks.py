"""MX blocks: 32 neighbours share a power-of-two scale (E8M0), each is stored in E4M3 (OCP MX 1.0).

Scale code and rescaling are the subject's (its appendix A): the maximum ignores NaN, a denormal or zero
maximum gives code 0, code 254 rescales by 0. ``no_saturation`` raises the scale by one binade exactly when
the maximum would exceed 448; ``floor`` does not, so a maximum in (1.75, 2) 2**k saturates.

The noise of a quantised value is two kinds of jump. An *element* within noise of a midpoint may take the
neighbouring code. A *block* whose maximum is within noise of a scale boundary may take the neighbouring
scale: then all its elements move at once, each by a known amount D_j. To hold through a sum with weights w_j,
whose jump is sum w_j D_j, each carries the jump sum D and the variance p D_j sum D (Cauchy-Schwarz), p being
the probability.

Catches: any other rule of the scale, a scale rounded after quantising, a payload kept when its scale moved.
Cannot represent: noise above a quarter of the spacing together with saturation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import E4M3, power_of_two, shared_exponent
from validation.numerics.limits import NEGLIGIBLE, crossing
from validation.numerics.value import Value, accumulate

BLOCK = 32
BIAS = 127
RULES = ("floor", "no_saturation")
_NO_RESCALE = 254  # this code and above multiply by 0
_SMEARED = 0.25  # as in ``arithmetic``: more noise than this share of the spacing is spread over the cell
# A block's maximum, over 2**exponent, lies above the first and (but for the rules' ties) below the second.
_EDGES = {"floor": (256.0, 512.0), "no_saturation": (224.0, 448.0)}


def quantized(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Elements on the E4M3 grid (float64 [.., column]) and scale codes (int64 [.., column / 32]) of float64
    ``x``, whose last axis is a multiple of 32."""
    blocks = x.unflatten(-1, (-1, BLOCK))
    size = torch.where(torch.isnan(blocks), torch.zeros_like(blocks), blocks.abs())
    exponents = shared_exponent(size.amax(-1), rule=rule, element=E4M3)
    return _elements(blocks, exponents).flatten(-2), exponents + BIAS


def dequantized(elements: Tensor, codes: Tensor) -> Tensor:
    """The reals that ``elements`` [.., column] mean under scale ``codes`` [.., column / 32]; code 255 is NaN.
    float64"""
    scale = power_of_two(codes.long() - BIAS)
    scale = torch.where(codes.long() == 255, torch.full_like(scale, torch.nan), scale)
    return (elements.double().unflatten(-1, (-1, BLOCK)) * scale.unsqueeze(-1)).flatten(-2)


def _elements(blocks: Tensor, exponents: Tensor) -> Tensor:
    rescale = power_of_two(-exponents)
    rescale = torch.where(exponents + BIAS >= _NO_RESCALE, torch.zeros_like(rescale), rescale)
    return E4M3.round(blocks * rescale.unsqueeze(-1))


def quantize(ar: Arithmetic, x: Value, site: str, rule: str) -> Value:
    """A rounding site of blocks along the last axis: ``x`` stored as MXFP8 by ``rule``, and read back."""
    if ar.profile is None or not ar.rounds or ar.profile.sites[site] is None:
        return x
    elements, codes = quantized(x.mean, rule)
    mean = dequantized(elements, codes)
    if not ar.noisy or x.variance is None:
        return Value(ar, mean, bits=E4M3.precision)
    return _noisy(ar, x, mean, rule)


def _noisy(ar: Arithmetic, x: Value, stored: Tensor, rule: str) -> Value:
    def blocked(part: Tensor) -> Tensor:
        return part.expand(x.shape).unflatten(-1, (-1, BLOCK))

    whole = x.map(blocked)
    exponents = quantized(x.mean, rule)[1] - BIAS
    power = power_of_two(exponents).unsqueeze(-1)
    mean = blocked(stored)
    moved, moves = _element_flips(whole, mean / power, power)
    smeared, variance = _smeared(whole, mean / power, power)
    for step in (1, -1):
        again, jump = _scale_flips(whole, mean, exponents, step, rule)
        moved, moves = moved + again, torch.maximum(moves, jump)
    mean = torch.where(smeared, whole.mean, mean)
    carried, reach = whole.jump_variance, whole.jump
    if carried is not None and reach is not None:
        moved, moves = torch.maximum(moved, carried), torch.maximum(moves, reach)
    if not bool((moves > 0).any()):
        return Value(ar, mean.flatten(-2), variance.flatten(-2), bits=E4M3.precision)
    parts = [part.flatten(-2) for part in (mean, variance, moved, moves)]
    return Value(ar, parts[0], parts[1], parts[2], parts[3], E4M3.precision)


def _element_flips(x: Value, grid: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Variance and size of the jump to the neighbouring code. ``grid``: the codes' values."""
    assert x.variance is not None
    low, high = (edge * power for edge in E4M3.bracket(grid))
    probability = crossing(high - x.mean, x.variance, x.jump_variance, x.jump)
    probability = probability + crossing(x.mean - low, x.variance, x.jump_variance, x.jump)
    live = probability > NEGLIGIBLE
    step = E4M3.spacing(grid) * power
    zero = torch.zeros_like(step)
    return (
        torch.where(live, step * step * probability.clamp(max=1.0), zero),
        torch.where(live, step, zero),
    )


def _smeared(x: Value, grid: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Where the noise is not far below the spacing, and the smooth variance that takes the place of flips."""
    assert x.variance is not None
    spacing = E4M3.spacing(grid) * power
    smeared = x.variance > (_SMEARED * spacing) ** 2
    return smeared, torch.where(smeared, x.variance + spacing * spacing / 12, torch.zeros_like(spacing))


def _scale_flips(x: Value, stored: Tensor, exponents: Tensor, step: int, rule: str) -> tuple[Tensor, Tensor]:
    """Variance and size of the jump of every element if the block takes the scale one binade up (``step`` 1)
    or down (-1)."""
    power = power_of_two(exponents).unsqueeze(-1)
    low, high = (edge * power for edge in _EDGES[rule])
    assert x.variance is not None
    size = x.mean.abs()
    if step > 0:  # any element may pass the upper edge
        probability = crossing((high - size).clamp(min=0), x.variance, x.jump_variance, x.jump)
        probability = probability.nan_to_num(0.0).sum(-1, keepdim=True).clamp(max=1.0)
    else:  # the largest must fall below the lower edge
        largest = size.nan_to_num(0.0).argmax(-1, keepdim=True)
        top = x.map(lambda part: part.gather(-1, largest))
        distance = (top.mean.abs() - low).clamp(min=0)
        probability = crossing(distance, _known(top.variance), top.jump_variance, top.jump)
    other = exponents + step
    possible = ((other >= -BIAS) & (other + BIAS < _NO_RESCALE)).unsqueeze(-1)
    other = other.clamp(-BIAS, BIAS)
    alternative = _elements(x.mean, other) * power_of_two(other).unsqueeze(-1)
    distance = (alternative - stored).abs().nan_to_num(0.0)
    together = distance.sum(-1, keepdim=True)
    live = possible & (probability > NEGLIGIBLE)
    zero = torch.zeros_like(distance)
    variance = torch.where(live, probability * distance * together, zero)
    return variance, torch.where(live & (distance > 0), together.expand_as(distance), zero)


def _known(part: Tensor | None) -> Tensor:
    total = accumulate(part)
    assert total is not None
    return total
