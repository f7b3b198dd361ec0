"""Sums of BF16 shards over ranks, and roundings of what such sums give, as sharply as they can be known.

The shards lie on the BF16 grid, so their FP32 sum is exact whenever their exponents are not far apart, in
any order; and in a declared order it is known to the bit even where it is not exact. Only where a shard
itself is uncertain, or the order is anybody's, is there noise. The same for ties: a known value that lies
midway between two grid points goes to the even one for certain.

Catches nothing by itself. Cannot represent: how the FP32 rounding of a later addition changes when a shard
lands on its neighbour (a part in 2**16 of a step that is rare already).
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.value import FP32_BITS, Value


def rank_sum(ar: Arithmetic, shards: Value, dim: int, site: str) -> Value:
    """FP32 sum over ranks of shards that were rounded to BF16, in the profile's order at ``site``."""
    total = ar.rank_sum(shards, dim, site)
    if not ar.noisy or shards.variance is None or total.variance is None:
        return total
    known = (shards.variance.expand(shards.shape) == 0).all(dim)
    if ar.algebra(site, "any") == "any":
        known &= _exact_in_any_order(shards.mean, dim)
    in_order = ar.rank_sum(Value(ar, shards.mean), dim, site).mean
    zero = torch.zeros_like(total.variance)
    return Value(
        ar,
        torch.where(known, in_order, total.mean),
        torch.where(known, zero, total.variance),
        total.jump_variance,
        total.jump,
    )


def _exact_in_any_order(x: Tensor, dim: int) -> Tensor:
    """All addends are multiples of the finest one's spacing; up to 2**24 times that, FP32 rounds nothing."""
    spacing = BF16.spacing(x)
    finest = torch.where(x == 0, torch.full_like(x, torch.inf), spacing).amin(dim)
    return x.abs().sum(dim) <= finest * 2.0**FP32_BITS


def positive_zeros(x: Value) -> Value:
    """-0 becomes +0, as where -0 marks an empty mailbox word."""
    return Value(x.ar, torch.where(x.mean == 0, torch.zeros_like(x.mean), x.mean), *x.parts(), bits=x.bits)


def chance(shards: Value, dim: int) -> Tensor:
    """Upper estimate of the probability that any rank's shard is not the predicted BF16 value: certain where
    a shard's noise covers several of them, so that none is predicted."""
    if shards.variance is None:
        return torch.zeros_like(shards.mean.sum(dim))
    smeared = (shards.variance.expand(shards.shape) > 0).any(dim).double()
    if shards.jump_variance is None:
        return smeared
    spacing = BF16.spacing(shards.mean)
    return ((shards.jump_variance / (spacing * spacing)).sum(dim) + smeared).clamp(max=1.0)


def rounded_rarely(ar: Arithmetic, x: Value, site: str, rarely: Tensor) -> Value:
    """``x`` rounded at ``site``, where nothing but jumps of total probability ``rarely`` makes it uncertain:
    however close to a tie, it lands elsewhere no more often than that."""
    x = settled(ar, x, site)
    rounded = ar.round(x, site)
    if x.variance is None or rounded.jump is None or rounded.jump_variance is None:
        return rounded
    most = torch.where(x.variance == 0, rounded.jump * rounded.jump * rarely, torch.inf)
    return Value(
        ar,
        rounded.mean,
        rounded.variance,
        torch.minimum(rounded.jump_variance, most),
        rounded.jump,
        rounded.bits,
    )


def judged(ar: Arithmetic, x: Value, rounded: Value, site: str) -> Value:
    """``x`` as an output that is stored at ``site``: elements without smooth noise as the grid point they are
    rounded to, the others as they are before the store."""
    if not ar.noisy or x.variance is None:
        return ar.store(x, site)
    return ar.where(x.variance == 0, rounded, x)


def settled(ar: Arithmetic, x: Value, site: str) -> Value:
    """``x`` with the elements that carry no noise already rounded at ``site``, so that a tie among them is
    no uncertainty. Exact and rounded readings are left alone."""
    if not ar.noisy or x.variance is None:
        return x
    known = x.variance == 0
    if x.jump_variance is not None:
        known = known & (x.jump_variance == 0)
    return ar.where(known, ar.round(Value(ar, x.mean), site), x)
