"""A whole MoE layer for one or two rows over all ranks (operations 3.18 and 3.19 of the specification).

From the rows that enter the MoE layer to what every rank ends with: router logits and latent, the 16 experts
and their weights, every rank's routed and shared partials, and the tail. Each stage is judged by the contract
of its operation on what the stage before it published: an early flip is not a late finding.

Catches: stages wired to the wrong input (another row's ids, another rank's partial, weights in another order
than ids, a latent that was not quantised), a stage left out, a row of two handled as the first, and
everything the stages' own contracts catch at one or two rows. Cannot catch: the approximate sigmoid and the
table of SiTU that the subject has at TP8 (exact forms are judged), placement, polling and re-arming.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Tier, read, write
from validation.contracts.moe import experts, front, route, shared, tail
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.contracts.moe.experts_inputs import e4m3_bytes
from validation.contracts.moe.front import MoeFrontArguments
from validation.contracts.moe.route import RouteArguments
from validation.contracts.moe.shared import SharedExpertArguments, negative_zeros
from validation.contracts.moe.small_batch_inputs import REGIMES, build_tensors
from validation.contracts.moe.tail import MoeTailArguments
from validation.numerics.arithmetic import Arithmetic, Rounded
from validation.numerics.blocks import quantized
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction

if TYPE_CHECKING:
    from validation.numerics.value import Value


@dataclass(frozen=True)
class Made:
    """What a backend published between the stages: the stages after it are judged on this."""

    logits: Tensor
    latent: Tensor
    ids: Tensor
    weights: Tensor
    routed: Tensor
    shared: Tensor


@dataclass
class SmallBatchArguments:
    """``router`` and ``down`` lie in shards of the ranks, as in ``moe_front``; every rank has all of it.
    ``w13`` .. ``w2_scale`` are the experts' weights of every rank, ``gate_up`` and ``shared_down`` its shard
    of the shared experts, ``up`` its rows of the up-projection. ``routed[rank]`` and ``shared[rank]``: what
    that rank sends. ``logits``, ``latent``, ``ids``, ``weights``: what every rank holds on the way."""

    h: Tensor = read("row k", "bf16")
    router: Tensor = read("rank expert k", "bf16")
    bias: Tensor = read("expert", "fp32")
    down: Tensor = read("rank column k", "bf16")
    w13: Tensor = read("rank expert hidden byte", "u8")
    w13_scale: Tensor = read("rank expert hidden block", "u8")
    w2: Tensor = read("rank expert column byte", "u8")
    w2_scale: Tensor = read("rank expert column block", "u8")
    gate_up: Tensor = read("rank channel k", "bf16")
    shared_down: Tensor = read("rank column channel", "bf16")
    gamma: Tensor = read("column", "bf16")
    up: Tensor = read("rank channel column", "bf16")
    logits: Tensor = write("row expert", "fp32")
    latent: Tensor = write("row column", "bf16")
    ids: Tensor = write("row slot", "i32")
    weights: Tensor = write("row slot", "bf16")
    routed: Tensor = write("rank row column", "bf16")
    shared: Tensor = write("rank row column", "bf16")
    out: Tensor = write("row column", "bf16")
    live: int = 384
    hidden_rule: Literal["floor", "no_saturation"] = "floor"
    scale: float = 1.0
    eps: float = tail.EPS
    made: Made | None = None

    @property
    def ranks(self) -> int:
        return int(self.up.shape[0])


def front_arguments(a: SmallBatchArguments) -> MoeFrontArguments:
    return MoeFrontArguments(a.h, a.router, a.down, a.logits, a.latent)


def route_arguments(a: SmallBatchArguments, logits: Tensor) -> RouteArguments:
    return RouteArguments(logits, a.bias, a.ids, a.weights, scale=a.scale)


def experts_arguments(
    a: SmallBatchArguments, rank: int, x: tuple[Tensor, Tensor], ids: Tensor, weights: Tensor
) -> ExpertsArguments:
    """One rank's experts on the quantised latent ``x`` (bytes, scale bytes); they write ``routed[rank]``."""
    matrices = (a.w13[rank], a.w13_scale[rank], a.w2[rank], a.w2_scale[rank])
    rest = {"live": a.live, "hidden_rule": a.hidden_rule}
    return ExpertsArguments(*x, ids, weights, *matrices, a.routed[rank], None, **rest)  # type: ignore[arg-type]


def shared_arguments(a: SmallBatchArguments) -> SharedExpertArguments:
    """The shared experts write ``shared``; their sum over ranks is the tail's."""
    return SharedExpertArguments(a.h, a.gate_up, a.shared_down, a.shared, a.out)


def tail_arguments(a: SmallBatchArguments, routed: Tensor, sent: Tensor) -> MoeTailArguments:
    nothing = routed.new_full((1, routed.shape[-1]), float("nan"))
    none = routed.new_full((1, tail.SLOTS), float("nan"))
    return MoeTailArguments(routed, nothing, none, sent, a.gamma, a.up, a.out, eps=a.eps)


