"""The shared experts of one MoE layer over all ranks (operation 3.16 of the subject's specification).

g, u = bf16(h W_gu^T), s = bf16(SiTU(g, u)), partial = bf16(s W_d^T) on each rank, out = bf16(sum over ranks).

Catches: gate and up exchanged or interleaved, a wrong SiTU (beta, limit, form, wrong half), a rounding too
many or too few, lost tiles and splits of either product, unmasked tails, another rank's shard, a rank left
out or added twice, ranks summed in BF16 or (specialised) in another order, -0.0 left in what is published.
Cannot catch: mailboxes, peers' skew, and which SMs did the work (one process plays all ranks).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.regimes import generator, normal, outliers, shared_weight
from validation.contracts.situ import BETA, LINEAR_BETA, situ
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

if TYPE_CHECKING:
    from torch import Generator

HIDDEN = 7168
# Width of one rank's shard of the shared experts, by number of ranks.
WIDTHS = {8: 768, 16: 384}
# Mailboxes hold this many rows a rank, whatever the step's number of rows.
CAPACITY = 64
# From this many weights of one tensor on, neighbouring seeds share them.
LARGE = 1 << 22


@dataclass
class SharedExpertArguments:
    """``gate_up[rank]``: gate rows, then up rows, of that rank's shard; ``down[rank]`` its columns.

    ``partial[rank]`` is what that rank sends, ``out`` what every rank ends with. ``made`` are the partials
    that a backend sent: the sum is judged on them. ``wide`` asks the arena to lay the ranks of ``gate_up``,
    ``down`` and ``partial`` 2**30 elements apart, so that the third one lies beyond 2**31.
    """

    h: Tensor = read("row column", "bf16")
    gate_up: Tensor = read("rank channel column", "bf16")
    down: Tensor = read("rank column channel", "bf16")
    partial: Tensor = write("rank row column", "bf16")
    out: Tensor = write("row column", "bf16")
    beta: float = BETA
    linear_beta: float = LINEAR_BETA
    wide: bool = False
    made: Tensor | None = None

    @property
    def width(self) -> int:
        """Channels of one rank's shard."""
        return int(self.down.shape[2])


_SITES = {
    "shared_expert.gate_up": BF16,
    "shared_expert.hidden": BF16,
    "shared_expert.partial": BF16,
    "shared_expert.out": BF16,
}
STOCK = Profile("stock", _SITES, algebra={"shared_expert.rank_sum": "any"})
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"shared_expert.rank_sum": "rank"},
)

REGIMES = (
    Regime(
        "typical",
        ("F01", "F02", "F04", "F05", "F06", "F08", "F09", "F12", "F16", "F21", "F31", "F45", "F53"),
        "gates of both signs, every rank with weights of its own, mailboxes longer than the step",
    ),
    Regime(
        "saturated",
        ("F02", "F03", "F12"),
        "gates to +-100 and ups far beyond their limit, here not the usual ones: tanh and sigmoid end",
    ),
    Regime("small", ("F12", "F20"), "activations near 1e-5: SiTU is a product of small numbers"),
    Regime("outliers", ("F06",), "three activations hundreds of times larger than the rest"),
    Regime(
        "one_hot", ("F01", "F21", "F24"), "each row selects one column: gates and ups are weights, exactly"
    ),
    Regime("cancelling", ("F06", "F12", "F15"), "pairs of ranks send nearly opposite partials"),
    Regime("negative_zero", ("F36",), "a row of zeros of either sign, and partials that underflow to -0.0"),
    Regime("nan_row", ("F51",), "one row holds a NaN: it must stay in that row"),
    Regime("wide_offsets", ("F50",), "the third rank's weights and its mailbox lie beyond 2**31 elements"),
)


