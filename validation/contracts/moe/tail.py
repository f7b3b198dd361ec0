"""The tail of one MoE layer over all ranks (operation 3.17 of the subject's specification).

z = bf16(sum over ranks of the latent partials), n = bf16(z rsqrt(mean z^2 + eps) gamma) with every square
rounded to BF16 (specialised, and stock's first tier), up = bf16(n W_up^T) on each rank's columns,
out = bf16(up + bf16(sum over ranks of the shared partials)).

At small batches one rank's own partial arrives as the rows of its 16 expert slots with their weights, and is
combined here: bf16 of the FP32 sum over slots in order.

Catches: ranks or slots lost, doubled, reordered (specialised) or summed in BF16, squares not rounded, a wrong
eps or divisor, gamma's convention, a norm over padded columns, lost K slices, W_up of another rank, the
shared sum added before a rounding it must follow, rows of the mailboxes beyond the step. Cannot catch:
parities, re-arming and the two-shot exchange (one process plays all ranks; two-shot sums are in rank order,
too).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.moe.shared import BATCHES, CAPACITY, HIDDEN, LARGE, negative_zeros
from validation.contracts.regimes import generator, normal, shared_weight
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction
from validation.numerics.value import Value

LATENT = 3584
SLOTS = 16
EPS = 1e-5


@dataclass
class MoeTailArguments:
    """``latent[rank]`` and ``shared[rank]``: what that rank sent; ``up[rank]``: its rows of the
    up-projection, whose results are its columns of ``out``.

    ``own_rank`` >= 0: that rank's latent partial was not sent. It is the sum over its slots of
    ``rows[16 * row + slot] * weights[row, slot]``, and ``latent[own_rank]`` must not be read. Otherwise
    ``rows`` and ``weights`` must not be read. ``wide`` asks the arena to lay the ranks of ``latent`` 2**30
    elements apart.
    """

    latent: Tensor = read("rank row latent", "bf16")
    rows: Tensor = read("pair latent", "bf16")
    weights: Tensor = read("row slot", "bf16")
    shared: Tensor = read("rank row column", "bf16")
    gamma: Tensor = read("latent", "bf16")
    up: Tensor = read("rank channel latent", "bf16")
    out: Tensor = write("row column", "bf16")
    own_rank: int = -1
    eps: float = EPS
    wide: bool = False


_SITES = {
    "moe_tail.combined": BF16,
    "moe_tail.z": BF16,
    "moe_tail.square": None,
    "moe_tail.normed": BF16,
    "moe_tail.up": BF16,
    "moe_tail.shared": BF16,
    "moe_tail.out": BF16,
}
_ROUNDED_SQUARES = _SITES | {"moe_tail.square": BF16}
# Stock leaves the order of the ranks to the framework. Its second tier, which keeps the squares in FP32, is
# the one taken here; ``stock_fused`` is its first, the fused tail.
_IN_ORDER = dict.fromkeys(("moe_tail.combine", "moe_tail.latent_sum", "moe_tail.shared_sum"), "rank")
_SUMS = Reduction(chain=256)
STOCK = Profile("stock", _SITES, optional=frozenset({"moe_tail.square"}), sums=_SUMS)
STOCK_FUSED = Profile("stock_fused", _ROUNDED_SQUARES, optional=frozenset({"moe_tail.square"}), sums=_SUMS)
SPECIALIZED = Profile(
    "specialized",
    _ROUNDED_SQUARES,
    sums=_SUMS,
    functions="triton",
    functions_on_cuda="triton",
    algebra=_IN_ORDER,
)

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F06", "F08", "F09", "F12", "F15", "F16", "F24", "F31", "F45", "F53"),
        "gamma far from 1, unequal ranks, mailboxes longer than the step",
    ),
    Regime(
        "combine",
        ("F06", "F08", "F12", "F15", "F16"),
        "one rank's slots are combined here; its mailbox holds NaN",
    ),
    Regime("small", ("F12", "F20"), "latent rows near 1e-3: eps, here not the usual one, decides the norm"),
    Regime(
        "zero",
        ("F12", "F36"),
        "rows next to zero, of either sign: eps alone keeps the norm finite; sums that BF16 makes -0",
    ),
    Regime("huge", ("F03", "F20"), "latent rows near 1e16: squares near the end of FP32's range"),
    Regime(
        "cancelling",
        ("F06",),
        "the first and the last rank (and slot) cancel, far larger than others: the order of FP32 sums shows",
    ),
    Regime("one_hot", ("F01", "F21"), "a latent row with one column: out is a column of W_up"),
    Regime("one_sided", ("F12", "F31"), "squares that BF16 all rounds up: what is lost or gained adds up"),
    Regime("nan_row", ("F51",), "one row holds a NaN: it must stay in that row"),
    Regime("wide_offsets", ("F50",), "the third rank's partials lie beyond 2**31 elements"),
)


def build(case: Case) -> MoeTailArguments:
    """Draw the partials of ``ranks`` ranks, gamma and the shards of W_up, on the CPU."""
    g = generator(case)
    ranks, rows, width, channels = case["ranks"], case["rows"], case["latent"], case["channels"]
    own = case["own"]
    latent = _latent(case, normal(g, ranks, rows, width) * 0.4 * torch.linspace(0.5, 2, ranks)[:, None, None])
    pairs = normal(g, rows * SLOTS if own >= 0 else 1, width) * 0.9
    weights = 0.02 + torch.rand(rows if own >= 0 else 1, SLOTS, generator=g) * 0.15
    if own >= 0 and case.regime == "cancelling":
        slots = pairs.unflatten(0, (rows, SLOTS))
        slots[:, 0] = (slots[:, 0] * 2.0**16).bfloat16().float()
        slots[:, -1], weights[:, -1] = -slots[:, 0], weights[:, 0]
    if own >= 0:
        latent[own] = float("nan")
    else:
        pairs[:], weights[:] = float("nan"), float("nan")
    shared = normal(g, ranks, rows, ranks * channels) * 0.3
    if case.regime == "zero":
        shared[:, rows // 2] = -0.0
        shared[:, :, ::5] = -0.0
    if case.regime == "cancelling":
        shared[0] = (shared[0] * 2.0**17).bfloat16().float()
        shared[-1] = -shared[0]
    gamma = 0.3 + 1.5 * torch.rand(width, generator=g)
    shape, scale = (ranks, channels, width), 1.3 / width**0.5
    big = torch.Size(shape).numel() >= LARGE
    up = (
        shared_weight("moe_tail.up", case.seed // 100, *shape, scale=scale)
        if big
        else (normal(g, *shape) * scale).bfloat16()
    )
    if case.regime == "zero":  # with ``_latent``: sums near -2**-140
        up = up.clone()
        up.flatten(0, 1)[::5] = -up.flatten(0, 1)[::5].abs() * 2.0**-30
    return MoeTailArguments(
        latent=latent.bfloat16(),
        rows=pairs.bfloat16(),
        weights=weights.bfloat16(),
        shared=shared.bfloat16(),
        gamma=gamma.bfloat16(),
        up=up,
        out=torch.zeros(rows, ranks * channels, dtype=torch.bfloat16),
        own_rank=own,
        eps=3 * EPS if case.regime in ("small", "zero") else EPS,
        wide=case.regime == "wide_offsets",
    )


def _latent(case: Case, latent: Tensor) -> Tensor:
    """The partials [rank, row, latent] of a regime, made of normal ones."""
    ranks, rows, width = latent.shape
    if case.regime == "small":
        return latent * 1e-3
    if case.regime == "zero":
        latent[:, rows // 2] = 0.0
        latent[:, rows // 2, ::3] = -0.0
        latent[0, rows // 2, 1::3] = 2.0**-120
        latent[1:, 0] = -latent[:1, 0] * 0
    if case.regime == "huge":
        return latent * 1e16
    if case.regime == "cancelling":
        latent[0] = (latent[0] * 2.0**16).bfloat16().float()
        latent[-1] = -latent[0]
    if case.regime == "one_hot":
        at = (torch.arange(rows) * 37 + 5) % width
        latent = torch.zeros_like(latent)
        latent[:, torch.arange(rows), at] = torch.linspace(0.5, 2, ranks)[:, None]
    if case.regime == "one_sided":
        # In units of 1/128 the squares are 146.63 and 202.51: BF16 rounds both up by a quarter of a percent.
        magnitude = torch.where(latent[1].abs() < latent[1].abs().median(), 1 + 9 / 128, 1 + 33 / 128)
        latent = torch.cat([torch.copysign(magnitude, latent[0])[None], torch.zeros_like(latent[1:])])
    if case.regime == "nan_row":
        latent[ranks - 1, rows // 2, width - 1] = float("nan")
    return latent


def reference(ar: Arithmetic, a: MoeTailArguments) -> dict[str, Value]:
    """What every rank ends with, and that nothing stored is -0.0."""
    normed = norm(ar, latent_sum(ar, a), a)
    up = ar.cat([ar.matmul(normed, shard) for shard in a.up.unbind(0)], -1)
    shared = ar.round(ar.rank_sum(ar.load(a.shared), 0, "moe_tail.shared_sum"), "moe_tail.shared")
    out = ar.round(up, "moe_tail.up") + shared
    return {
        "out": ar.store(out, "moe_tail.out"),
        "negative_zeros": ar.load(torch.zeros_like(out.mean)),
    }


def latent_sum(ar: Arithmetic, a: MoeTailArguments) -> Value:
    """z = bf16(sum of the ranks' partials). [row, latent]"""
    parts = [ar.load(sent) for sent in a.latent.unbind(0)]
    if a.own_rank >= 0:
        parts[a.own_rank] = combined(ar, a)
    return ar.round(ar.rank_sum(ar.stack(parts, 0), 0, "moe_tail.latent_sum"), "moe_tail.z")


def combined(ar: Arithmetic, a: MoeTailArguments) -> Value:
    """bf16(sum over slots of row * weight): products of BF16 numbers are exact in FP32. [row, latent]"""
    rows = ar.load(a.rows.unflatten(0, (-1, a.weights.shape[1])))
    terms = rows * ar.load(a.weights.unsqueeze(-1))
    return ar.round(ar.rank_sum(terms, 1, "moe_tail.combine"), "moe_tail.combined")


def norm(ar: Arithmetic, z: Value, a: MoeTailArguments) -> Value:
    """n = bf16(z rsqrt(mean of squares + eps) gamma). [row, latent]"""
    squares = ar.round(ar.square(z), "moe_tail.square")
    inverse = ar.rsqrt(ar.sum(squares, -1, keepdim=True) * (1.0 / z.shape[-1]) + a.eps)
    return ar.round(z * inverse * ar.load(a.gamma), "moe_tail.normed")


def strides(a: MoeTailArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each; what ranks sent lies in mailboxes of ``CAPACITY`` rows a rank."""
    _, rows, width = a.latent.shape
    columns, channels = a.out.shape[1], a.up.shape[1]
    held = max(rows, CAPACITY)
    return {
        "latent": (2**30 if a.wide else held * (width + 32), width + 32, 1),
        "rows": (width + 64, 1),
        "weights": (SLOTS + 16, 1),
        "shared": (held * (columns + 48), columns + 48, 1),
        "up": (channels * (width + 16) + 64, width + 16, 1),
        "out": (columns + 96, 1),
    }


def _case(regime: str, seed: int, ranks: int, rows: int, latent: int, channels: int, own: int = -1) -> Case:
    shape = {"ranks": ranks, "rows": rows, "latent": latent, "channels": channels, "own": own}
    return Case.of("moe_tail", regime, seed, **shape)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: both sides of every batch threshold with and without slots to combine, tails of every axis,
    every regime, at small widths; two ranks at the real latent width. full: TP8 and TP16 at every prepared
    batch (the slots come to the tail up to 4 and 8 rows) and in every regime."""
    found = []
    for rows in (1, 2, 3, 5, 8, 16, 17, 33, 63, 64, 65):
        ranks = 16 if rows in (2, 8, 16) else 8
        found.append(_case("typical", rows, ranks, rows, 256, 24))
    owners = ((1, 0), (2, 5), (3, 7))
    found += [_case("combine", 70 + rows, 8, rows, 256, 24, own=own) for rows, own in owners]
    found += [_case("typical", 80, 3, 2, 300, 20), _case("typical", 81, 3, 5, 200, 76)]
    for i, regime in enumerate(REGIMES[2:]):
        ranks = 3 if regime.name == "wide_offsets" else 8
        found.append(_case(regime.name, 110 + i, ranks, (2, 5)[i % 2], 256, 40))
    found += [_case("zero", 120, 8, 2, 256, 24), _case("cancelling", 121, 8, 2, 256, 24, own=3)]
    # The NaN row lies behind the tail of the row before it: read there, times zero it does not vanish.
    found += [_case("nan_row", 122, 8, 5, 300, 40)]
    found += [_case("typical", 130, 2, 1, LATENT, 40), _case("combine", 131, 2, 3, LATENT, 40, own=1)]
    if tier == "full":
        for ranks, combines in ((8, 4), (16, 8)):
            group, channels = 100 * ranks, HIDDEN // ranks
            for rows in (*BATCHES, 63):
                found.append(_case("typical", group + rows, ranks, rows, LATENT, channels))
                if rows <= combines:
                    found.append(_case("combine", group + 70 + rows, ranks, rows, LATENT, channels, own=rows))
            for i, regime in enumerate(REGIMES[2:-1]):
                found.append(_case(regime.name, group + 80 + i, ranks, (2, 5, 16)[i % 3], LATENT, channels))
    return tuple(found)


_AXES = ("row", "column")

CONTRACT = Contract(
    name="moe_tail",
    summary="latent sum and norm, up-projection, shared sum: the end of a MoE layer",
    arguments=MoeTailArguments,
    outputs=(
        Output("out", _AXES, "bf16", lambda a: a.out, slices=(("row",), ("row", "column/64"))),
        Output("negative_zeros", _AXES, "fp32", lambda a: negative_zeros(a.out), exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "stock_fused": STOCK_FUSED, "specialized": SPECIALIZED},
    strides=strides,
)
