"""Inputs of the ``small_batch`` contract: rows that enter a MoE layer, and the layer's weights on every rank.

Catches nothing by itself. Experts that no row chose are drawn like the others: whether they are read is the
business of the ``experts`` contract.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Regime
from validation.contracts.regimes import generator, normal, shared_weight
from validation.numerics.blocks import BLOCK

# Weights of more elements are drawn once for a hundred neighbouring seeds.
LARGE = 1 << 21
_NIBBLE_RMS = 2.93  # of the 16 values of E2M1, each as likely
_PADDING_SCALE = 255  # a NaN

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F06", "F08", "F12", "F13", "F15", "F16", "F20", "F21", "F24", "F31", "F53"),
        "rows that choose experts of their own, a bias as large as the gaps between scores",
    ),
    Regime("same_experts", ("F16", "F17"), "two similar rows choose mostly the same experts"),
    Regime("equal", ("F12", "F17"), "a row of zeros under an equal bias: experts 0 to 15, eps in the norm"),
    Regime("outliers", ("F06", "F20"), "three columns 100 times larger: blocks of unequal scale"),
    Regime(
        "small", ("F12", "F20"), "rows so small that eps, here not the usual one, decides the latent norm"
    ),
    Regime("negative_zero", ("F36",), "latents so small and negative that BF16 makes them -0"),
    Regime("nan_row", ("F51",), "the second row holds a NaN: the first must not notice"),
)


def build_tensors(case: Case) -> dict[str, Tensor]:
    """All ``read`` fields of ``SmallBatchArguments``."""
    g = generator(case)
    ranks, hidden, latent = case["ranks"], case["hidden"], case["latent"]
    count, live, padded = ranks * case["experts"], case["live"], case["padded"]
    bias = 0.1 * normal(g, count)
    if case.regime == "equal":
        bias[:] = -0.3
    found = {
        "h": _rows(case, g),
        "router": _weight(case, g, "router", ranks, case["experts"], hidden, scale=1.2 / hidden**0.5),
        "bias": bias,
        "down": _weight(case, g, "down", ranks, latent // ranks, hidden, scale=0.8 / hidden**0.5),
        "gate_up": _weight(case, g, "gate_up", ranks, 2 * case["width"], hidden, scale=1.1 / hidden**0.5),
        "shared_down": _weight(case, g, "shared_down", ranks, hidden, case["width"], scale=0.1),
        "gamma": (0.3 + 1.5 * torch.rand(latent, generator=g)).bfloat16(),
        "up": _weight(case, g, "up", ranks, hidden // ranks, latent, scale=1.3 / latent**0.5),
    }
    if case.regime == "negative_zero":
        found["down"] = found["down"].clone()
        found["down"][:, 1] = -found["down"][:, 1].abs() * 2.0**-104
    group = case.seed // 100
    found["w13"], w13_scale = _experts("w13", group, ranks, count, 2 * padded, latent)
    found["w2"], w2_scale = _experts("w2", group, ranks, count, latent, padded)
    w13_scale, w2_scale = w13_scale.clone(), w2_scale.clone()
    w13_scale.unflatten(2, (2, padded))[:, :, :, live:] = _PADDING_SCALE
    w2_scale[..., live // BLOCK :] = _PADDING_SCALE
    return found | {"w13_scale": w13_scale, "w2_scale": w2_scale}


def _rows(case: Case, g: Generator) -> Tensor:
    rows, hidden = case["rows"], case["hidden"]
    h = normal(g, rows, hidden) * 1.3
    if case.regime == "same_experts":
        h = h[:1] + 0.5 * normal(g, rows, hidden)
    if case.regime == "equal":
        h[0] = 0.0
        h[0, ::2] = -0.0
    if case.regime == "outliers":
        h[:, torch.randperm(hidden, generator=g)[:3]] *= 100
    if case.regime == "small":
        h *= 0.03
    if case.regime == "negative_zero":
        h[0] = h[0].abs() * 2.0**-40  # with ``build_tensors``: latents near -2**-140
    if case.regime == "nan_row":
        h[-1, hidden // 3] = float("nan")
    return h.bfloat16()


def _weight(case: Case, g: Generator, name: str, *shape: int, scale: float) -> Tensor:
    if torch.Size(shape).numel() >= LARGE:
        return shared_weight(f"small_batch.{name}", case.seed // 100, *shape, scale=scale)
    return (normal(g, *shape) * scale).bfloat16()


@lru_cache(maxsize=2)
def _experts(name: str, group: int, ranks: int, experts: int, out: int, k: int) -> tuple[Tensor, Tensor]:
    """Nibbles [rank, expert, out, k / 2] and scales [rank, expert, out, k / 32] such that a normal row gives
    outputs near 1. Must not be modified."""
    shape = {"ranks": ranks, "experts": experts, "out": out, "k": k}
    g = generator(Case.of(f"small_batch.{name}", "weight", group, **shape))
    nibbles = torch.randint(0, 256, (ranks, experts, out, k // 2), generator=g, dtype=torch.uint8)
    middle = 127 - round(math.log2(k**0.5 * _NIBBLE_RMS))
    size = (ranks, experts, out, k // BLOCK)
    return nibbles, torch.randint(middle - 1, middle + 3, size, generator=g, dtype=torch.uint8)
