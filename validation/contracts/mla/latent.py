"""Softmax attention over latent keys, written once for ``mla_attention`` and for the shards of ``mla_dcp``.

Catches and cannot catch: nothing by itself. What the noise leaves out: the multiplications with which an
online softmax follows a rising maximum (the factor is the same above and below the fraction, and 1 most of
the time), and the merge of splits, whose errors are those of a few of the sum's terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from validation.contracts.mla.attention_arguments import LATENT
from validation.contracts.mla.library import scaled_keys, with_rounded_weights
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.limits import NEGLIGIBLE, crossing
from validation.numerics.value import Value, accumulate

# With a larger weight than this, one term decides the result to within about a spacing of BF16.
_ONE_TAKES_ALL = 1 - 2.0**-7


def numbers(codes: Tensor) -> Tensor:
    """The values of E4M3 bytes, exact in BF16. A NaN code is NaN."""
    return codes.view(torch.float8_e4m3fn).bfloat16()


def attended(
    ar: Arithmetic,
    query: Tensor,
    keys: Tensor,
    seen: Tensor,
    scale: float,
    base: str,
    key_scale: float | None = None,
) -> tuple[Value, Value, Tensor]:
    """Latent means [token, head, 512] (before the value scale), log2-sum-exp2 [token, head], and the largest
    weight [token, head].

    ``query`` [token, head, 576] and ``keys`` [key, 576] are E4M3 bytes; token t sees the first ``seen[t]``
    keys. ``base``: ``natural`` exponentials, or ``two``, with log2(e) folded into the scale. A token that
    sees no key has 0 for both: who merges must leave it out. ``key_scale``: keys and weights are BF16 as in
    ``library``.
    """
    k = numbers(keys) if key_scale is None else scaled_keys(keys, key_scale)
    inside = torch.arange(k.shape[0], device=k.device) < seen[:, None, None]
    factor = scale * math.log2(math.e) if base == "two" else scale
    scores = ar.matmul(ar.load(numbers(query)), k) * factor
    top = torch.where(inside, scores.mean, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(torch.isneginf(top), 0.0, top)
    exponential = ar.exp2 if base == "two" else ar.exp
    e = ar.where(inside, exponential(scores - Value(ar, top)), 0.0)
    empty = seen[:, None] == 0
    latent = weighted_mean(ar, e, lambda weights: ar.matmul(weights, k[:, :LATENT].T), k[:, :LATENT].double())
    if key_scale is not None:
        latent = with_rounded_weights(ar, latent, e, k[:, :LATENT].double())
    latent = ar.where(~empty[..., None], latent, 0.0)
    largest = torch.where(empty, 0.0, e.mean.amax(-1) / e.mean.sum(-1))
    return latent, _log_sum(ar, e, top, base, empty), largest


def _log_sum(ar: Arithmetic, e: Value, top: Tensor, base: str, empty: Tensor) -> Value:
    """log2 of the sum of exponentials, from the sum relative to the largest one."""
    total = ar.log2(ar.where(~empty, ar.sum(e, -1), 1.0))
    largest = Value(ar, top[..., 0] * (1.0 if base == "two" else math.log2(math.e)))
    return ar.where(~empty, total + largest, 0.0)


def weighted_mean(ar: Arithmetic, e: Value, add: Callable[[Value], Value], terms: Tensor) -> Value:
    """sum_j e_j x_j / sum_j e_j for weights ``e`` [..., j] and x = ``terms`` [j, d] (or [..., j, d]).

    An error of e_j moves numerator and denominator alike, so it enters with x_j minus the mean: a single
    weight cancels altogether. ``add(weights)`` sums the weighted terms, with the noise of the sum.
    """
    known = Value(ar, e.mean)
    total = ar.sum(known, -1, keepdim=True)
    mean = add(known) / total
    if not ar.noisy or e.variance is None:
        return mean
    share = (e.variance / (total.mean * total.mean)).unsqueeze(-2)  # of each weight, squared
    o = mean.mean
    first, second = (share @ terms).squeeze(-2), (share @ (terms * terms)).squeeze(-2)
    spread = second - 2 * o * first + o * o * share.sum(-1)
    return Value(
        ar, o, accumulate(mean.variance, spread.clamp(min=0)), mean.jump_variance, mean.jump, mean.bits
    )


def known_to_the_bit(ar: Arithmetic, x: Value, largest: Tensor) -> Value:
    """``x`` before its store in BF16, without noise where one term takes all and none can move the result.

    Such a result is a stored number (of few bits) and a trace of others: it rounds back to that number with
    an error that is the same everywhere, not the random one by which sums over elements are judged. So it is
    predicted bit for bit. ``largest``: the largest weight, of ``x``'s shape but for the last axis.
    """
    if not ar.noisy or x.variance is None:
        return x
    grid = BF16.round(x.mean)
    low, high = BF16.bracket(grid)
    moved = crossing(high - x.mean, x.variance, x.jump_variance, x.jump)
    moved = moved + crossing(x.mean - low, x.variance, x.jump_variance, x.jump)
    sure = (largest > _ONE_TAKES_ALL).unsqueeze(-1) & (moved < NEGLIGIBLE)
    variance, jump_variance, jump = (
        None if part is None else torch.where(sure, 0.0, part) for part in x.parts()
    )
    return Value(ar, torch.where(sure, grid, x.mean), variance, jump_variance, jump)
