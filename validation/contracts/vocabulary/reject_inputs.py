"""What the acceptance rule is run on: regimes and their drawing.

Nothing is neutral: requests have unequal numbers of drafts and some have none, greedy and random ones are
mixed, temperatures are 0, -0 and tiny, and what a request must not read is NaN: q, u and noise of greedy
ones, noise of those without drafts, and the rows that pad the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Regime
from validation.contracts.regimes import generator, normal, uniform
from validation.contracts.vocabulary.reject_arguments import PLACEHOLDER, RejectSampleArguments

NAN = float("nan")

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F08", "F16", "F24", "F32", "F53"),
        "greedy and random requests with 0 to k drafts drawn from q",
    ),
    Regime(
        "one_hot", ("F32",), "drafts without probabilities: kept with p, replaced from p without the draft"
    ),
    Regime("greedy", ("F16", "F32"), "temperature 0 everywhere: most drafts are the most probable token"),
    Regime(
        "edges",
        ("F24", "F32"),
        "u = 0 with p = 0 and p > 0, u equal to the quotient, q = 0, p above q with u next to 1, tiny and "
        "negative zero temperatures",
    ),
    Regime("near", ("F06", "F24", "F32"), "u is the quotient, one place below it or one above"),
    Regime("ties", ("F17",), "equal scores, equal probabilities, and residuals that are zero everywhere"),
    Regime(
        "placeholders",
        ("F08", "F23", "F45"),
        "drafts of -1 between real ones, requests without drafts or bonus, rows that pad the step",
    ),
    Regime("poison", ("F16", "F45", "F51"), "p and q are NaN and u is 0 after the first sure rejection"),
    Regime("tail", ("F04", "F05"), "the recovered and the most probable token stand at the vocabulary's end"),
    Regime("peaked", ("F06", "F32"), "q within a thousandth of p: BF16 probabilities have another residual"),
    Regime("nan_row", ("F51",), "one request's p holds a NaN: it must stay in that request"),
    Regime("wide_offsets", ("F50",), "rows 2**30 elements apart: row 2 is beyond 2**31"),
    Regime("distribution", ("F32",), "many requests of the same p and q: what they emit is counted"),
)


@dataclass
class _Drawn:
    """Rows by draft, with the request of each."""

    owner: Tensor
    drafts: Tensor
    target: Tensor
    proposal: Tensor
    uniform: Tensor
    noise: Tensor
    greedy: Tensor


def build(case: Case) -> RejectSampleArguments:
    """Draw probabilities, drafts and random numbers on the CPU."""
    g = generator(case)
    requests, most, vocabulary = case["requests"], case["drafts"], case["vocabulary"]
    counts = _counts(g, case.regime, requests, most)
    greedy = _greedy(case.regime, requests)
    d = _draw(g, case, counts, greedy)
    bonus = torch.randint(0, vocabulary, (requests,), generator=g)
    if case["proposal"] == 0:
        d.proposal = _one_hot(d)
    if case.regime in _DETAILS:
        _DETAILS[case.regime](g, d, counts)
    if case.regime == "placeholders":
        bonus[counts == 0] = PLACEHOLDER
    ends = counts.cumsum(0)
    _hide(d, counts)
    if case.regime == "poison":
        _poison(d, ends)
    temperature = torch.where(greedy, 0.0, torch.tensor([1e-6, 0.7, 1.3])[torch.arange(requests) % 3])
    temperature[greedy & (torch.arange(requests) % 2 == 1)] = -0.0
    return RejectSampleArguments(
        drafts=_padded(d.drafts, 0).to(torch.int32),
        ends=ends.to(torch.int32),
        target=_padded(d.target, NAN),
        proposal=_padded(d.proposal, NAN) if case["proposal"] else None,
        uniform=_padded(d.uniform, 0.0),
        noise=d.noise,
        bonus=bonus.to(torch.int32),
        temperature=temperature,
        tokens=torch.zeros(requests, most + 1, dtype=torch.int32),
        accepted=torch.zeros(requests, dtype=torch.int32),
        counted=case.regime == "distribution",
        wide_rows=case.regime == "wide_offsets",
    )


def _padded(x: Tensor, value: float) -> Tensor:
    """One row more, which belongs to no request."""
    return torch.cat([x, torch.full_like(x[:1], value) if len(x) else x.new_full((1, *x.shape[1:]), value)])


def _counts(g: Generator, regime: str, requests: int, most: int) -> Tensor:
    """Drafts of each request: all of them for the first, none for the fourth. int64 [request]"""
    if regime in ("distribution", "wide_offsets"):
        return torch.full((requests,), most)
    counts = torch.randint(1, most + 1, (requests,), generator=g)
    counts[0] = most
    if requests > 3:
        counts[3] = 0
    return counts


def _greedy(regime: str, requests: int) -> Tensor:
    """Which requests are greedy: every third, none or all."""
    if regime in ("greedy", "distribution", "near", "wide_offsets", "peaked"):
        return torch.full((requests,), regime == "greedy")
    return torch.arange(requests) % 3 == 1


def _draw(g: Generator, case: Case, counts: Tensor, greedy: Tensor) -> _Drawn:
    requests, vocabulary = case["requests"], case["vocabulary"]
    owner = torch.arange(requests).repeat_interleave(counts)
    many = case["drafts"] if case.regime == "distribution" else len(owner)
    logits = normal(g, many, vocabulary) * (1.0 if case.regime == "distribution" else 2.5)
    p = torch.softmax(logits, -1)
    q = torch.softmax(logits * 0.8 + 0.8 * normal(g, many, vocabulary), -1)
    if case.regime == "peaked":
        q = p * (1 + 1e-3 * normal(g, many, vocabulary))
    if case.regime == "distribution":
        p, q = p.repeat(requests, 1), q.repeat(requests, 1)
    drafts = (q / _exponential(g, *q.shape)).argmax(-1)
    agree = greedy[owner] & (uniform(g, len(owner)) < 0.75)
    drafts = torch.where(agree, p.argmax(-1), drafts)
    u = uniform(g, len(owner))
    return _Drawn(owner, drafts, p, q, u, _exponential(g, requests, vocabulary), greedy)


def _exponential(g: Generator, *shape: int) -> Tensor:
    """Exponential numbers above 0, FP32."""
    return torch.empty(shape).exponential_(generator=g).clamp(min=2.0**-30)


def _one_hot(d: _Drawn) -> Tensor:
    """q as the rule without draft probabilities takes it; regimes work on it, the case does not carry it."""
    return torch.zeros_like(d.target).scatter_(1, d.drafts[:, None], 1.0)


def _quotient(d: _Drawn) -> Tensor:
    """p / q of each draft, FP32; of a placeholder that of token 0."""
    spot = d.drafts.clamp(min=0)[:, None]
    return (d.target.gather(1, spot) / d.proposal.gather(1, spot))[:, 0]


def _edges(g: Generator, d: _Drawn, counts: Tensor) -> None:
    """Row by row one of six edges."""
    del g, counts
    for row in range(len(d.drafts)):
        token, kind = int(d.drafts[row]), row % 6
        has_q = float(d.proposal[row, token]) != 1.0
        if d.greedy[d.owner[row]]:
            continue
        if kind in (0, 1):
            d.uniform[row] = 0.0
            d.target[row, token] = 0.0 if kind == 0 else 2.0**-20
        elif kind in (2, 3):  # an exact tie, 1/2 of 1/4 (of 1), which one rule keeps; just above, which none
            d.uniform[row] = 0.5 if kind == 2 else 0.50000006
            d.target[row, token] = 0.125 if has_q else 0.5
            if has_q:
                d.proposal[row, token] = 0.25
        elif kind == 4 and has_q:
            d.proposal[row, token], d.uniform[row] = 0.0, 0.0
        else:
            d.uniform[row] = 1 - 2.0**-24
            d.target[row, token] = d.proposal[row, token]


def _near(g: Generator, d: _Drawn, counts: Tensor) -> None:
    """u is fp32(p / q), the number below or the number above, where that is below 1."""
    del counts
    ratio = _quotient(d)
    step = torch.randint(-1, 2, ratio.shape, generator=g)
    moved = torch.nextafter(ratio, torch.where(step < 0, 0.0, 2.0))
    moved = torch.where(step == 0, ratio, moved)
    d.uniform = torch.where(moved < 1, moved, d.uniform)


def _reject_first(d: _Drawn) -> None:
    """Random requests lose the first of their drafts: q is above p there, u near 1."""
    first = torch.ones_like(d.owner, dtype=torch.bool)
    first[1:] = d.owner[1:] != d.owner[:-1]
    rows = (first & ~d.greedy[d.owner]).nonzero()[:, 0]
    spot = d.drafts[rows]
    d.target[rows, spot] = d.target[rows, spot].clamp(max=0.01)
    d.proposal[rows, spot] = torch.maximum(d.proposal[rows, spot], 2 * d.target[rows, spot] + 2.0**-10)
    d.uniform[rows] = 0.999


def _ties(g: Generator, d: _Drawn, counts: Tensor) -> None:
    """Few distinct numbers: equal scores on many tokens; every other rejected row has no residual at all."""
    del counts
    vocabulary = d.target.shape[1]
    draw = [torch.randint(0, 3, (len(x), vocabulary), generator=g) for x in (d.target, d.target, d.noise)]
    d.target = 2.0 ** (draw[0] - 6).float()
    d.proposal = torch.where(d.proposal == 1, d.proposal, d.target / 2.0 ** draw[1].float())
    d.noise = 3 * 2.0 ** (draw[2] - 2).float()
    agree = uniform(g, len(d.drafts)) < 0.6
    d.drafts = torch.where(d.greedy[d.owner] & agree, d.target.argmax(-1), d.drafts)
    _reject_first(d)
    none = (d.owner % 2 == 0) & ~d.greedy[d.owner]
    d.proposal[none] = torch.maximum(d.proposal[none], d.target[none])


def _placeholders(g: Generator, d: _Drawn, counts: Tensor) -> None:
    """Every third row, and the first of the first request, was never drafted; u = 0 would keep it."""
    del g, counts
    rows = torch.arange(len(d.drafts)) % 3 == 0
    d.drafts = torch.where(rows, PLACEHOLDER, d.drafts)
    d.proposal[rows] = 0.0
    d.uniform[rows] = 0.0


def _tail(g: Generator, d: _Drawn, counts: Tensor) -> None:
    """The last token has the largest score and probability by far; of every other request the one before."""
    del g, counts
    last = d.target.shape[1] - 1 - d.owner % 2
    rows = torch.arange(len(d.drafts))
    clash = d.drafts >= d.target.shape[1] - 2
    d.drafts = torch.where(clash & ~d.greedy[d.owner], d.target.shape[1] // 2, d.drafts)
    d.target[rows, last] = 0.9
    d.proposal[rows, last] = 2.0**-8
    d.noise[:, -2:] = 2.0**-28
    agree = d.greedy[d.owner] & (rows % 4 != 3)
    d.drafts = torch.where(agree, last, d.drafts)
    if d.target.shape[1] > 2:
        _reject_first(d)


def _rejecting(g: Generator, d: _Drawn, counts: Tensor) -> None:
    del g, counts
    _reject_first(d)


def _nan_row(g: Generator, d: _Drawn, counts: Tensor) -> None:
    """A NaN in p, infinities elsewhere in it, of the first (random) request; its noise is sound."""
    del g, counts
    d.target[0, d.target.shape[1] // 3] = NAN
    d.target[0, d.drafts[0]] = NAN


_DETAILS = {
    "edges": _edges,
    "near": _near,
    "ties": _ties,
    "placeholders": _placeholders,
    "tail": _tail,
    "peaked": _rejecting,
    "wide_offsets": _rejecting,
    "nan_row": _nan_row,
}


def _hide(d: _Drawn, counts: Tensor) -> None:
    """NaN in what greedy requests, and requests without drafts, must not read."""
    rows = d.greedy[d.owner]
    d.proposal[rows] = NAN
    d.uniform[rows] = NAN
    d.noise[d.greedy | (counts == 0)] = NAN


def _poison(d: _Drawn, ends: Tensor) -> None:
    """After a draft that is surely rejected nothing of the request counts; u there is 0, or NaN already."""
    best = d.target.argmax(-1)
    ratio = _quotient(d)
    sure = torch.where(d.greedy[d.owner], d.drafts != best, d.uniform > 1.01 * ratio)
    for end, request in zip(ends.tolist(), range(len(ends)), strict=True):
        lost = (sure & (d.owner == request)).nonzero()[:, 0]
        if len(lost):
            after = slice(int(lost[0]) + 1, end)
            d.target[after] = d.proposal[after] = NAN
            d.uniform[after] = torch.where(d.greedy[request], NAN, 0.0)