def build(case: Case) -> SharedExpertArguments:
    """Draw h [rows, hidden] and the shards of ``ranks`` ranks, ``width`` channels each, on the CPU."""
    g = generator(case)
    ranks, rows, hidden, width = case["ranks"], case["rows"], case["hidden"], case["width"]
    gate_up = _weight("gate_up", case, g, ranks, 2 * width, hidden, scale=1.1 / hidden**0.5)
    down = _weight("down", case, g, ranks, hidden, width, scale=0.9 / width**0.5)
    if case.regime == "cancelling":
        gate_up, down = _opposite_pairs(gate_up, down, g)
    if case.regime == "negative_zero":
        down = down.clone()
        down[:, ::3] = -down[:, ::3].abs() * 2.0**-72
        down[:, 1::3] *= 0
    return SharedExpertArguments(
        h=_activations(case, g).bfloat16(),
        gate_up=gate_up,
        down=down,
        partial=torch.zeros(ranks, rows, hidden, dtype=torch.bfloat16),
        out=torch.zeros(rows, hidden, dtype=torch.bfloat16),
        beta=0.75 * BETA if case.regime == "saturated" else BETA,
        linear_beta=0.75 * LINEAR_BETA if case.regime == "saturated" else LINEAR_BETA,
        wide=case.regime == "wide_offsets",
    )


