"""Logits and bias of the ``route`` contract: each regime makes one rule of the choice visible.

Catches nothing by itself. Logits between -88.72 and -87 are never drawn: their sigmoids are subnormal, which
a backend may flush.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Regime
from validation.contracts.regimes import generator, normal, uniform

REGIMES = (
    Regime(
        "typical",
        ("F02", "F04", "F05", "F06", "F08", "F13", "F15", "F16", "F17"),
        "a bias as large as the gaps between scores",
    ),
    Regime("real_scale", ("F06", "F13"), "logits of deviation 5: the best scores differ late, near 1"),
    Regime(
        "negative_keys", ("F04", "F13", "F14"), "a bias that makes every key negative: 0 or -1 must not win"
    ),
    Regime("equal", ("F17",), "all keys of a row equal to the bit: experts 0 to 15, in this order"),
    Regime("many_ties", ("F17",), "ten clear winners, then more than 64 candidates with one key"),
    Regime(
        "crowded",
        ("F05", "F16", "F17"),
        "the best experts lie 32 apart: any cut into 32 groups keeps 84 of them",
    ),
    Regime("near_ties", ("F06", "F17"), "at the threshold: gaps just beyond noise, and ties of two experts"),
    Regime("infinite", ("F03", "F14"), "logits of both infinities and the largest numbers"),
    Regime("large_bias", ("F13", "F14"), "bias of +-1000 on some experts: their scores round to few values"),
    Regime("nan", ("F14", "F51"), "NaN logits: some, all but five, all; the other rows must not notice"),
    Regime("padding", ("F45", "F51"), "the last rows hold NaN and zeros, as padding rows of a graph do"),
    Regime("underflow", ("F15",), "every score is 0: the bias chooses, and 0 / 1e-20 is 0"),
    Regime("tiny_scores", ("F15",), "scores that sum to about 1e-20"),
    Regime("wide_offsets", ("F50",), "rows more than 2**31 elements apart"),
)


def build_into(case: Case, rows: int, experts: int, top: int) -> tuple[Tensor, Tensor]:
    """FP32 logits [row, expert] and bias [expert]; no two equal but where the regime says so."""
    g = generator(case)
    logits = 1.5 * normal(g, rows, experts)
    bias = 0.08 * normal(g, experts)
    change = _CHANGES.get(case.regime)
    return change(g, logits, bias, top) if change else (logits, bias)


def _real_scale(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    return logits * (5 / 1.5), bias * 0.01


def _negative_keys(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    return logits, bias - 2.5


def _equal(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    return logits[:, :1].expand_as(logits).clone(), bias[:1].expand_as(bias).clone()


def _many_ties(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """A tenth of the experts of each row, scattered, share the logit 1; ten are above, the others below."""
    rows, experts = logits.shape
    low = -2 - uniform(g, rows, experts)
    order = torch.rand(rows, experts, generator=g).argsort(1)
    tied, above = order[:, : max(top + 1, experts // 10)], order[:, -10:]
    low.scatter_(1, tied, 1.0)
    low.scatter_(1, above, 2 + uniform(g, rows, 10))
    return low, bias[:1].expand_as(bias).clone()


def _crowded(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Experts whose numbers leave one of three remainders by 32 are far above all others; in odd rows they
    are equal to the bit."""
    remainders = torch.randperm(32, generator=g)[:3]
    above = torch.isin(torch.arange(logits.shape[1]) % 32, remainders)
    logits = torch.where(above, logits + 4, logits - 4)
    logits[1::2, above] = 3.0
    return logits, bias[:1].expand_as(bias).clone()


def _near_ties(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """top - 1 clear winners, then two experts for the last place. Even rows: their logits differ by 2**-15,
    keys by 100 times their noise, the better one at random. Odd rows: equal to the bit."""
    rows, experts = logits.shape
    bias = bias[:1].expand_as(bias).clone()
    low = -2 - uniform(g, rows, experts)
    order = torch.rand(rows, experts, generator=g).argsort(1)
    winners = 2 + torch.arange(top - 1) / 8 + uniform(g, rows, top - 1) / 16
    low.scatter_(1, order[:, : top - 1], winners)
    pair = order[:, top - 1 : top + 1]
    gap = torch.tensor([0.0, 2.0**-15]).expand(rows, 2).clone()
    gap[1::2] = 0
    low.scatter_(1, pair, 1 - gap)
    return low, bias


def _infinite(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Seven experts of each row at +inf, a quarter at -inf, two at the largest FP32 numbers."""
    rows, experts = logits.shape
    order = torch.rand(rows, experts, generator=g).argsort(1)
    largest = torch.finfo(torch.float32).max
    logits.scatter_(1, order[:, : experts // 4], float("-inf"))
    logits.scatter_(1, order[:, -7:], float("inf"))
    logits.scatter_(1, order[:, -8:-7], largest)
    logits.scatter_(1, order[:, -9:-8], -largest)
    return logits, bias


def _large_bias(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """+1000 on half as many experts as there are slots, -1000 on a third of the rest."""
    order = torch.randperm(bias.numel(), generator=g)
    bias[order[: top // 2]] += 1000
    bias[order[top : top + bias.numel() // 3]] -= 1000
    return logits, bias


def _nan(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Row 0: every seventh logit and the best of the rest; row 1: all but five; row 2: all; last: two. Keys
    are negative, so that a NaN key taken as 0 would win."""
    nan = float("nan")
    logits[0, ::7] = nan
    logits[0, logits[0].nan_to_num(-9).argmax()] = nan
    if len(logits) > 3:
        kept = logits[1, 3::11][:5].clone()
        logits[1] = nan
        logits[1, 3::11][:5] = kept
        logits[2] = nan
        logits[-1, [1, -1]] = nan
    return logits, bias - 2.5


def _padding(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    logits[-1] = float("nan")
    if len(logits) > 2:
        logits[-2] = 0
    return logits, bias


def _underflow(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    return -100 - 900 * uniform(g, *logits.shape), bias


def _tiny_scores(g: Generator, logits: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Scores of about 1e-21 each: the sum of 16 is near 1e-20. The bias chooses."""
    return -48.3 + 0.5 * normal(g, *logits.shape), bias


_CHANGES: dict[str, Callable[[Generator, Tensor, Tensor, int], tuple[Tensor, Tensor]]] = {
    "real_scale": _real_scale,
    "negative_keys": _negative_keys,
    "equal": _equal,
    "many_ties": _many_ties,
    "crowded": _crowded,
    "near_ties": _near_ties,
    "infinite": _infinite,
    "large_bias": _large_bias,
    "nan": _nan,
    "padding": _padding,
    "underflow": _underflow,
    "tiny_scores": _tiny_scores,
}
