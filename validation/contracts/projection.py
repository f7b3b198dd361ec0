"""Packed input projections of KDA and MLA layers: y = bf16(x W^T) (operations 3.3 and 3.4 of the subject).

Catches: BF16 accumulation, lost or doubled K tiles and splits, stale fragments, unmasked tails, swapped or
shifted rows, a second rounding. Cannot catch: a different but honest order of the FP32 sum, by design.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from validation.contracts.arguments import ProjectionArguments
from validation.contracts.contract import Case, Contract, Output, Regime, Tier
from validation.contracts.regimes import activations, generator, normal
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

HIDDEN = 7168
# Rows of the packed weight of one rank: KDA in_proj_qkvgfab and MLA fused_qkv_a_g_proj at TP8 and TP16.
PACKED = {("kda", 8): 6288, ("kda", 16): 3216, ("mla", 8): 3648, ("mla", 16): 2880}

_SITES = {"projection.out": BF16}
STOCK = Profile("stock", _SITES)
SPECIALIZED = Profile("specialized", _SITES, functions="triton", functions_on_cuda="triton")

REGIMES = (
    Regime("typical", ("F05", "F06"), "independent normal activations and weights"),
    Regime("outliers", ("F06",), "three activations thousands of times larger than the rest"),
    Regime("cancelling", ("F06",), "weights in pairs of opposite sign: the sum is a thousandth of its terms"),
    Regime("one_hot", ("F01", "F21"), "each row selects one column of W: any permutation or shift is exact"),
    Regime("small", ("F20",), "activations near 1e-30: no term may be flushed early"),
    Regime("nan_row", ("F51",), "one row holds a NaN: it must stay in that row"),
)


def build(case: Case) -> ProjectionArguments:
    """Draw x [rows, k] and W [columns, k] on the CPU."""
    g = generator(case)
    rows, columns, k = case["rows"], case["columns"], case["k"]
    x = activations(g, case.regime, rows, k, 1.7)
    if case.regime == "small":
        x = x * 1e-30
    if case.regime == "nan_row":
        x[rows // 2, k - 1] = float("nan")
    out = torch.zeros(rows, columns, dtype=torch.bfloat16)
    # A hundred neighbouring seeds share a weight: drawing 45 million numbers takes longer than judging them.
    weight = _weight(columns, k, case.regime == "cancelling", case.seed // 100)
    return ProjectionArguments(x=x.bfloat16(), weight=weight, out=out)


@lru_cache(maxsize=1)
def _weight(columns: int, k: int, cancelling: bool, seed: int) -> Tensor:
    """W [columns, k] BF16; ``cancelling``: its halves are of opposite sign but for a thousandth."""
    g = generator(Case.of("projection", "weight", seed, columns=columns, k=k, cancelling=int(cancelling)))
    weight = normal(g, columns, k) * (0.8 / k**0.5)
    if cancelling:
        half = k // 2
        weight[:, half : 2 * half] = -weight[:, :half] * (1 + 1e-3 * normal(g, columns, half))
    return weight.bfloat16()


def reference(ar: Arithmetic, a: ProjectionArguments) -> dict[str, Value]:
    return {"out": ar.store(ar.matmul(ar.load(a.x), a.weight), "projection.out")}


def _case(regime: str, seed: int, rows: int, columns: int, k: int) -> Case:
    return Case.of("projection", regime, seed, rows=rows, columns=columns, k=k)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: both sides of every batch threshold on a slice of the weight's rows (all of K), a K tail, every
    regime. full: the four packed weights of TP8 and TP16 at every prepared batch."""
    found = [_case("typical", rows, rows, 136, HIDDEN) for rows in (1, 2, 3, 8, 9, 16, 17, 33, 65)]
    found += [_case("typical", 50, 4, 100, 1000), _case("typical", 51, 1, 72, 328)]
    found += [_case(r.name, 60 + i, 1 + 3 * (i % 2), 136, 2048) for i, r in enumerate(REGIMES[1:])]
    found += [_case("typical", 80 + rows, rows, PACKED["mla", 16], HIDDEN) for rows in (1, 4)]
    if tier == "full":
        for number, columns in enumerate(PACKED.values()):
            batches = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64)
            found += [_case("typical", 100 * (number + 1) + rows, rows, columns, HIDDEN) for rows in batches]
            for i, regime in enumerate(REGIMES[1:]):
                found.append(
                    _case(regime.name, 600 + 10 * number + i, (1, 2, 5, 16)[number], columns, HIDDEN)
                )
    return tuple(found)


def strides(a: ProjectionArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each, so that a kernel that takes one for another is seen."""
    pitches = {"x": 32, "weight": 64, "out": 48}
    return {name: (getattr(a, name).shape[1] + pitch, 1) for name, pitch in pitches.items()}


CONTRACT = Contract(
    name="projection",
    summary="packed input projection of KDA and MLA layers",
    arguments=ProjectionArguments,
    outputs=(
        Output("out", ("row", "column"), "bf16", lambda a: a.out, slices=(("row",), ("row", "column/64"))),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
