"""MXFP8 quantisation of BF16 rows: E4M3 bytes and one E8M0 scale byte a block of 32 (operation 3.15, step 1).

Input and rules are exact, so every byte is known. ``no_saturation`` is the rule of the activations into the
experts (and of the hidden at 16 ranks), ``floor`` that of the hidden at 8 ranks.

Catches: the other rule, an exponent clamped or biased wrongly at denormals, infinity and the largest numbers,
a NaN that spreads over its block, truncation, a lost sign of zero, swapped blocks, unmasked tails. Cannot
catch: what a block of nothing but NaN has as its scale (backends differ; none is drawn).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.regimes import generator, normal, outliers, uniform
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.blocks import BLOCK, RULES, quantized
from validation.numerics.profile import Profile
from validation.numerics.value import Value

if TYPE_CHECKING:
    from torch import Tensor

LATENT = 3584
Rule = Literal["floor", "no_saturation"]


@dataclass
class MxQuantizeArguments:
    """x BF16 [row, column] -> E4M3 bytes [row, column] and E8M0 bytes [row, column / 32]."""

    x: Tensor = read("row column", "bf16")
    codes: Tensor = write("row column", "u8")
    scales: Tensor = write("row block", "u8")
    rule: Rule = "no_saturation"
    wide_rows: bool = False


REGIMES = (
    Regime("typical", ("F01", "F05", "F20", "F21"), "normal rows whose blocks differ in size by 2**8"),
    Regime(
        "edges", ("F20",), "block maxima at 448 * 2**k, its neighbours, powers of two, and 1.75 to 2 times"
    ),
    Regime("tiny", ("F20",), "denormal blocks, zeros of both signs, exponents at which the code is clamped"),
    Regime("huge", ("F20", "F51"), "maxima near the largest BF16, and infinity in one block"),
    Regime("midpoints", ("F20", "F06"), "elements on midpoints of the E4M3 grid: ties to even"),
    Regime("outliers", ("F19", "F20"), "three columns thousands of times larger than their blocks"),
    Regime("nan", ("F51",), "one NaN of either sign in some blocks: the scale and the neighbours stay"),
    Regime("wide_rows", ("F50",), "a row pitch that puts the third row beyond 2**31 elements"),
)


def build(case: Case) -> MxQuantizeArguments:
    """Draw x [rows, width] on the CPU."""
    g = generator(case)
    rows, width = case["rows"], case["width"]
    blocks = normal(g, rows, width // BLOCK, BLOCK)
    blocks = blocks * torch.exp2(torch.floor(uniform(g, rows, width // BLOCK, 1) * 9) - 4)
    draw = _DRAWS.get(case.regime)
    if draw is not None:
        blocks = draw(g, blocks)
    x = blocks.flatten(-2).bfloat16()
    if case.regime == "outliers":
        x[:, outliers(g, width)] *= 3000
    return MxQuantizeArguments(
        x=x,
        codes=torch.zeros(rows, width, dtype=torch.uint8),
        scales=torch.zeros(rows, width // BLOCK, dtype=torch.uint8),
        rule=RULES[case["rule"]],  # type: ignore[arg-type]
        wide_rows=case.regime == "wide_rows",
    )


def _signs(g: torch.Generator, like: Tensor) -> Tensor:
    return torch.where(uniform(g, *like.shape) < 0.5, -1.0, 1.0)


def _edges(g: torch.Generator, blocks: Tensor) -> Tensor:
    """Every block's largest element is one of the values at which a rule changes its mind."""
    edges = torch.tensor([448.0, 450.0, 446.0, 256.0, 255.0, 258.0, 500.0, 510.0, 480.0])
    size = blocks.shape[:-1]
    top = edges[torch.randint(len(edges), size, generator=g)]
    exponent = torch.randint(-40, 40, size, generator=g).float()
    smaller = (uniform(g, *blocks.shape) * 0.95 - 0.475) * top[..., None]
    place = torch.randint(BLOCK, (*size, 1), generator=g)
    drawn = smaller.scatter(-1, place, (top * _signs(g, top))[..., None])
    return drawn * torch.exp2(exponent)[..., None]


def _tiny(g: torch.Generator, blocks: Tensor) -> Tensor:
    """Maxima from the smallest denormal of BF16 (2**-133) to 2**-114; a third of the elements are zeros."""
    exponent = torch.randint(-136, -113, blocks.shape[:-1], generator=g).double()[..., None]
    drawn = (_edges(g, blocks).sign() * uniform(g, *blocks.shape).double() * torch.exp2(exponent)).float()
    zero = uniform(g, *blocks.shape) < 0.3
    return torch.where(zero, drawn.sign() * 0.0, drawn)


