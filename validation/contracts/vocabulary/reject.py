"""The acceptance rule of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

Draft i of a request is kept if u_i <= p_i(d_i) / q_i(d_i), as long as all before it were. The first that is
not is replaced by the token of the largest max(p - q, 0) / e (e exponential: a draw from the normalised
residual); with all kept, the bonus token follows. A greedy request keeps a draft if it is the most probable
token, the lowest of equal ones, and else emits that token. Every random number is an argument, so the result
is a function of the arguments.

vLLM 0.33.0 has two rules. Its first runner (``v1/sample/rejection_sampler.py``, profile ``stock``) keeps when
q > 0 and fp32(p / q) >= u and weights by the rounded reciprocal of e; its second (``v1/worker/gpu``) compares
p > u q, strictly, in logarithms. The profile ``specialized`` is the second without logarithms: q > 0 and
p > fp32(u q), weights divided by e. They differ at u = 0 with p = 0, and where u is the quotient.

Catches: any bias of the rule that these numbers reach, and by the counts of the regime ``distribution`` one
that the reference shares. Cannot catch: random numbers that are not uniform, not exponential or used twice
over steps (they come as arguments), and block verification, which is another rule.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Tier
from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments
from validation.contracts.vocabulary.reject_choice import Decisions, Emitted
from validation.contracts.vocabulary.reject_inputs import REGIMES, build
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import FP32
from validation.numerics.functions import CORRECTLY_ROUNDED, TABLES
from validation.numerics.profile import Profile
from validation.numerics.value import Value

VOCABULARY = 163840

_SITES = {
    "reject_sample.threshold": FP32,
    "reject_sample.residual": FP32,
    "reject_sample.inverse": FP32,
    "reject_sample.score": FP32,
}
# Both of the subject's rules are Triton kernels: on CUDA their divisions are approximate.
STOCK = Profile(
    "stock", _SITES, functions_on_cuda="triton",
    algebra={"reject_sample.compare": "quotient", "reject_sample.weigh": "inverse"},
)  # fmt: skip
# Divisions rounded to nearest: in the interpreter they are, on CUDA they may be off by two ulps.
SPECIALIZED = Profile(
    "specialized", _SITES, functions_on_cuda="triton",
    algebra={"reject_sample.compare": "product", "reject_sample.weigh": "divide"},
)  # fmt: skip


def reference(ar: Arithmetic, a: RejectSampleArguments) -> dict[str, Any]:
    """The emitted tokens with their count, and the counts of tokens over requests, judged on what was
    made."""
    decisions, best, any_token = _decided(ar, a)
    _, live = a.rows()
    position = decisions.nominal(live)
    if a.made is not None:
        made = a.made[:, -1]
        position = torch.where((made >= 0) & (made <= a.drafted), made, position)
    scores, twins = _scores(ar, a, position)
    emitted = Emitted(
        scores=scores,
        size=a.most + 2,
        arguments=a,
        decisions=decisions,
        position=position,
        best=best,
        any_token=any_token,
        twins=twins,
    )
    return {"tokens": emitted, "counts": _counts(ar, a, position)} if a.counted else {"tokens": emitted}


def _decided(ar: Arithmetic, a: RejectSampleArguments) -> tuple[Decisions, Tensor, Tensor]:
    """Decisions, the most probable token, and whether the probabilities hold a NaN, by [request, draft]."""
    rows, live = a.rows()
    drafts = a.drafts.long()[rows]
    spot = drafts.clamp(0, a.vocabulary - 1)
    greedy = a.greedy[:, None]
    best = a.target.argmax(-1)[rows]
    nan = a.target.isnan().any(-1)[rows] & live
    p = a.target[rows, spot]
    q = torch.ones_like(p) if a.proposal is None else a.proposal[rows, spot]
    never = live & ~greedy & ((drafts < 0) | ~(q > 0) | p.isnan())
    usable = live & ~greedy & ~never
    one = torch.ones_like(p)
    p, q, u = (torch.where(usable, x, one) for x in (p, q, a.uniform[rows]))
    closed = ar.algebra("reject_sample.compare", "quotient") == "quotient"
    if closed:
        ratio = _divided(ar, ar.load(p), ar.load(q), "reject_sample.threshold")
        margin = Value(ar, ratio.mean - u.double(), *ratio.parts())
    else:
        product = ar.round(Value(ar, u.double() * q.double()), "reject_sample.threshold")
        margin = Value(ar, p.double() - product.mean, *product.parts())
    margin = ar.where(greedy.expand_as(p), ar.load(torch.where(drafts == best, one, -one)), margin)
    return Decisions(margin, closed, never, nan & greedy), best, nan


def _divided(ar: Arithmetic, a: Value, b: Value, site: str) -> Value:
    """a / b rounded to FP32: known to the bit where the profile's division is correctly rounded."""
    mean = a.mean / b.mean
    if ar.profile is None or TABLES[ar.profile.functions]["divide"] == CORRECTLY_ROUNDED:
        return ar.round(Value(ar, mean), site)
    return ar.where(a.mean == 0, Value(ar, mean), ar.divide(a, b))


