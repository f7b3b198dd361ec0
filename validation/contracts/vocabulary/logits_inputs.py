"""What the logits are computed from: regimes and their drawing.

Nothing is neutral: gamma differs from 1, rows that nobody wants are NaN unless every row is normalised, the
wanted rows are permuted, gamma is NaN where it must not be read, and the padding of lm_head is NaN.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Regime
from validation.contracts.regimes import generator, normal, outliers

Norm = Literal["sampled", "all", "done"]
NORMS: tuple[Norm, ...] = ("sampled", "all", "done")
SCALES = (1.0, 0.25, 4.0, 0.7)

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F06", "F08", "F09", "F12", "F15", "F16", "F31", "F48"),
        "normal rows and weights, permuted wanted rows, gamma far from 1",
    ),
    Regime("small", ("F12",), "rows near 2e-3, so that the norm's eps decides"),
    Regime("outliers", ("F06",), "a few columns thousands of times larger, as residual streams have"),
    Regime("cancelling", ("F06",), "columns of lm_head in pairs of opposite sign"),
    Regime("one_hot", ("F01", "F21"), "each row selects one column of lm_head: any permutation shows"),
    Regime("unwanted", ("F16", "F45", "F51"), "rows repeated and permuted, the others NaN or huge"),
    Regime("zero_row", ("F12",), "a wanted row of zeros: eps alone keeps the norm finite"),
    Regime("nan_row", ("F51",), "one wanted row holds a NaN: it must stay in that row"),
    Regime(
        "padded_vocab",
        ("F04", "F09", "F24"),
        "lm_head rows beyond the vocabulary are NaN and must not come out",
    ),
    Regime("wide_offsets", ("F50",), "rows of lm_head 2**30 elements apart: row 2 is beyond 2**31"),
)


def draw(case: Case, norm: Norm) -> dict[str, Tensor]:
    """x, gamma, weight and rows_wanted of a case."""
    g = generator(case)
    rows, wanted, width = case["rows"], case["wanted"], case["width"]
    chosen = _wanted(g, case.regime, rows, wanted)
    x = _rows(g, case.regime, rows, width, chosen)
    gamma = 1 + 0.4 * normal(g, width)
    if norm != "all" or case.regime == "unwanted":
        idle = torch.ones(rows, dtype=torch.bool)
        idle[chosen] = False
        x[idle] = float("nan") if norm != "all" else 1e15
    if norm == "done":
        gamma[:] = float("nan")
    padded = case["ranks"] * case["shard"]
    head = _head(padded, width, case.regime == "cancelling", case.seed // 100)
    if case["org"] < padded:
        head = head.clone()
        head[case["org"] :] = float("nan")
    return {
        "x": x.bfloat16(),
        "gamma": gamma.bfloat16(),
        "weight": head.reshape(case["ranks"], case["shard"], width),
        "rows_wanted": chosen,
    }


def _wanted(g: Generator, regime: str, rows: int, wanted: int) -> Tensor:
    """Row numbers of the samples: permuted, with one repeated where the regime says so. int64 [sample]"""
    chosen = torch.randperm(rows, generator=g)[:wanted]
    if regime == "unwanted" and wanted > 1:
        chosen[-1] = chosen[0]
    return chosen


def _rows(g: Generator, regime: str, rows: int, width: int, chosen: Tensor) -> Tensor:
    """The mixture, FP32 [row, column]."""
    x = normal(g, rows, width) * torch.linspace(0.6, 2.5, rows)[:, None]
    if regime == "small":
        x = x * 2e-3
    if regime == "outliers":
        x[:, outliers(g, width)] *= 2000
    if regime == "cancelling":
        x[:, width // 2 : width // 2 * 2] = x[:, : width // 2]
    if regime == "one_hot":
        x = torch.zeros(rows, width)
        x[torch.arange(rows), torch.randperm(width, generator=g)[:rows]] = 4.0  # products are exact
    if regime == "zero_row":
        x[chosen[0]] = 0
    if regime == "nan_row":
        x[chosen[len(chosen) // 2], width // 3] = float("nan")
    return x


@lru_cache(maxsize=2)
def _head(tokens: int, width: int, cancelling: bool, group: int) -> Tensor:
    """lm_head [token, column] BF16, shared by a hundred neighbouring seeds; ``cancelling``: its halves are of
    opposite sign but for a thousandth. Must not be modified."""
    shape = {"tokens": tokens, "width": width, "cancelling": int(cancelling)}
    g = generator(Case.of("logits", "weight", group, **shape))
    head = normal(g, tokens, width).mul_(1.2 / width**0.5)
    if cancelling:
        half = width // 2
        head[:, half : 2 * half] = -head[:, :half] * (1 + 1e-3 * normal(g, tokens, half))
    return head.bfloat16()
