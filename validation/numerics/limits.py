"""Tail bounds: how large an honest deviation can be at a given probability.

``bernstein``: for a sum of independent zero-mean terms, the smooth part (roundings, uniform, hence
sub-Gaussian with their own variance) and the rare jumps (variance ``jump_variance``, each at most ``jump``):
P(|X| >= t) <= 2 exp(-x) with t = sqrt(2 (var + jump_variance) x) + jump x / 3 (Bernstein's inequality, and
Bennett's where it is sharper). ``crossing``: the probability that noise carries a value across a rounding
boundary at distance d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Crossings rarer than this are taken as impossible: at most 1e7 rounded elements a case leave 1e-9 of a
# case's share.
NEGLIGIBLE = 1e-18
_NEWTON_STEPS = 12


def log_odds(share: float, tests: float) -> float:
    """x = ln(2 tests / share): two-sided level of each of ``tests`` tests that spend ``share`` together."""
    return math.log(2.0 * max(tests, 1.0) / share)


def bernstein(variance: Tensor, jump_variance: Tensor | None, jump: Tensor | None, x: float) -> Tensor:
    """Limit of |error| at level 2 exp(-x), element by element.

    Where jumps are very rare, Bernstein's inequality is loose; Bennett's, from which it follows, is taken for
    the jumps alone (smooth part and jumps at half the level each), whichever is smaller.
    """
    smooth = torch.sqrt(2 * x * variance)
    if jump_variance is None or jump is None:
        return smooth
    joint = torch.sqrt(2 * x * (variance + jump_variance)) + jump * (x / 3)
    halved = x + math.log(2)
    apart = torch.sqrt(2 * halved * variance) + bennett(jump_variance, jump, halved)
    return torch.where(jump > 0, torch.minimum(joint, apart), smooth)


def bennett(variance: Tensor, jump: Tensor, x: float) -> Tensor:
    """t with (V / J**2) h(t J / V) = x, h(u) = (1 + u) ln(1 + u) - u: P(X >= t) <= exp(-x) for a sum of
    independent terms of total variance V, none above J (Bennett 1962). 0 where there is no jump."""
    limit = torch.zeros_like(jump)
    real = jump > 0
    if not bool(real.any()):
        return limit
    v, j = variance[real], jump[real]
    rate = (v / (j * j)).clamp(min=1e-30)
    target = x / rate
    # h(u) = target by Newton's method. Bernstein's bound, the start, is above the root of the convex h.
    u = torch.sqrt(2 * target) + target / 3
    for _ in range(_NEWTON_STEPS):
        u = ((u + target) / torch.log1p(u) - 1).clamp(min=1e-9)
    limit[real] = u * rate * j
    return limit


def crossing(distance: Tensor, variance: Tensor, jump_variance: Tensor | None, jump: Tensor | None) -> Tensor:
    """Upper estimate of P(error > distance) for distance >= 0, which may be infinite: a normal tail for the
    smooth part plus, where there are jumps, the smaller of Chebyshev's bound for them alone and Bernstein's
    for both together."""
    deviation = torch.sqrt(variance)
    tail = 0.5 * torch.erfc(distance / (deviation * math.sqrt(2)).clamp(min=1e-300))
    tail = torch.where((variance == 0) & (distance > 0), torch.zeros_like(tail), tail)
    if jump_variance is None or jump is None:
        return tail
    # A jump may meet a boundary that the smooth part has nearly reached: give it that head start.
    reach = (distance - 6 * deviation).clamp(min=0)
    chebyshev = jump_variance / (reach * reach).clamp(min=1e-300)
    # d**2 / (2 (V + J d / 3)), divided through by d so that an infinite distance gives 0.
    exponential = torch.exp(-distance / (2 * ((variance + jump_variance) / distance + jump / 3)))
    rare = torch.minimum(chebyshev.clamp(max=1.0), exponential)
    return (tail + torch.where(jump_variance > 0, rare, torch.zeros_like(rare))).clamp(max=1.0)
