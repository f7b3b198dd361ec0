"""The dense MLP of layer 0: gate and up, SiTU, down, all-reduce (the subject's operation 3.12).

Catches: swapped halves of the packed weight, an activation other than SiTU or with a wrong bound, a rounding
too many or too few at gate, up, hidden and partial, lost tiles of either K, a padded hidden column that is
not zero, a lost or stale rank, BF16 accumulation. Cannot catch: an order of the rank sum (a framework's
all-reduce may take any), and the difference of sigmoid and (1 + tanh(g / 2)) / 2 where the hidden value is
far below what the sum resolves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.rank_sums import rank_sum, settled
from validation.contracts.regimes import generator, normal, outliers, shared_weight
from validation.contracts.situ import situ
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

HIDDEN = 7168
# Tensor parallel size -> columns of one rank's hidden shard.
SHARDS = {8: 4224, 16: 2112}
_SITES = {
    "dense_mlp.gate_up": BF16,
    "dense_mlp.hidden": BF16,
    "dense_mlp.partial": BF16,
    "dense_mlp.out": BF16,
}
# A rank stride of 2**30 elements puts rank 2 beyond 2**31 elements: 32-bit offsets wrap.
_WIDE_STRIDE = 2**30

STOCK = Profile("stock", _SITES)
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"situ": "half_tanh", "tanh": "exponential"},
)

REGIMES = (
    Regime(
        "typical",
        ("F01", "F02", "F04", "F05", "F08", "F12"),
        "gates of a few units, so that tanh and sigmoid bend; ranks of different size; NaN behind every row",
    ),
    Regime("saturated", ("F02", "F03"), "gates and ups beyond both bounds: 4 and 25 are reached, and -0"),
    Regime(
        "cancelling_gates",
        ("F03",),
        "every gate from -14 to -20, where the identity form ends in steps and 0",
    ),
    Regime("outliers", ("F06",), "a few hidden states thousands of times larger, as residual streams have"),
    Regime("cancelling", ("F06",), "the ranks' partials nearly cancel"),
    Regime("one_hot", ("F01",), "every gate and up is an element of the weight"),
    Regime("zero_row", ("F08",), "a row of zeros gives a row of zeros"),
    Regime("nan_row", ("F51",), "one row holds a NaN: it must stay in that row"),
    Regime("wide_offsets", ("F50",), "ranks of both weights 2**30 elements apart: 32-bit offsets wrap"),
)


@dataclass
class DenseMlpArguments:
    """Dense MLP over all ranks. ``gate_up[rank]`` holds F gate rows, then F up rows; what lies behind the F
    columns of ``down`` must not be read. Every rank ends with the same ``out``. ``wide_ranks`` asks the arena
    to lay the ranks' weights so far apart that 32-bit offsets wrap."""

    x: Tensor = read("row column", "bf16")
    gate_up: Tensor = read("rank hidden2 column", "bf16")
    down: Tensor = read("rank column hidden", "bf16")
    out: Tensor = write("row column", "bf16")
    wide_ranks: bool = False


