"""Rows and log sums of a sharded latent attention, on numbers for which every merge is exact.

Rows are small integers; the log sums of the ranks that count are integers whose powers of two add up to a
power of two, but for one now and then that is too small for the sum and shows where all others are zero. So
weights and products are exact in FP32, and the sum in rank order is one pattern of bits. Of four requests the
first has keys on all ranks, the second on a single one, the third none at all; in the last, one rank's log
sums say that its rows saw no key, although its shard has some. What a shard without keys leaves is NaN,
infinite, or a sentinel.

What this catches: a merge that weighs wrong, looks at empty shards, or hands heads to the wrong owner. What
it cannot catch: rounding; ``lockstep kernels`` judges the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from validation.stress.layout import signed

if TYPE_CHECKING:
    from torch import Generator, Tensor

REQUESTS, TOKENS = 4, 2
FAR = 40  # binary digits below the sum
NAN = 0x7FFF  # the NaN that a rounded sum has
# Words of an empty shard: the sentinels of rows and of log sums, NaN, -0, infinities.
LEFT = tuple(map(signed, (0x80000000, 0xFFFFFFFF, 0x7FC17F81, 0x80008000, 0x7F807F80, 0xFF800000)))
# Log sums that say: no key (0xFFFFFFFF is the sentinel).
NOTHING = (float("nan"), float("-inf"), float("inf"), -3e38, -3.2e38)


@dataclass(frozen=True)
class Shards:
    """All ranks' shards. ``words`` int32 [rank, row, head of all ranks, words], pairs of BF16; ``log_sums``
    int32 [rank, row, head of all ranks], FP32 bits of base two; ``lengths`` int32 [rank, request], ``totals``
    int32 [request]; ``merged`` int32 [row, head of all ranks, words] is what the owners must get."""

    words: Tensor
    log_sums: Tensor
    lengths: Tensor
    totals: Tensor
    merged: Tensor


def shards(draw: Generator, ranks: int, heads: int, width: int) -> Shards:
    """Draw the shards of ``heads`` heads a rank, of an even ``width`` columns."""
    rows, every = REQUESTS * TOKENS, ranks * heads
    lengths = torch.randint(1, 100, (ranks, REQUESTS), generator=draw).int()
    single = int(torch.randint(ranks, (1,), generator=draw))
    lengths[torch.arange(ranks) != single, 1] = 0
    lengths[:, 2] = 0
    counts = (lengths > 0).repeat_interleave(TOKENS, 1)[:, :, None].repeat(1, 1, every)
    blind = int(torch.randint(ranks, (1,), generator=draw))
    seen = counts.clone()
    seen[blind, -1] = False
    values = torch.randint(-8, 9, (ranks, rows, every, width), generator=draw).double()
    values[:, 0, 0, 1] = torch.nan
    sums = _log_sums(draw, seen)
    weights = torch.where(seen, torch.exp2(sums - sums.masked_fill(~seen, -torch.inf).amax(0)), 0.0)
    shares = weights.float() / weights.sum(0).float().clamp(min=2.0**-60)
    merged = torch.zeros(rows, every, width)
    for rank in range(ranks):
        merged += torch.where(seen[rank, ..., None], values[rank].float() * shares[rank, ..., None], 0.0)
    none = torch.tensor(NOTHING)[torch.randint(len(NOTHING), seen.shape, generator=draw)]
    found = values.bfloat16().view(torch.int32)
    left = torch.tensor(LEFT, dtype=torch.int32)
    log_sums = torch.where(seen, sums.float(), none).view(torch.int32)
    log_sums = torch.where(counts, log_sums, left[torch.randint(len(LEFT), seen.shape, generator=draw)])
    found = torch.where(counts[..., None], found, left[torch.randint(len(LEFT), found.shape, generator=draw)])
    return Shards(found, log_sums, lengths, lengths.sum(0, dtype=torch.int32), _bits(merged))


def _log_sums(draw: Generator, seen: Tensor) -> Tensor:
    """Integers whose powers of two add up to a power of two over the ranks that ``seen`` names: each is less
    by one than the one before, and the last two are equal. Of two ranks or more, the last is far below the
    others half of the time, and does not count among them."""
    place, last = seen.cumsum(0) - 1, seen.sum(0) - 1
    far = (torch.rand(last.shape, generator=draw) < 0.5) & (last > 0)
    steps = torch.minimum(place, (last - far.long() - 1).clamp(min=0))
    steps = torch.where(far & (place == last), FAR, steps)
    base = torch.randint(-300, 301, seen.shape[1:], generator=draw)
    return (base - steps).double()


def _bits(x: Tensor) -> Tensor:
    """Pairs of BF16 as words: +0 for -0, and one NaN."""
    bits = (x + 0.0).bfloat16().view(torch.int16)
    return torch.where(x.isnan(), NAN, bits).to(torch.int16).contiguous().view(torch.int32)