def _huge(g: torch.Generator, blocks: Tensor) -> Tensor:
    """Finite maxima from 2**120 to the largest BF16; infinities of both signs in every seventh block."""
    exponent = torch.randint(118, 127, blocks.shape[:-1], generator=g).float()[..., None]
    drawn = blocks / blocks.abs().amax(-1, keepdim=True) * torch.exp2(exponent) * 1.99
    flat = drawn.flatten(0, 1)
    for number in range(0, len(flat), 7):
        flat[number, number % BLOCK] = float("inf") if number % 2 else -float("inf")
    return flat.unflatten(0, blocks.shape[:2])


def _midpoints(g: torch.Generator, blocks: Tensor) -> Tensor:
    """(n + 1/2) units of the E4M3 grid under a maximum of 448 * 2**k, and one BF16 step beside them."""
    whole = torch.randint(8, 16, blocks.shape, generator=g).float() + 0.5
    binade = torch.exp2(torch.randint(-12, 5, blocks.shape, generator=g).float())
    aside = 1 + torch.randint(-1, 2, blocks.shape, generator=g).float() / 256
    drawn = whole * binade * aside * _signs(g, blocks)
    drawn[..., 0] = 448.0
    return drawn * torch.exp2(torch.randint(-10, 10, blocks.shape[:-1], generator=g).float())[..., None]


def _nan(g: torch.Generator, blocks: Tensor) -> Tensor:
    """Every fifth block holds one NaN, every other of them negative."""
    flat = blocks.flatten(0, 1)
    for number in range(0, len(flat), 5):
        flat[number, (7 * number) % BLOCK] = float("nan") * (-1.0 if number % 2 else 1.0)
    return flat.unflatten(0, blocks.shape[:2])


_DRAWS = {"edges": _edges, "tiny": _tiny, "huge": _huge, "midpoints": _midpoints, "nan": _nan}


def reference(ar: Arithmetic, a: MxQuantizeArguments) -> dict[str, Value]:
    elements, codes = quantized(a.x.double(), a.rule)
    return {"codes": Value(ar, elements), "scales": Value(ar, codes.double())}


def decoded(codes: Tensor) -> Tensor:
    """E4M3 bytes as FP32 values: 0x7F and 0xFF are both NaN."""
    return codes.contiguous().view(torch.float8_e4m3fn).float()


def _case(regime: str, seed: int, rows: int, width: int, rule: int) -> Case:
    return Case.of("mx_quantize", regime, seed, rows=rows, width=width, rule=rule)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime by both rules at small widths and a width of one block; the subject's width at one
    row and two. full: that width at every prepared batch and every regime by both rules."""
    found = [
        _case(r.name, 2 * i + rule, 3 if r.name == "wide_rows" else 3 + i % 3, 32 * (3 + 4 * (i % 2)), rule)
        for i, r in enumerate(REGIMES)
        for rule in (0, 1)
    ]
    found += [_case("typical", 40, 1, 32, 1), _case("edges", 41, 17, 160, 0), _case("typical", 42, 9, 64, 0)]
    found += [_case("typical", 43, 1, LATENT, 1), _case("edges", 44, 2, LATENT, 1)]
    found += [_case("typical", 45, 2, 32 * 131, 1)]  # more blocks than one program holds
    if tier == "full":
        for rule in (0, 1):
            batches = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
            found += [_case("typical", 100 + 100 * rule + rows, rows, LATENT, rule) for rows in batches]
            found += [
                _case(r.name, 300 + 100 * rule + i, 4, LATENT, rule)
                for i, r in enumerate(REGIMES)
                if r.name != "wide_rows"
            ]
    return tuple(found)


# Row 2 of the codes lies beyond 2**31 elements: 32-bit offsets wrap.
_WIDE = 2**30 + 64


def strides(a: MxQuantizeArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each; the codes of a wide case lie far apart. Behind a row of x there is
    less than a block of NaN: a block too many is not one of NaN codes, which the codes' poison would hide."""
    width = a.x.shape[1]
    return {
        "x": (width + 16, 1),
        "codes": (_WIDE if a.wide_rows else width + 48, 1),
        "scales": (width // BLOCK + 5, 1),
    }


CONTRACT = Contract(
    name="mx_quantize",
    summary="BF16 rows to MXFP8: E4M3 bytes and block scales",
    arguments=MxQuantizeArguments,
    outputs=(
        Output("codes", ("row", "column"), "e4m3", lambda a: decoded(a.codes), exact=True),
        Output("scales", ("row", "block"), "e8m0", lambda a: a.scales, exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={
        "stock": Profile("stock", {}),
        "specialized": Profile("specialized", {}, functions="triton", functions_on_cuda="triton"),
    },
    strides=strides,
)