def build(case: Case) -> DenseMlpArguments:
    """Draw the arguments of a case on the CPU."""
    g, regime = generator(case), case.regime
    ranks, rows, width, hidden = case["ranks"], case["rows"], case["width"], case["hidden"]
    group = case.seed // 100
    gate_up = shared_weight("dense_mlp.gate_up", group, ranks, 2 * hidden, width, scale=1.6 / width**0.5)
    down = shared_weight("dense_mlp.down", group, ranks, width, hidden, scale=0.5 / hidden**0.5)
    x = normal(g, rows, width)
    if regime == "typical":
        x[-1] *= 2
    if regime == "saturated":
        x *= 12
        x[0] *= 40  # exp(2 u / 25) overflows
    if regime == "cancelling_gates":
        gate_up, x = _deep(g, gate_up, x)
    if regime == "outliers":
        x[:, outliers(g, width)] *= 2000
    if regime == "cancelling":
        gate_up, down = gate_up.clone(), down.clone()
        half = ranks // 2
        gate_up[half : 2 * half] = gate_up[:half]
        down[half : 2 * half] = -down[:half] * (1 + 0.01 * normal(g, half, width, 1))
    if regime == "one_hot":
        x = torch.zeros(rows, width)
        x[torch.arange(rows), torch.randperm(width, generator=g)[:rows]] = 1.5
    if regime == "zero_row":
        x[rows // 2] = 0
    if regime == "nan_row":
        x[rows // 2, width - 1] = float("nan")
    out = torch.zeros(rows, width, dtype=torch.bfloat16)
    return DenseMlpArguments(x.bfloat16(), gate_up, down, out, wide_ranks=regime == "wide_offsets")


def _deep(g: torch.Generator, gate_up: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """One column of the hidden state is 8, and its gate weights put every gate near -17."""
    gate_up, hidden = gate_up.clone(), gate_up.shape[1] // 2
    x[:, 0] = 8
    gate_up[:, :hidden] *= 0.4
    gate_up[:, :hidden, 0] = (-17 + 2 * torch.rand(gate_up.shape[0], hidden, generator=g) - 1).bfloat16() / 8
    return gate_up, x


def reference(ar: Arithmetic, a: DenseMlpArguments) -> dict[str, Value]:
    """bf16 of the sum over ranks of bf16(bf16(SiTU(g, u)) W_d^T), with g and u rounded to BF16."""
    x, half = ar.load(a.x), a.down.shape[2]
    partials = []
    for gate_up, down in zip(a.gate_up, a.down, strict=True):
        gate = ar.round(ar.matmul(x, gate_up[:half]), "dense_mlp.gate_up")
        up = ar.round(ar.matmul(x, gate_up[half:]), "dense_mlp.gate_up")
        hidden = ar.round(situ(ar, gate, up), "dense_mlp.hidden")
        partials.append(ar.round(ar.matmul(hidden, down), "dense_mlp.partial"))
    total = rank_sum(ar, ar.stack(partials, 0), 0, "dense_mlp.rank_sum")
    return {"out": ar.store(settled(ar, total, "dense_mlp.out"), "dense_mlp.out")}


def strides(a: DenseMlpArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each."""
    found: dict[str, tuple[int, ...]] = {
        name: (getattr(a, name).shape[1] + pitch, 1) for name, pitch in {"x": 32, "out": 48}.items()
    }
    for name, pitch in {"gate_up": 64, "down": 96}.items():
        _, rows, columns = getattr(a, name).shape
        apart = _WIDE_STRIDE if a.wide_ranks else rows * (columns + pitch) + 128
        found[name] = (apart, columns + pitch, 1)
    return found


def case(regime: str, seed: int, ranks: int, rows: int, **shape: int) -> Case:
    base = {"width": 256, "hidden": 96}
    return Case.of("dense_mlp", regime, seed, ranks=ranks, rows=rows, **(base | shape))


def _quick() -> list[Case]:
    """Both sides of every row threshold, 8 and 16 ranks and odd numbers of them, tails, every regime, one
    of the subject's hidden widths."""
    found = [case("typical", rows, 8, rows) for rows in (1, 2, 3)]
    found += [case("typical", rows, 4, rows) for rows in (16, 17, 32, 33)]
    found += [case("typical", 10 + rows, 16, rows, width=328, hidden=72) for rows in (1, 3)]
    found += [
        case("typical", 20, 1, 2, width=100, hidden=44),
        case("typical", 21, 3, 5, width=72, hidden=136),
    ]
    for number, regime in enumerate(REGIMES[1:]):
        ranks = 3 if regime.name == "wide_offsets" else 8
        found.append(case(regime.name, 40 + number, ranks, (2, 4)[number % 2]))
    found.append(case("cancelling_gates", 50, 1, 3, hidden=320))
    found += [case("typical", 50 + rows, 1, rows, hidden=320) for rows in (2, 3)]  # several steps of down's K
    found.append(case("wide_offsets", 51, 3, 1))
    return [*found, case("typical", 60, 1, 1, width=HIDDEN, hidden=128)]


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: see ``_quick``. full: the subject's shards at every prepared batch, and every regime there.

    Three ranks stand for 8 and 16: what a rank computes does not depend on their number, the sum over all is
    in the quick tier, and all ranks' weights would be 726 million numbers to draw.
    """
    found = _quick()
    if tier == "full":
        for parallel, hidden in SHARDS.items():
            real = {"width": HIDDEN, "hidden": hidden}
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
                found.append(case("typical", 100 * parallel + rows, 3, rows, **real))
            for number, regime in enumerate(REGIMES):
                # Synthetic strides beyond 2**31 elements need memory, not width.
                shape = {"width": 512, "hidden": 128} if regime.name == "wide_offsets" else real
                seed = 100 * parallel + 70 + number
                found.append(case(regime.name, seed, 3, (2, 4)[number % 2], **shape))
    return tuple(found)


CONTRACT = Contract(
    name="dense_mlp",
    summary="dense MLP of layer 0 over all ranks",
    arguments=DenseMlpArguments,
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
