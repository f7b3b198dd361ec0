"""Routing of a MoE layer: the 16 experts of a token and their weights (operation 3.14 of the subject).

    s_e = 1 / (1 + exp(-logit_e))          key_e = s_e + bias_e, in FP32; a NaN key is below every number
    ids = the 16 largest keys              weight_j = bf16(s_j scale / (sum of the 16 s + 1e-20))

The bias moves the choice alone. A backend that is ``specialized`` gives the ids by descending key, equal keys
by ascending id; a ``stock`` one gives a set, ties either way. The weights are judged on the ids made.
Sigmoids below exp's overflow (logits under -88.72) are 0, so a row of them has weights 0. ``specialized_b1``
and ``specialized_b2`` are the variants of small batches (one token at 8 ranks, one or two at 16).

Catches: an expert that noise cannot explain, a tie broken towards the higher id, keys in the weights, a lost
or doubled scale, a missing 1e-20, a start value or a pad lane that beats negative keys, NaN that spreads.
Cannot catch: a tie rule among keys that differ in their inputs but not in FP32, and a choice made from a
rounding of the logits that changes no choice in these rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Tier, read, write
from validation.contracts.moe.route_inputs import REGIMES, build_into
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.choices import Choice, gather_choice
from validation.numerics.formats import BF16, FP32
from validation.numerics.profile import Profile
from validation.numerics.value import Value

EXPERTS, TOP = 896, 16
TINY = 1e-20  # added to the sum of the scores
# Below, the sigmoid is exactly 0 in FP32: exp(-logit) overflows; or tanh(logit / 2) is -1.
_UNDERFLOW = {"exponential": -88.7228, "tanh": -18.1}
# A row every 2**30 elements: the third lies beyond 2**31.
_WIDE_STRIDE = 2**30


@dataclass
class RouteArguments:
    """logits [B, E] and the correction bias [E] -> ids [B, top] and weights [B, top]; ``scale`` is the routed
    scaling factor; without ``renormalise`` weight = s * scale. ``chosen``: the ids that a backend made."""

    logits: Tensor = read("row expert", "fp32")
    bias: Tensor = read("expert", "fp32")
    ids: Tensor = write("row slot", "i32")
    weights: Tensor = write("row slot", "bf16")
    scale: float = 1.0
    renormalise: bool = True
    wide: bool = False
    chosen: Tensor | None = None

    @property
    def top(self) -> int:
        return int(self.ids.shape[1])


_SITES = {"route.key": FP32, "route.weights": BF16}
STOCK = Profile("stock", _SITES, algebra={"route.order": "any", "route.scale": "after"})
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"route.order": "descending", "route.scale": "before"},
)
# TP8 with one token: sigmoid as tanh.approx(logit / 2) / 2 + 1/2, off by up to 2**-12 whatever its size, so
# that more choices are admissible; approximate division; a NaN expert counts as a score of 0.
SPECIALIZED_B1 = Profile(
    "specialized_b1",
    _SITES,
    functions="fast",
    functions_on_cuda="fast",
    algebra={
        "route.order": "descending",
        "route.scale": "before",
        "route.nan": "zero",
        "route.sigmoid": "tanh",
    },
)
# TP16 with one or two tokens: scaled after the division, and a NaN expert counts as a score of 0.
SPECIALIZED_B2 = dataclasses.replace(
    SPECIALIZED,
    name="specialized_b2",
    algebra={"route.order": "descending", "route.scale": "after", "route.nan": "zero"},
)


def build(case: Case) -> RouteArguments:
    """Logits and bias by regime; ``percent`` is the scale in hundredths."""
    shape = dict(case.shape)
    rows, top = shape["rows"], shape.get("top", TOP)
    logits, bias = build_into(case, rows, shape["experts"], top)
    return RouteArguments(
        logits=logits,
        bias=bias,
        ids=torch.zeros(rows, top, dtype=torch.int32),
        weights=torch.zeros(rows, top, dtype=torch.bfloat16),
        scale=shape.get("percent", 100) / 100,
        renormalise=bool(shape.get("renormalise", 1)),
        wide=case.regime == "wide_offsets",
    )


def reference(ar: Arithmetic, a: RouteArguments) -> dict[str, Any]:
    """The choice [row, slot] among the keys, and the weights of the experts chosen."""
    scores = _scores(ar, a.logits)
    descending = ar.algebra("route.order", "descending") == "descending"
    underflow = _UNDERFLOW[ar.algebra("route.sigmoid", "exponential")]
    twins = _twins(a, underflow) if descending else None
    choice = Choice(_keys(ar, a, scores), a.top, ordered=descending, lowest_first=descending, twins=twins)
    chosen = choice.mean if a.chosen is None else a.chosen
    chosen = chosen.long().clamp(0, a.logits.shape[1] - 1)
    return {"ids": choice, "weights": ar.store(_weights(ar, a, scores, chosen), "route.weights")}


def _scores(ar: Arithmetic, logits: Tensor) -> Value:
    """Sigmoids; exactly 0, 1 and NaN where the logit says so. [row, expert]"""
    form = ar.algebra("route.sigmoid", "exponential")
    regular = torch.isfinite(logits) & (logits > _UNDERFLOW[form])
    known = ar.load(torch.where(regular, logits, torch.zeros_like(logits)))
    scores = ar.tanh(known * 0.5) * 0.5 + 0.5 if form == "tanh" else ar.sigmoid(known)
    exact = torch.where(logits > 0, 1.0, 0.0)
    nan = 0.0 if ar.algebra("route.nan", "kept") == "zero" else float("nan")
    exact = torch.where(torch.isnan(logits), nan, exact)
    return ar.where(regular, scores, ar.load(exact))


def _keys(ar: Arithmetic, a: RouteArguments, scores: Value) -> Value:
    """fl(s + bias); minus infinity where the logit is NaN. The sum has no error but its own rounding, which
    is known where the bias is much larger than the noise of s."""
    exact = Value(ar, scores.mean + a.bias.double(), *scores.parts())
    return ar.where(~torch.isnan(a.logits), ar.round(exact, "route.key"), float("-inf"))


def _twins(a: RouteArguments, underflow: float) -> Tensor:
    """Labels of experts with bit-equal keys: the same score of the same logit, and the same bias. int64"""
    logits = torch.where(a.logits < underflow, torch.full_like(a.logits, float("-inf")), a.logits)
    bias = a.bias.expand_as(logits)
    nan = torch.isnan(logits)
    logits, bias = (torch.where(nan, torch.full_like(x, float("nan")), x) + 0.0 for x in (logits, bias))
    high, low = (x.contiguous().view(torch.int32).long() for x in (logits, bias))
    return (high << 32) | (low & 0xFFFFFFFF)


def _weights(ar: Arithmetic, a: RouteArguments, scores: Value, chosen: Tensor) -> Value:
    """[row, slot]; of a score that is exactly 0, exactly 0."""
    picked = gather_choice(scores, chosen)
    if not a.renormalise:
        weights = picked * a.scale
    else:
        total = ar.sum(picked, -1, keepdim=True) + TINY
        if ar.algebra("route.scale", "before") == "before":
            weights = picked * a.scale / total
        else:
            weights = picked / total * a.scale
    return ar.where(picked.mean != 0, weights, 0.0)


def adopt(clean: RouteArguments, outcome: RouteArguments) -> RouteArguments:
    """The weights are those of the experts that were chosen."""
    return dataclasses.replace(clean, chosen=outcome.ids.clone())


def _case(regime: str, seed: int, rows: int, experts: int = EXPERTS, **more: int) -> Case:
    return Case.of("route", regime, seed, **({"rows": rows, "experts": experts} | more))


BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: a few batches, every regime, other numbers of experts and slots, both switches. full: every
    batch, and every regime at three of them."""
    found = [_case("typical", rows, rows) for rows in (1, 2, 8, 9, 17)]
    found += [_case(r.name, 20 + i, 4 + i % 3, percent=250) for i, r in enumerate(REGIMES[1:])]
    found += [_case(name, 40 + i, 11) for i, name in enumerate(("many_ties", "nan"))]
    found += [
        _case("typical", 50, 3, renormalise=0, percent=250),
        _case("negative_keys", 51, 10, renormalise=0),
        _case("typical", 52, 3, 60),
        _case("negative_keys", 53, 5, 129, top=7),
        _case("typical", 54, 2, 16),
    ]
    if tier == "full":
        found += [_case("typical", 100 + rows, rows, percent=250) for rows in BATCHES]
        found += [_case(r.name, 200 + i, rows) for i, r in enumerate(REGIMES[:-1]) for rows in (1, 8, 64)]
        found += [_case("wide_offsets", 220, 9)]
    return tuple(found)


def strides(a: RouteArguments) -> dict[str, tuple[int, ...]]:
    """Rows lie apart; in a ``wide`` case beyond 2**31 elements."""
    pitches = {"logits": 32, "ids": 4, "weights": 8}
    return {
        name: (_WIDE_STRIDE if a.wide else getattr(a, name).shape[1] + pitch, 1)
        for name, pitch in pitches.items()
    }


CONTRACT = Contract(
    name="route",
    summary="top-16 selection of experts and their weights",
    arguments=RouteArguments,
    outputs=(
        Output("ids", ("row", "slot"), "fp32", lambda a: a.ids),
        Output("weights", ("row", "slot"), "bf16", lambda a: a.weights, slices=(("row",),), shared=("slot",)),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={p.name: p for p in (STOCK, SPECIALIZED, SPECIALIZED_B1, SPECIALIZED_B2)},
    strides=strides,
    adopt=adopt,
)
