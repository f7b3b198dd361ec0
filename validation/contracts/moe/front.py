"""Front of a MoE layer: router logits and latent, each from one shard of rows a rank (operation 3.13).

    logit[t, e]  = sum_k h[t, k] router[e, k]          FP32, never rounded
    latent[t, c] = bf16(sum_k h[t, k] down[c, k])

Rank r computes its rows of both weights; every rank ends with all columns, in rank order. A zero is published
as +0 (the subject's mailboxes are armed with -0).

Catches: logits that passed through BF16 or FP16, a shard of another rank or at another place, pad rows
between the two weights that are published, lost or doubled pieces of K, a published -0, 32-bit offsets.
Cannot catch: the exchange itself (order of publication, re-arming, a poll that does not wait).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.regimes import activations, generator, normal, shared_weight
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction

if TYPE_CHECKING:
    from validation.numerics.value import Value

HIDDEN, EXPERTS, LATENT = 7168, 896, 3584
# Rows that separate router and down projection in the packed weight of a rank: here a gap that holds NaN.
PAD_ROWS = 8
# A rank (of weights) or a row (of outputs) every 2**30 elements: the third lies beyond 2**31.
_WIDE_STRIDE = 2**30
# Weights of more elements are drawn once for a hundred neighbouring seeds.
_LARGE = 1 << 21


@dataclass
class MoeFrontArguments:
    """h [B, D]; router [T, E/T, D] and down [T, L/T, D], one shard a rank; logits [B, E] and latent [B, L] as
    every rank holds them after the exchange. ``wide``: the arena lays ranks and rows far apart."""

    h: Tensor = read("row k", "bf16")
    router: Tensor = read("rank expert k", "bf16")
    down: Tensor = read("rank column k", "bf16")
    logits: Tensor = write("row expert", "fp32")
    latent: Tensor = write("row column", "bf16")
    wide: bool = False

    @property
    def ranks(self) -> int:
        return int(self.router.shape[0])


# FP32 chains of a few hundred terms, added up in turn: what a product of one or two rows does on a CPU, the
# noisiest honest order seen (blocked products have a sixth of its variance). On a GPU the truncation of the
# tensor cores takes its place (``Profile.on``).
_PRODUCTS = Reduction(chain=384)
_SITES = {"moe_front.logits": None, "moe_front.latent": BF16}
STOCK = Profile("stock", _SITES, products=_PRODUCTS)
SPECIALIZED = Profile(
    "specialized", _SITES, products=_PRODUCTS, functions="triton", functions_on_cuda="triton"
)

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F06", "F08", "F16", "F21"),
        "independent normal activations and weights",
    ),
    Regime(
        "outliers", ("F06",), "three activations thousands of times larger than the rest, as in real layers"
    ),
    Regime("cancelling", ("F06",), "logits a hundredth of their terms: the noise of the sums counts"),
    Regime(
        "one_hot", ("F01", "F16", "F21"), "each row selects one column of the weights: any shift is exact"
    ),
    Regime(
        "negative_zero", ("F36",), "a row of -0, and latents so small and negative that BF16 makes them -0"
    ),
    Regime("nan_row", ("F45", "F51"), "a padding row of NaN and infinities: it must stay in that row"),
    Regime("wide_offsets", ("F50",), "ranks and rows more than 2**31 elements apart"),
)


def build(case: Case) -> MoeFrontArguments:
    """Draw h and both weights on the CPU; ``experts`` and ``latent`` of the shape are rows a rank."""
    g = generator(case)
    rows, ranks, k = case["rows"], case["ranks"], case["k"]
    h = activations(g, case.regime, rows, k, 1.3)
    if case.regime == "negative_zero":
        h[0] = h[0].abs() * 2.0**-60  # with ``_weight``: latents near -2**-140
        h[rows // 2] = -0.0
    if case.regime == "nan_row":
        h[-1] = float("nan")
        h[-1, ::2] = float("inf")
    router = _weight(g, case, "router", ranks, case["experts"], k)
    down = _weight(g, case, "down", ranks, case["latent"], k)
    return MoeFrontArguments(
        h=h.bfloat16(),
        router=router,
        down=down,
        logits=torch.zeros(rows, ranks * case["experts"]),
        latent=torch.zeros(rows, ranks * case["latent"], dtype=torch.bfloat16),
        wide=case.regime == "wide_offsets",
    )


def _weight(g: Generator, case: Case, name: str, ranks: int, rows: int, k: int) -> Tensor:
    """BF16 [rank, row, k] of deviation k**-0.5. The same whole weight at 8 and at 16 ranks."""
    size = (ranks * rows, k)
    if size[0] * k > _LARGE:
        drawn = shared_weight(f"moe_front.{name}", case.seed // 100, *size, scale=k**-0.5)
    else:
        drawn = (normal(g, *size) * k**-0.5).bfloat16()
    if case.regime == "cancelling":
        half = k // 2
        other = drawn[:, :half].float() * (1 + 1e-2 * normal(g, size[0], half))
        drawn = torch.cat([drawn[:, :half], -other.bfloat16(), drawn[:, 2 * half :]], 1)
    drawn = drawn.reshape(ranks, rows, k)
    if case.regime == "negative_zero":
        drawn = drawn.clone()
        drawn[:, 0] = drawn[:, 0].abs()
        if name == "down":
            drawn[:, 1] = -drawn[:, 1].abs() * 2.0**-84
    return drawn


def reference(ar: Arithmetic, a: MoeFrontArguments) -> dict[str, Value]:
    """Logits [row, rank, expert], latent [row, rank, column], and where a zero is negative: nowhere."""
    h = ar.load(a.h)
    logits = ar.store(ar.matmul(h, a.router.flatten(0, 1)), "moe_front.logits")
    latent = ar.store(ar.matmul(h, a.down.flatten(0, 1)), "moe_front.latent")
    rows = a.h.shape[0]
    return {
        "logits": logits.reshape(rows, a.ranks, -1),
        "latent": latent.reshape(rows, a.ranks, -1),
        "negative_zeros": ar.load(torch.zeros_like(_negative_zeros(a))),
    }


def _negative_zeros(a: MoeFrontArguments) -> Tensor:
    """1 where an output is -0: the logits' columns, then the latent's. uint8 [row, column]"""
    found = [(x == 0) & torch.signbit(x) for x in (a.logits, a.latent)]
    return torch.cat(found, 1).to(torch.uint8)


def _case(regime: str, seed: int, rows: int, ranks: int, experts: int, latent: int, k: int) -> Case:
    shape = {"rows": rows, "ranks": ranks, "experts": experts, "latent": latent, "k": k}
    return Case.of("moe_front", regime, seed, **shape)


BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: both sides of every batch threshold at 8 and 16 ranks, odd sizes, every regime, one shard of
    each weight at its real width, many weight rows and tokens at a small K. full: the whole front at TP8
    and TP16, every batch and regime."""
    found = [_case("typical", rows, rows, 8 if rows < 8 else 2, 7, 12, 512) for rows in (1, 2, 3, 16, 17, 33)]
    found += [_case("typical", 50 + rows, rows, 16, 4, 9, 328) for rows in (2, 5)]
    found += [_case("typical", 71, 3, 3, 5, 33, 1000), _case("typical", 72, 6, 1, 65, 17, 72)]
    found += [
        _case(r.name, 80 + i, 3 + 3 * (i % 2), 3 if r.name == "wide_offsets" else 8, 6, 11, 512)
        for i, r in enumerate(REGIMES[1:])
    ]
    found += [_case("outliers", 90 + rows, rows, 2, 56, 40, HIDDEN) for rows in (1, 7)]
    found += [_case("negative_zero", 95, 2, 8, 6, 11, 512)]
    # More rows of weights, and of tokens, than one program of any kernel holds.
    found += [_case("typical", 96 + i, rows, 1, 520, 600, 40) for i, rows in enumerate((2, 3))]
    found += [_case("typical", 98, 65, 1, 20, 24, 40)]
    if tier == "full":
        for ranks in (8, 16):
            shape = (ranks, EXPERTS // ranks, LATENT // ranks, HIDDEN)
            found += [_case("typical", 100 + rows, rows, *shape) for rows in BATCHES]
            for i, regime in enumerate(REGIMES[1:-1]):
                found += [_case(regime.name, 180 + i, rows, *shape) for rows in (2, 7)]
        found.append(_case("wide_offsets", 190, 6, 3, 56, 224, HIDDEN))
    return tuple(found)


def strides(a: MoeFrontArguments) -> dict[str, tuple[int, ...]]:
    """A pitch of its own for every tensor; between the rows of two ranks a gap like the packed weight's."""
    k = a.h.shape[1]

    def shards(tensor: Tensor, pitch: int) -> tuple[int, int, int]:
        row = k + pitch
        return (_WIDE_STRIDE if a.wide else (tensor.shape[1] + PAD_ROWS) * row, row, 1)

    def rows(tensor: Tensor, pitch: int) -> tuple[int, int]:
        return (_WIDE_STRIDE if a.wide else tensor.shape[1] + pitch, 1)

    return {
        "h": (k + 32, 1),
        "router": shards(a.router, 64),
        "down": shards(a.down, 48),
        "logits": rows(a.logits, 16),
        "latent": rows(a.latent, 80),
    }


_SLICES = (("row",), ("rank",))
# Unrounded sums show their noise, and it is not each logit's own: an outlier of h meets the running sums of
# all experts at the same place of K, and tensor cores truncate them all towards zero.
_TOGETHER = ("expert",)

CONTRACT = Contract(
    name="moe_front",
    summary="router logits and latent of a MoE layer, gathered from one shard a rank",
    arguments=MoeFrontArguments,
    outputs=(
        Output(
            "logits",
            ("row", "rank", "expert"),
            "fp32",
            lambda a: a.logits.reshape(a.logits.shape[0], a.ranks, -1),
            slices=_SLICES,
            shared=_TOGETHER,
        ),
        Output(
            "latent",
            ("row", "rank", "column"),
            "bf16",
            lambda a: a.latent.reshape(a.latent.shape[0], a.ranks, -1),
            slices=_SLICES,
        ),
        Output("negative_zeros", ("row", "column"), "fp32", _negative_zeros, exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