# Chains side by side, as CPU libraries add; on a GPU the truncation of the tensor cores takes their place.
_PRODUCTS = Reduction(chain=32)


def _profile(name: str) -> Profile:
    """The stages' profiles of that name as one: their sites and choices together."""
    parts = [module.CONTRACT.profiles[name] for module in (front, route, experts, shared, tail)]
    sites = {site: fmt for part in parts for site, fmt in part.sites.items()}
    algebra = {choice: form for part in parts for choice, form in part.algebra.items()}
    last = parts[-1]
    return dataclasses.replace(last, sites=sites, algebra=algebra, products=_PRODUCTS)


STOCK, SPECIALIZED = _profile("stock"), _profile("specialized")


def build(case: Case) -> SmallBatchArguments:
    """Inputs of a case on the CPU, and outputs of the right shapes."""
    rows, ranks, hidden, latent = (case[key] for key in ("rows", "ranks", "hidden", "latent"))
    zeros, bf16 = torch.zeros, torch.bfloat16
    return SmallBatchArguments(
        **build_tensors(case),  # type: ignore[arg-type]
        logits=zeros(rows, ranks * case["experts"]),
        latent=zeros(rows, latent, dtype=bf16),
        ids=zeros(rows, case["slots"], dtype=torch.int32),
        weights=zeros(rows, case["slots"], dtype=bf16),
        routed=zeros(ranks, rows, latent, dtype=bf16),
        shared=zeros(ranks, rows, hidden, dtype=bf16),
        out=zeros(rows, hidden, dtype=bf16),
        live=case["live"],
        hidden_rule="floor" if case["live"] == case["padded"] else "no_saturation",
        scale=1.5 if case.regime == "small" else 2.5,
        eps=3 * tail.EPS if case.regime == "small" else tail.EPS,
    )


def reference(ar: Arithmetic, a: SmallBatchArguments) -> dict[str, Any]:
    """Every stage by its own reference, on what was published before it."""
    made = a.made or _made(ar, a)
    first = front.reference(ar, front_arguments(a))
    chosen = dataclasses.replace(route_arguments(a, made.logits), chosen=made.ids)
    routing = route.reference(ar, chosen)
    routed = ar.stack([_routed(ar, a, made, rank) for rank in range(a.ranks)], 0)
    both = shared_arguments(a)
    h = ar.load(a.h)
    sent = ar.stack([shared.shard(ar, h, both, rank) for rank in range(a.ranks)], 0)
    out = tail.reference(ar, tail_arguments(a, made.routed, made.shared))["out"]
    return {
        "logits": first["logits"].reshape(a.h.shape[0], -1),
        "latent": first["latent"].reshape(a.h.shape[0], -1),
        "ids": routing["ids"],
        "weights": routing["weights"],
        "routed": routed,
        "shared": ar.store(sent, "shared_expert.partial"),
        "out": out,
        "negative_zeros": ar.load(torch.zeros_like(_negative_zeros(a))),
    }


def _negative_zeros(a: SmallBatchArguments) -> Tensor:
    """1 where the latent or the output is -0, which marks words that nobody wrote yet. float32"""
    return torch.cat([negative_zeros(a.latent), negative_zeros(a.out)], 1)


def _routed(ar: Arithmetic, a: SmallBatchArguments, made: Made, rank: int) -> Value:
    x = latent_bytes(made.latent)
    # Ids that are none: they are a finding of their own, and the experts' reference cannot follow them.
    ids = made.ids.clamp(0, a.w13.shape[1] - 1)
    return experts.reference(ar, experts_arguments(a, rank, x, ids, made.weights))["out"]


def latent_bytes(latent: Tensor) -> tuple[Tensor, Tensor]:
    """The latent as the experts read it: MXFP8 without saturation. u8 [row, column], u8 [row, block]"""
    elements, codes = quantized(latent.double(), "no_saturation")
    return e4m3_bytes(elements), codes.to(torch.uint8)


def _made(ar: Arithmetic, a: SmallBatchArguments) -> Made:
    """What a backend without noise would publish, where no backend ran."""
    quiet = Rounded(ar.profile) if ar.profile else ar
    rows = a.h.shape[0]
    first = front.reference(quiet, front_arguments(a))
    logits = first["logits"].reshape(rows, -1).mean.float()
    latent = first["latent"].reshape(rows, -1).mean.bfloat16()
    routing = route.reference(quiet, route_arguments(a, logits))
    ids, weights = routing["ids"].mean.int(), routing["weights"].mean.bfloat16()
    made = Made(logits, latent, ids, weights, a.routed, a.shared)
    routed = torch.stack([_routed(quiet, a, made, rank).mean for rank in range(a.ranks)]).bfloat16()
    h, both = quiet.load(a.h), shared_arguments(a)
    sent = torch.stack([shared.shard(quiet, h, both, rank).mean for rank in range(a.ranks)]).bfloat16()
    return dataclasses.replace(made, routed=routed, shared=sent)


