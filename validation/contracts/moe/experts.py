"""Routed experts of one rank: MXFP4 weights on MXFP8 activations, grouped by expert (operation 3.15).

Per row and slot: [g; u] = W13 x in FP32, h = SiTU(g, u) in FP32, h to MXFP8 by blocks of 32 hidden columns,
row = bf16(W2 h); then the partial bf16(sum over slots of row * weight). The rank sum belongs to the tail.

Catches: pairs lost, doubled or sent to another expert, nibble and scale layouts, every rule of the block
scale, another activation, padding or idle experts that are read, roundings left out or added, a lost tile.
Cannot catch: a backend that keeps activations in BF16 as stock may (it declares another profile), and whether
the checkpoint was shuffled rightly: weights are plain here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Tier
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.contracts.moe.experts_inputs import REGIMES, build
from validation.contracts.situ import situ
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.blocks import BLOCK, dequantized, quantize
from validation.numerics.formats import BF16, E4M3
from validation.numerics.profile import Profile
from validation.numerics.value import Value

LATENT = 3584
# Hidden columns of one rank, live and as stored, at 8 and 16 ranks.
HIDDEN = {8: (384, 384), 16: (192, 256)}
SLOTS = 16

_SITES = {"experts.hidden": E4M3, "experts.row": BF16, "experts.out": BF16}
# Stock leaves activations to the backend; taken here is the one that quantises the hidden, without the floor
# rule, which only the specialised path has (table 2.3).
STOCK = Profile("stock", _SITES, algebra={"experts.hidden": "no_saturation"})
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"experts.hidden": "arguments"},
)

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpacked(nibbles: Tensor, scales: Tensor) -> Tensor:
    """MXFP4 bytes [.., k / 2] and scale bytes [.., k / 32] as float64 [.., k]."""
    table = torch.tensor(_E2M1 + tuple(-v for v in _E2M1), dtype=torch.float64, device=nibbles.device)
    codes = torch.stack([nibbles & 15, nibbles >> 4], -1).flatten(-2)
    return dequantized(table[codes.int()], scales)


def latent(a: ExpertsArguments) -> Tensor:
    """The rows that the bytes mean. float64 [row, column]"""
    return dequantized(a.x.contiguous().view(torch.float8_e4m3fn).double(), a.x_scale)


def reference(ar: Arithmetic, a: ExpertsArguments) -> dict[str, Value]:
    """Expert by expert; what a row's slots give is put back in their order."""
    x = latent(a)
    rows, places = [], []
    for expert in a.ids.unique().tolist():
        row, slot = (a.ids == expert).nonzero(as_tuple=True)
        hidden = _hidden(ar, a, ar.load(x[row]), expert)
        blocks = a.live // BLOCK
        w2 = unpacked(a.w2[expert, :, : a.live // 2], a.w2_scale[expert, :, :blocks])
        rows.append(ar.matmul(hidden, w2))
        places.append(row * a.ids.shape[1] + slot)
    order = torch.cat(places).argsort()
    every = ar.cat(rows, 0).map(lambda part: part[order].unflatten(0, a.ids.shape))
    weights = ar.load(a.weights.unsqueeze(-1))
    out = ar.dot(ar.round(every, "experts.row"), weights, 1)
    found = {"out": ar.store(out, "experts.out")}
    if a.rows is not None:
        found["rows"] = ar.store(every, "experts.row")
    # A sum that starts from +0 never ends at -0.
    return found | {"minus_zero": Value(ar, torch.zeros_like(out.mean))}


def _hidden(ar: Arithmetic, a: ExpertsArguments, x: Value, expert: int) -> Value:
    """SiTU of gate and up of the live hidden columns, stored by blocks. [row, live]"""
    halves = []
    for start in (0, a.padded):
        half = slice(start, start + a.live)
        halves.append(ar.matmul(x, unpacked(a.w13[expert, half], a.w13_scale[expert, half])))
    rule = ar.algebra("experts.hidden", "arguments")
    rule = a.hidden_rule if rule == "arguments" else rule
    return quantize(ar, situ(ar, halves[0], halves[1]), "experts.hidden", rule)


def minus_zeros(a: ExpertsArguments) -> Tensor:
    """1 where the partial is -0, which marks words that nobody wrote yet."""
    return ((a.out == 0) & torch.signbit(a.out)).float()


def _case(regime: str, seed: int, rows: int, **shape: int) -> Case:
    small = {"experts": 16, "slots": 2, "width": 128, "live": 64, "padded": 64, "keep": 0}
    return Case.of("experts", regime, seed, rows=rows, **(small | shape))


def _real(regime: str, seed: int, rows: int, ranks: int, experts: int) -> Case:
    live, padded = HIDDEN[ranks]
    keep = int(rows <= (4 if ranks == 8 else 8))
    shape = {
        "experts": experts,
        "slots": SLOTS,
        "width": LATENT,
        "live": live,
        "padded": padded,
        "keep": keep,
    }
    return _case(regime, seed, rows, **shape)


_ANY_SHAPE = tuple(r.name for r in REGIMES if r.name not in ("typical", "padded", "distinct", "wide_offsets"))
_PADDED = {"live": 64, "padded": 96}


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime at small widths, both sides of the batch thresholds 4 and 8, 16 and 17 rows of one
    expert, 16 slots. full: both parallelisms at every prepared batch and every regime at the real shape; all
    896 experts once each."""
    found = [_case("typical", rows, rows, keep=int(rows <= 4)) for rows in (4, 5, 9)]
    found += [_case("typical", 1, 1, keep=1, slots=4, width=256)]
    found += [
        _case(name, 20 + i, 5 - 3 * (i % 2), keep=i % 2, width=256) for i, name in enumerate(_ANY_SHAPE)
    ]
    found += [_case("padded", 40, 2, **_PADDED), _case("padded", 41, 6, **_PADDED, keep=1)]
    found += [
        _case("one_expert", 50 + rows, rows, slots=2, experts=3, live=32, padded=32) for rows in (16, 17, 33)
    ]
    found += [_case("distinct", 52, 3, experts=8)]
    found += [_case("typical", 53, 1, slots=16, experts=24, width=96, live=32, padded=32)]
    # More columns than one program of any kernel holds.
    found += [_case("typical", 53 + rows, rows, experts=3, width=4160, live=32, padded=32) for rows in (1, 5)]
    found += [_case("wide_offsets", 60 + rows, rows, experts=4) for rows in (2, 5)]
    if tier == "full":
        found += [case for number, ranks in enumerate(HIDDEN) for case in _full(number, ranks)]
    return tuple(found)


def _full(number: int, ranks: int) -> list[Case]:
    seed = 1000 * (number + 1)
    batches = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
    found = [_real("typical", seed + rows, rows, ranks, 64) for rows in batches]
    found += [
        _real(name, seed + 80 + i, (1, 3, 8, 33)[i % 4], ranks, 64) for i, name in enumerate(_ANY_SHAPE)
    ]
    found += [_real("distinct", seed + 95, 4, ranks, 64)]
    found += [_real("padded", seed + 96, rows, ranks, 64) for rows in (2, 16) if ranks == 16]
    return [*found, _real("typical", seed + 100, 64, ranks, 896)]


# Experts 2 and 3 of a wide case lie beyond 2**31 bytes: 32-bit offsets wrap.
_WIDE = 2**30


def strides(a: ExpertsArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each, experts with holes between them."""
    found: dict[str, tuple[int, ...]] = {
        "x": (a.x.shape[1] + 32, 1),
        "x_scale": (a.x_scale.shape[1] + 3, 1),
        "ids": (a.ids.shape[1] + 1, 1),
        "weights": (a.weights.shape[1] + 2, 1),
        "out": (a.out.shape[1] + 64, 1),
    }
    for name, pitch, hole in (("w13", 16, 256), ("w13_scale", 8, 64), ("w2", 32, 512), ("w2_scale", 4, 128)):
        _, rows, width = getattr(a, name).shape
        row = width + pitch
        found[name] = (_WIDE if a.wide and name in ("w13", "w2") else rows * row + hole, row, 1)
    if a.rows is not None:
        width = a.rows.shape[2]
        found["rows"] = ((width + 16) * a.rows.shape[1] + 128, width + 16, 1)
    return found


CONTRACT = Contract(
    name="experts",
    summary="routed experts of one rank, MXFP4 weights and MXFP8 activations",
    arguments=ExpertsArguments,
    outputs=(
        Output(
            "rows",
            ("row", "slot", "column"),
            "bf16",
            lambda a: a.rows,
            slices=(("row",), ("row", "slot"), ("column/64",)),
            shared=("column",),
            present=lambda a: a.rows is not None,
        ),
        Output(
            "out",
            ("row", "column"),
            "bf16",
            lambda a: a.out,
            slices=(("row",), ("row", "column/64")),
            shared=("column",),
        ),
        Output("minus_zero", ("row", "column"), "fp32", minus_zeros, exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