def _scores(ar: Arithmetic, a: RejectSampleArguments, position: Tensor) -> tuple[Value, Tensor | None]:
    """Scores [request, token] at the draft of each request that was not kept (greedy requests and those
    that kept all: zeros), and the numbers they come from where noise hides which are equal."""
    stopped = (position < a.drafted) & ~a.greedy
    row = torch.where(stopped, a.first + position, 0)
    residual, noise = residual_of(a, row), a.noise
    residual = torch.where(stopped[:, None], residual, 0.0)
    noise = torch.where(stopped[:, None], noise, 1.0)
    weight = ar.round(Value(ar, residual), "reject_sample.residual")
    if ar.algebra("reject_sample.weigh", "inverse") == "inverse":
        inverse = _divided(ar, ar.load(torch.ones_like(noise)), ar.load(noise), "reject_sample.inverse")
        if inverse.variance is None:
            scores = ar.round(Value(ar, weight.mean * inverse.mean), "reject_sample.score")
        else:
            scores = ar.where(weight.mean == 0, weight, weight * inverse)
    else:
        scores = _divided(ar, weight, ar.load(noise), "reject_sample.score")
    if scores.variance is None:
        return scores, None
    return scores, torch.stack([weight.mean, noise.double()], -1)


def residual_of(a: RejectSampleArguments, row: Tensor) -> Tensor:
    """max(p - q, 0) of the drafts in ``row``; without q the draft alone is taken out. float64 [row, token]"""
    p = a.target[row].double()
    if a.proposal is not None:
        return (p - a.proposal[row].double()).clamp(min=0)
    token = torch.arange(a.vocabulary, device=p.device)
    return torch.where(token == a.drafts.long()[row][:, None], 0.0, p)


def _counts(ar: Arithmetic, a: RejectSampleArguments, kept: Tensor) -> Value:
    """How often each token stands in slot i, over the N_i requests that got there: binomial of p_i, whatever
    was drafted. A sum of independent terms of at most 1. [slot, token], the bonus left out."""
    p = a.target[: a.most].double()
    reached = (kept[:, None] >= torch.arange(a.most, device=p.device)).sum(0)[:, None].double()
    mean = reached * p
    if not ar.noisy:
        return Value(ar, mean)
    return Value(ar, mean, torch.zeros_like(mean), mean * (1 - p), torch.ones_like(mean))


def counted(a: RejectSampleArguments) -> Tensor:
    """Counts of the tokens in every slot but the last. FP32 [slot, token]"""
    slots = a.tokens[:, :-1].long().T
    tokens = torch.arange(a.vocabulary, device=slots.device)
    return (slots[..., None] == tokens).sum(1).float()


def together(a: RejectSampleArguments) -> Tensor:
    """Tokens and count side by side. int32 [request, slot + 1]"""
    return torch.cat([a.tokens, a.accepted[:, None]], 1)


def adopt(clean: RejectSampleArguments, outcome: RejectSampleArguments) -> RejectSampleArguments:
    """The recovered token and the counts are judged where the backend stopped."""
    return dataclasses.replace(clean, made=together(outcome).long())


# Rows 2**30 elements apart: the third lies beyond 2**31.
_WIDE_STRIDE = 2**30


def strides(a: RejectSampleArguments) -> dict[str, tuple[int, ...]]:
    """Every matrix with a pitch of its own; the rows of drafts dense, as the subject has them."""
    pitches = {"target": 4, "proposal": 8, "noise": 12}
    found: dict[str, tuple[int, ...]] = {"tokens": (a.most + 3, 1)}
    for name, pad in pitches.items():
        found[name] = (_WIDE_STRIDE if a.wide_rows else a.vocabulary + pad, 1)
    return found


def _case(regime: str, seed: int, **shape: int) -> Case:
    base = {"requests": 6, "drafts": 3, "vocabulary": 37, "proposal": 1}
    return Case.of("reject_sample", regime, seed, **(base | shape))


# Regimes that are only themselves at one shape.
_SHAPES = {
    "wide_offsets": {"requests": 3, "drafts": 1, "vocabulary": 40},
    "distribution": {"requests": 20_000, "drafts": 2, "vocabulary": 4},
    "one_hot": {"proposal": 0},
}
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime on small vocabularies with and without draft probabilities, both sides of every
    switch of the kernels, up to seven drafts, 20,000 requests of four tokens. full: the subject's vocabulary
    at every batch and in every regime, and 100,000 requests."""
    found = []
    for i, regime in enumerate(REGIMES):
        found.append(_case(regime.name, i, **_SHAPES.get(regime.name, {})))
        if regime.name not in _SHAPES:
            found.append(_case(regime.name, 30 + i, requests=9, vocabulary=1000 + i, proposal=i % 2))
    found += [_case("distribution", 60, **(_SHAPES["distribution"] | {"proposal": 0, "drafts": 1}))]
    found += [_case("typical", 70 + n, requests=n, drafts=k) for n, k in ((1, 1), (2, 7), (33, 3), (70, 2))]
    # Both sides of the switches by vocabulary.
    found += [_case("typical", 80, vocabulary=v, requests=5) for v in (64, 65, 4096, 4097)]
    found += [_case(name, 81, vocabulary=8200, requests=4, drafts=2) for name in ("ties", "tail", "poison")]
    found += [_case("typical", 85, vocabulary=8200, requests=4, proposal=0)]
    if tier == "full":
        found += [
            _case("typical", 100 + n, requests=n, drafts=3 if n < 16 else 1, vocabulary=VOCABULARY)
            for n in BATCHES
        ]
        for i, regime in enumerate(REGIMES):
            if regime.name == "distribution":
                found.append(_case("distribution", 190, requests=100_000, drafts=2, vocabulary=4))
            elif regime.name != "wide_offsets":
                found.append(_case(regime.name, 200 + i, vocabulary=VOCABULARY, proposal=1 - i % 2))
    return tuple(found)


CONTRACT = Contract(
    name="reject_sample",
    summary="acceptance rule of speculative decoding",
    arguments=RejectSampleArguments,
    outputs=(
        Output("tokens", ("request", "slot"), "fp32", together),
        Output("counts", ("slot", "token"), "fp32", counted, present=lambda a: a.counted),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
    adopt=adopt,
)