def adopt(clean: SmallBatchArguments, outcome: SmallBatchArguments) -> SmallBatchArguments:
    names = [f.name for f in dataclasses.fields(Made)]
    made = Made(**{name: getattr(outcome, name).clone() for name in names})
    return dataclasses.replace(clean, made=made)


def strides(a: SmallBatchArguments) -> dict[str, tuple[int, ...]]:
    """A pitch of its own for every matrix; mailboxes hold more rows than the step."""
    pitches = {
        "h": 32, "logits": 16, "latent": 80, "ids": 4, "weights": 8, "out": 96,
    }  # fmt: skip
    found: dict[str, tuple[int, ...]] = {}
    for name, pitch in pitches.items():
        found[name] = (getattr(a, name).shape[1] + pitch, 1)
    for name, pitch in (("router", 64), ("down", 48), ("gate_up", 80), ("shared_down", 16), ("up", 32)):
        _, rows, width = getattr(a, name).shape
        found[name] = (rows * (width + pitch) + 64, width + pitch, 1)
    for name, pitch in (("routed", 32), ("shared", 48)):
        width = getattr(a, name).shape[2] + pitch
        found[name] = (4 * width, width, 1)
    for name, pitch in (("w13", 16), ("w13_scale", 8), ("w2", 32), ("w2_scale", 4)):
        _, count, rows, width = getattr(a, name).shape
        one = rows * (width + pitch) + 128
        found[name] = (count * one + 256, one, width + pitch, 1)
    return found


def _case(regime: str, seed: int, rows: int, ranks: int, **shape: int) -> Case:
    return Case.of("small_batch", regime, seed, rows=rows, ranks=ranks, **shape)


_SMALL = {"hidden": 128, "latent": 64, "experts": 12, "slots": 4, "live": 32, "padded": 32, "width": 16}
_PADDED = _SMALL | {"slots": 16, "padded": 64}
_ODD = {"hidden": 150, "latent": 96, "experts": 20, "slots": 3, "live": 32, "padded": 32, "width": 20}
# One rank of TP8 and of TP16 with 4 and 2 experts for each rank's share of the router: 32 of the 896.
_TP8 = {"hidden": 7168, "latent": 3584, "experts": 4, "slots": 16, "live": 384, "padded": 384, "width": 768}
_TP16 = {"hidden": 7168, "latent": 3584, "experts": 2, "slots": 16, "live": 192, "padded": 256, "width": 384}


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: one row at 8 ranks, two rows at two and three, padded and not, odd sizes, every regime, at small
    widths. full: 16 ranks, and the shapes of both parallelisms with 32 experts."""
    found = [
        _case("typical", 1, 1, 8, **(_SMALL | {"experts": 3, "slots": 2})),
        _case("typical", 2, 2, 2, **_PADDED),
    ]
    found += [_case("typical", 3, 2, 3, **_ODD)]
    found += [_case(r.name, 20 + i, 2, 2, **_SMALL) for i, r in enumerate(REGIMES[1:])]
    if tier == "full":
        found += [_case("typical", 30 + rows, rows, 16, **(_PADDED | {"experts": 2})) for rows in (1, 2)]
        found += [_case(r.name, 100 + i, 1, 8, **_TP8) for i, r in enumerate(REGIMES) if r.name != "nan_row"]
        found += [_case("typical", 200 + rows, rows, 16, **_TP16) for rows in (1, 2)]
        found += [_case(r.name, 210 + i, 2, 16, **_TP16) for i, r in enumerate(REGIMES[1:])]
    return tuple(found)


_PUBLISHED, _ROWS = ("rank", "row", "column"), ("row", "column")
_SLICES = (("rank",), ("row",))

CONTRACT = Contract(
    name="small_batch",
    summary="a MoE layer for one or two rows, from its input rows to its output",
    arguments=SmallBatchArguments,
    outputs=(
        Output("logits", ("row", "expert"), "fp32", lambda a: a.logits, slices=(("row",),)),
        Output("latent", _ROWS, "bf16", lambda a: a.latent, slices=(("row",),)),
        Output("ids", ("row", "slot"), "fp32", lambda a: a.ids),
        Output("weights", ("row", "slot"), "bf16", lambda a: a.weights, slices=(("row",),), shared=("slot",)),
        Output("routed", _PUBLISHED, "bf16", lambda a: a.routed, slices=_SLICES, shared=("column",)),
        Output("shared", _PUBLISHED, "bf16", lambda a: a.shared, slices=_SLICES),
        Output("out", _ROWS, "bf16", lambda a: a.out, slices=(("row",),)),
        Output("negative_zeros", _ROWS, "fp32", _negative_zeros, exact=True),
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
