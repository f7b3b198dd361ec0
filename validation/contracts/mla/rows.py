"""What attention over one cache and over a sharded one share: query rows in, latent rows out.

Catches and cannot catch: nothing by itself; ``attention`` and ``dcp`` are the contracts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Generator, Tensor

from validation.contracts.contract import Output
from validation.contracts.mla.attention_arguments import LATENT, WIDTH
from validation.contracts.regimes import normal

_SCALES = {"peaked": 40.0, "flat": 0.02}


def queries(g: Generator, regime: str, rows: int, heads: int) -> Tensor:
    """Query rows before they are scaled and encoded; in regime ``nan_request`` one of them holds a NaN.
    [row, head, 576]"""
    query = normal(g, rows, heads, WIDTH) * _SCALES.get(regime, 1.0)
    if regime == "nan_request":
        query[rows // 2, heads - 1, 3] = float("nan")
    return query


def latent_rows(view: Callable[[Any], Tensor]) -> Output:
    """The judged output: latent rows [request, token, head, 512] of BF16."""
    return Output(
        "out",
        ("request", "token", "head", "latent"),
        "bf16",
        view,
        slices=(("head",), ("request", "token"), ("request", "token", "head")),
        shared=("latent",),
    )


def row_strides(heads: int) -> dict[str, tuple[int, ...]]:
    """Rows of queries and results, each with a pitch of its own."""
    return {"query": (heads * WIDTH + 192, WIDTH, 1), "out": (heads * LATENT + 64, LATENT, 1)}
