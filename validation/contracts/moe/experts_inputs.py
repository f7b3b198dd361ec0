"""What the routed experts are given: regimes and their draw. All on the CPU from the case's seed.

Weights are random nibbles under unequal scales near 2**-6; the scales of experts that no row chose, and of
the padded hidden columns, are NaN (code 255), their nibbles arbitrary.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Regime
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.contracts.regimes import generator, normal, outliers, uniform
from validation.numerics.blocks import BLOCK, quantized

NAN_SCALE = 255
_NIBBLE_RMS = 2.93  # of the 16 values of E2M1, each as likely

REGIMES = (
    Regime(
        "typical",
        ("F01", "F05", "F06", "F08", "F12", "F15", "F16", "F20", "F21"),
        "normal rows; hidden blocks whose maxima fall on both sides of 1.75 * 2**k; experts without rows",
    ),
    Regime("padded", ("F04", "F08", "F53"), "a third of the hidden columns is padding with NaN scales"),
    Regime("one_expert", ("F05", "F16"), "every row chose the same experts, in another order of slots"),
    Regime("distinct", ("F16",), "no two rows share an expert"),
    Regime("outliers", ("F06", "F20"), "three latent columns 50 times larger: blocks of unequal scale"),
    Regime("saturating", ("F02", "F12"), "gates and ups far beyond the bounds of SiTU"),
    Regime(
        "one_hot", ("F21",), "each row selects one column of W13: nibbles and scale rows show as they are"
    ),
    Regime("unequal_weights", ("F15", "F36"), "routing weights from 2**-9 to 2, some zero, one row of zeros"),
    Regime("extreme_scales", ("F20",), "scale code 0 in some blocks of weights and activations"),
    Regime("nan_row", ("F51",), "one latent element of one row is NaN: the row is lost, no other"),
    Regime("wide_offsets", ("F50",), "experts 2 and 3 beyond 2**31 bytes"),
)


def build(case: Case) -> ExpertsArguments:
    """Draw one rank's arguments for ``rows`` rows on the CPU."""
    g = generator(case)
    rows, width, experts = case["rows"], case["width"], case["experts"]
    live, padded = case["live"], case["padded"]
    x, x_scale = _latent(g, case)
    ids = _ids(g, case.regime, rows, experts, case["slots"])
    w13, w13_scale = _weight("w13", case.seed // 100, experts, 2 * padded, width)
    w2, w2_scale = _weight("w2", case.seed // 100, experts, width, padded)
    w13_scale, w2_scale = w13_scale.clone(), w2_scale.clone()
    if case.regime == "extreme_scales":
        w13_scale[uniform(g, *w13_scale.shape) < 0.1] = 0
        w2_scale[uniform(g, *w2_scale.shape) < 0.1] = 0
    idle = torch.ones(experts, dtype=torch.bool)
    idle[ids.long().flatten()] = False
    for scale in (w13_scale, w2_scale):
        scale[idle] = NAN_SCALE
    w13_scale.unflatten(1, (2, padded))[:, :, live:] = NAN_SCALE
    w2_scale[:, :, live // BLOCK :] = NAN_SCALE
    shape = (rows, case["slots"], width)
    return ExpertsArguments(
        x=x,
        x_scale=x_scale,
        ids=ids,
        weights=_routing_weights(g, case.regime, rows, case["slots"]),
        w13=w13,
        w13_scale=w13_scale,
        w2=w2,
        w2_scale=w2_scale,
        out=torch.zeros(rows, width, dtype=torch.bfloat16),
        rows=torch.zeros(shape, dtype=torch.bfloat16) if case["keep"] else None,
        live=live,
        hidden_rule="floor" if live == padded else "no_saturation",
        wide=case.regime == "wide_offsets",
    )


def _latent(g: Generator, case: Case) -> tuple[Tensor, Tensor]:
    """Latent rows, quantised: E4M3 bytes and scale bytes."""
    rows, width = case["rows"], case["width"]
    x = normal(g, rows, width).double()
    if case.regime == "outliers":
        x[:, outliers(g, width)] *= 50
    if case.regime == "saturating":
        x *= 12
    if case.regime == "extreme_scales":
        x.unflatten(-1, (-1, BLOCK))[:, ::3] *= 2.0**-140
    if case.regime == "one_hot":
        x = torch.zeros(rows, width, dtype=torch.float64)
        column = torch.randperm(width, generator=g)[:rows]
        x[torch.arange(rows), column] = 2.0 ** round(math.log2(width**0.5))
    elements, codes = quantized(x.bfloat16().double(), "no_saturation")
    if case.regime == "nan_row":
        elements[rows // 2, width - 1] = float("nan")
    return e4m3_bytes(elements), codes.to(torch.uint8)


def e4m3_bytes(elements: Tensor) -> Tensor:
    """Bytes of values on the E4M3 grid."""
    return elements.float().to(torch.float8_e4m3fn).view(torch.uint8)


def _ids(g: Generator, regime: str, rows: int, experts: int, slots: int) -> Tensor:
    """Distinct experts of every row, in no order; never all of them. int32 [row, slot]"""
    if regime == "distinct":
        return torch.randperm(experts, generator=g)[: rows * slots].reshape(rows, slots).int()
    if regime == "one_expert":
        chosen = torch.randperm(experts, generator=g)[:slots]
        return torch.stack([chosen[torch.randperm(slots, generator=g)] for _ in range(rows)]).int()
    # Favour some: expert loads differ as routers make them differ.
    favour = normal(g, experts)
    return (favour + 2 * normal(g, rows, experts)).topk(slots, dim=1).indices.int()


def _routing_weights(g: Generator, regime: str, rows: int, slots: int) -> Tensor:
    """Renormalised weights, times 2.5. BF16 [row, slot]"""
    drawn = uniform(g, rows, slots) + 0.1
    weights = 2.5 * drawn / drawn.sum(-1, keepdim=True)
    if regime == "unequal_weights":
        weights = torch.exp2(uniform(g, rows, slots) * 10 - 9)
        weights[uniform(g, rows, slots) < 0.2] = 0.0
        weights[rows // 2] = 0.0
    return weights.bfloat16()


@lru_cache(maxsize=4)
def _weight(name: str, group: int, experts: int, out: int, k: int) -> tuple[Tensor, Tensor]:
    """Nibbles u8 [expert, out, k / 2] and scales u8 [expert, out, k / 32] such that a normal row gives
    outputs near 2. Shared by a hundred neighbouring seeds: must not be modified."""
    g = generator(Case.of(name, "weight", group, experts=experts, out=out, k=k))
    nibbles = torch.randint(0, 256, (experts, out, k // 2), generator=g, dtype=torch.uint8)
    middle = 127 - round(math.log2(k**0.5 * _NIBBLE_RMS / 2))
    scales = torch.randint(middle - 2, middle + 2, (experts, out, k // BLOCK), generator=g, dtype=torch.uint8)
    return nibbles, scales