def _weight(name: str, case: Case, g: Generator, *shape: int, scale: float) -> Tensor:
    if torch.Size(shape).numel() >= LARGE:
        return shared_weight(f"shared_expert.{name}", case.seed // 100, *shape, scale=scale)
    return (normal(g, *shape) * scale).bfloat16()


def _opposite_pairs(gate_up: Tensor, down: Tensor, g: Generator) -> tuple[Tensor, Tensor]:
    """Ranks 2i and 2i + 1 agree in gate and up; their down shards are opposite but for a hundredth."""
    gate_up, down = gate_up.clone(), down.clone()
    pairs = down.shape[0] // 2
    near = 1 + 1e-2 * normal(g, pairs, down.shape[1], 1)
    for i in range(pairs):
        gate_up[2 * i + 1] = gate_up[2 * i]
        down[2 * i + 1] = -(down[2 * i].float() * near[i]).bfloat16()
    return gate_up, down


def _activations(case: Case, g: Generator) -> Tensor:
    rows, hidden = case["rows"], case["hidden"]
    h = normal(g, rows, hidden) * 1.4
    if case.regime == "saturated":
        h *= 12
        h[0] *= 3
    if case.regime == "small":
        h *= 1e-5
    if case.regime == "outliers":
        h[:, outliers(g, hidden)] *= 300
    if case.regime == "one_hot":
        h = torch.zeros(rows, hidden)
        h[torch.arange(rows), torch.randperm(hidden, generator=g)[torch.arange(rows) % hidden]] = 4.0
    if case.regime == "negative_zero":
        h *= 2.0**-35
        h[rows // 2] = 0.0
        h[rows // 2, ::2] = -0.0
    if case.regime == "nan_row":
        h[rows // 2, hidden - 1] = float("nan")
    return h


def reference(ar: Arithmetic, a: SharedExpertArguments) -> dict[str, Value]:
    """What every rank sends, what all end with, and that nothing sent or stored is -0.0."""
    h = ar.load(a.h)
    partial = ar.stack([shard(ar, h, a, rank) for rank in range(a.gate_up.shape[0])], 0)
    sent = ar.round(partial, "shared_expert.partial") if a.made is None else ar.load(a.made)
    out = ar.rank_sum(sent, 0, "shared_expert.rank_sum")
    return {
        "partial": ar.store(partial, "shared_expert.partial"),
        "out": ar.store(out, "shared_expert.out"),
        "partial_negative_zeros": ar.load(torch.zeros_like(partial.mean)),
        "out_negative_zeros": ar.load(torch.zeros_like(out.mean)),
    }


def shard(ar: Arithmetic, h: Value, a: SharedExpertArguments, rank: int) -> Value:
    """One rank's partial before it is rounded. [row, column]"""
    both = ar.round(ar.matmul(h, a.gate_up[rank]), "shared_expert.gate_up")
    gate, up = both[:, : a.width], both[:, a.width :]
    hidden = ar.round(situ(ar, gate, up, a.beta, a.linear_beta), "shared_expert.hidden")
    return ar.matmul(hidden, a.down[rank])


def strides(a: SharedExpertArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each; what is sent lies in mailboxes of ``CAPACITY`` rows a rank."""
    rows, hidden = a.h.shape
    pitch = {"h": hidden + 32, "gate_up": hidden + 64, "down": a.width + 16, "partial": hidden + 48}

    def ranks(dense: int) -> int:
        return 2**30 if a.wide else dense

    return {
        "h": (pitch["h"], 1),
        "gate_up": (ranks(2 * a.width * pitch["gate_up"] + 128), pitch["gate_up"], 1),
        "down": (ranks(hidden * pitch["down"] + 64), pitch["down"], 1),
        "partial": (ranks(max(rows, CAPACITY) * pitch["partial"]), pitch["partial"], 1),
        "out": (hidden + 96, 1),
    }


def _case(regime: str, seed: int, ranks: int, rows: int, hidden: int, width: int) -> Case:
    return Case.of("shared_expert", regime, seed, ranks=ranks, rows=rows, hidden=hidden, width=width)


BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: both sides of every batch threshold, tails of every axis, every regime, at small widths; one
    rank at the real width of TP16. full: TP8 and TP16 at every prepared batch and in every regime."""
    found = [
        _case("typical", rows, 8 if rows % 2 else 16, rows, 192, 32) for rows in (1, 2, 3, 8, 16, 17, 33, 65)
    ]
    found += [_case("typical", 100, 3, 2, 300, 20), _case("typical", 101, 3, 5, 200, 76)]
    for i, regime in enumerate(REGIMES[1:]):
        ranks = 3 if regime.name == "wide_offsets" else 8
        found.append(_case(regime.name, 110 + i, ranks, (2, 5)[i % 2], 256, 40))
    found += [_case("typical", 130, 1, 1, HIDDEN, WIDTHS[16]), _case("typical", 131, 1, 4, HIDDEN, 96)]
    # One or two rows, where the loop above has five; and more channels and columns than a program holds.
    found += [_case("negative_zero", 132, 8, 2, 256, 40), _case("wide_offsets", 133, 3, 2, 256, 40)]
    found += [_case("saturated", 134, 8, 5, 256, 40), _case("typical", 135, 1, 2, 8264, 12)]
    found += [_case("typical", 136 + i, 1, rows, 72, 600) for i, rows in enumerate((2, 3))]
    if tier == "full":
        for ranks, width in WIDTHS.items():
            group = 100 * ranks
            found += [_case("typical", group + rows, ranks, rows, HIDDEN, width) for rows in BATCHES]
            for i, regime in enumerate(REGIMES[1:-1]):
                found.append(_case(regime.name, group + 70 + i, ranks, (2, 5, 16)[i % 3], HIDDEN, width))
    return tuple(found)


def negative_zeros(stored: Tensor) -> Tensor:
    """1 where ``stored`` is -0.0, else 0. float32"""
    return ((stored == 0) & torch.signbit(stored)).float()


_SENT, _ROWS = ("rank", "row", "column"), ("row", "column")

CONTRACT = Contract(
    name="shared_expert",
    summary="shared experts: gate and up, SiTU, down, sum over ranks",
    arguments=SharedExpertArguments,
    outputs=(
        Output(
            "partial", _SENT, "bf16", lambda a: a.partial, slices=(("rank",), ("row",), ("rank", "column/64"))
        ),
        Output("out", _ROWS, "bf16", lambda a: a.out, slices=(("row",), ("row", "column/64"))),
        Output("partial_negative_zeros", _SENT, "fp32", lambda a: negative_zeros(a.partial), exact=True),
        Output("out_negative_zeros", _ROWS, "fp32", lambda a: negative_zeros(a.out), exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
    adopt=lambda clean, outcome: dataclasses.replace(clean, made=outcome.partial.clone()),
)
