"""MLA value up-projection and output gate (operation 3.9 of the subject).

Catches: a lost rounding or one too many, BF16 partial sums, a lost tile of the latent, the wrong head, row or
gate, the gate's function, padding requests that are not zeroed or zeroed by a product, lengths taken by token
instead of request. Cannot catch: an honest order of the FP32 sum that differs, ordering against the
attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.regimes import generator, normal, outliers, shared_weight
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from validation.numerics.arithmetic import Arithmetic
    from validation.numerics.value import Value

_SITES = {"mla_value.v": BF16, "mla_value.out": BF16}
STOCK = Profile("stock", _SITES, sums=Reduction(chain=256))
SPECIALIZED = Profile(
    "specialized", _SITES, sums=Reduction(chain=256), functions="triton", functions_on_cuda="triton"
)

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F06", "F08", "F09", "F12"),
        "independent values; NaN before and behind the gate's columns",
    ),
    Regime("gate_bounds", ("F02", "F12"), "gates from -80 to 80: sigmoids near 0, 1 and between"),
    Regime("cancelling", ("F06",), "latents in pairs of opposite sign: the sum is a thousandth of its terms"),
    Regime("outliers", ("F06",), "three latent columns thousands of times larger than the rest"),
    Regime(
        "padding",
        ("F08", "F23", "F31", "F45"),
        "requests of length 0 and below, full of NaN: rows of zeros, chosen by request",
    ),
    Regime("nan_row", ("F51",), "a NaN in one head's latent and one in a gate: they must stay there"),
    Regime("wide_offsets", ("F50",), "rows of the projection more than 2**31 elements apart"),
)

_MARGIN = 24


@dataclass
class MlaValueArguments:
    """out[row, head] = bf16(bf16(latent W_UV) * sigmoid(gate)), zero where the request has no key.

    B = R * ``tokens`` rows; row t belongs to request t // ``tokens``. The gate of head h is the columns
    ``gate_start`` + h * V on of ``projected``; the columns before (q_a, kv latent, k_pe) and behind must not
    be read. ``lengths`` <= 0: padding, whose latent and gate may be anything. ``wide_rows`` asks the arena to
    lay rows of ``projected`` 2**30 elements apart.
    """

    latent: Tensor = read("row head latent", "bf16")
    projected: Tensor = read("row column", "bf16")
    w_uv: Tensor = read("head latent v", "bf16")
    lengths: Tensor = read("request", "i32")
    out: Tensor = write("row channel", "bf16")
    heads: int = 12
    tokens: int = 1
    gate_start: int = 0
    wide_rows: bool = False

    @property
    def dim(self) -> int:
        """Value dimension of a head."""
        return int(self.w_uv.shape[2])

    @property
    def gate(self) -> Tensor:
        """The gate's columns: a view [row, head, v] of ``projected``."""
        width = self.heads * self.dim
        columns = self.projected[:, self.gate_start : self.gate_start + width]
        return columns.unflatten(1, (self.heads, self.dim))

    @property
    def live(self) -> Tensor:
        """Rows of requests that have keys. bool [row]"""
        return (self.lengths > 0).repeat_interleave(self.tokens)


def build(case: Case) -> MlaValueArguments:
    """Draw the arguments of a case on the CPU."""
    g = generator(case)
    rows, heads, latent, dim = case["requests"] * case["tokens"], case["heads"], case["latent"], case["dim"]
    width, start = heads * dim, 5 * latent + 8
    a = MlaValueArguments(
        latent=normal(g, rows, heads, latent) * 0.7,
        projected=torch.full((rows, start + width + _MARGIN), float("nan")),
        w_uv=shared_weight("mla_w_uv", case.seed // 100, heads, latent, dim, scale=1.3 / latent**0.5),
        lengths=torch.randint(1, 5000, (case["requests"],), generator=g, dtype=torch.int32),
        out=torch.zeros(rows, width, dtype=torch.bfloat16),
        heads=heads,
        tokens=case["tokens"],
        gate_start=start,
        wide_rows=case.regime == "wide_offsets",
    )
    a.gate.copy_(1.5 * normal(g, rows, heads, dim))
    _REGIME_CHANGES.get(case.regime, lambda g, a: None)(g, a)
    a.latent, a.projected = a.latent.bfloat16(), a.projected.bfloat16()
    return a


def _gate_bounds(g: Generator, a: MlaValueArguments) -> None:
    a.gate.mul_(20).clamp_(-80, 80)


def _cancelling(g: Generator, a: MlaValueArguments) -> None:
    """Each pair of latents is of opposite sign, each pair of weights equal but for a thousandth."""
    half = a.latent.shape[2] // 2
    first = a.latent[..., :half].bfloat16().float()
    a.latent[..., half : 2 * half] = -first * (1 + 2.0**-7 * torch.sign(normal(g, *first.shape)))
    a.w_uv = torch.cat([a.w_uv[:, :half], a.w_uv[:, :half], a.w_uv[:, 2 * half :]], 1).contiguous()


def _outliers(g: Generator, a: MlaValueArguments) -> None:
    a.latent[..., outliers(g, a.latent.shape[2])] *= 2000


def _padding(g: Generator, a: MlaValueArguments) -> None:
    """The first request has length 0, one in the middle -3, the last 0; of two requests the first alone."""
    requests = len(a.lengths)
    a.lengths[0] = 0
    if requests > 2:
        a.lengths[-1], a.lengths[requests // 2] = 0, -3
    a.latent[~a.live] = float("nan")
    a.gate[~a.live] = float("nan")


def _nan_row(g: Generator, a: MlaValueArguments) -> None:
    row = a.latent.shape[0] // 2
    a.latent[row, 0, 5] = float("nan")
    a.gate[row, -1, 3] = float("nan")


_REGIME_CHANGES = {
    "gate_bounds": _gate_bounds,
    "cancelling": _cancelling,
    "outliers": _outliers,
    "padding": _padding,
    "nan_row": _nan_row,
}


def reference(ar: Arithmetic, a: MlaValueArguments) -> dict[str, Value]:
    """[row, head, v]; padding rows are selected away, not multiplied."""
    latent = ar.load(a.latent)
    v = ar.stack([ar.matmul(latent[:, h], a.w_uv[h].T) for h in range(a.heads)], 1)
    gated = ar.round(v, "mla_value.v") * ar.sigmoid(ar.load(a.gate))
    return {"out": ar.store(ar.where(a.live[:, None, None], gated, 0.0), "mla_value.out")}


# Three rows of this many elements reach 2**31: 32-bit offsets wrap.
_WIDE_STRIDE = 2**30


def strides(a: MlaValueArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each; a ``wide`` case spreads the rows of the projection."""
    _, heads, latent = a.latent.shape
    return {
        "latent": (heads * latent + 64, latent, 1),
        "projected": (_WIDE_STRIDE if a.wide_rows else a.projected.shape[1] + 40, 1),
        "w_uv": (latent * a.dim + 32, a.dim, 1),
        "out": (heads * a.dim + 96, 1),
    }


_SMALL = {"requests": 3, "tokens": 1, "heads": 2, "latent": 80, "dim": 48}
_REAL = {"tokens": 1, "latent": 512, "dim": 128}


def _case(regime: str, seed: int, **shape: int) -> Case:
    if regime == "padding":
        shape = {"requests": 5, "tokens": 3} | shape
    return Case.of("mla_value", regime, seed, **(_SMALL | shape))


# (requests, tokens) of verify steps.
_VERIFY = ((1, 3), (2, 2), (1, 8), (4, 4), (13, 4), (8, 8))


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime at small odd sizes, both sides of every batch threshold, verify rows, heads of real
    size. full: the heads of TP8 and TP16 at every prepared batch, verify steps, every regime at real
    sizes."""
    found = [_case(r.name, i) for i, r in enumerate(REGIMES)]
    found += [_case("typical", 20 + n, requests=n) for n in (1, 4, 5, 16, 17, 33, 65)]
    found += [_case("padding", 90, requests=3, tokens=1), _case("padding", 91, requests=19, tokens=1)]
    found += [_case("padding", 93, requests=2, tokens=2), _case("wide_offsets", 98, requests=5)]
    found += [_case("typical", 92, requests=2, tokens=4, heads=1, latent=33, dim=7)]
    found += [_case("typical", 94 + n, **(_REAL | {"requests": n, "heads": 3})) for n in (2, 5)]
    if tier == "full":
        for number, heads in enumerate((12, 6)):
            base = 100 * (number + 1)
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
                found.append(_case("typical", base + rows, **(_REAL | {"requests": rows, "heads": heads})))
            for i, (requests, tokens) in enumerate(_VERIFY):
                size = _REAL | {"requests": requests, "tokens": tokens, "heads": heads}
                found.append(_case("typical", base + 70 + i, **size))
            for i, regime in enumerate(REGIMES):
                size = _REAL | {"requests": 3 if regime.name == "wide_offsets" else 8, "heads": heads}
                found.append(_case(regime.name, base + 80 + i, **size))
    return tuple(found)


CONTRACT = Contract(
    name="mla_value",
    summary="MLA value up-projection and output gate",
    arguments=MlaValueArguments,
    outputs=(
        Output(
            "out",
            ("row", "head", "v"),
            "bf16",
            lambda a: a.out.unflatten(1, (a.heads, a.dim)),
            slices=(("row",), ("head",), ("row", "head")),
        ),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
