"""Inputs of the latent attention contract: lengths, pages and logits that no fault can hide in.

In every regime lengths differ, pages are permuted, scales are not 1, and what no request owns is spoiled.
"""

from __future__ import annotations

import torch
from torch import Generator

from validation.contracts.contract import Case, Regime
from validation.contracts.mla.attention_arguments import LATENT, MlaAttentionArguments
from validation.contracts.mla.paged import (
    HUGE,
    NAN,
    SCALES,
    Pages,
    Supply,
    encoded,
    lower,
    paged,
    scaled_rows,
    spoil,
)
from validation.contracts.mla.rows import queries
from validation.contracts.regimes import generator

REGIMES = (
    Regime(
        "typical",
        ("F01", "F02", "F05", "F06", "F18", "F31", "F53"),
        "logits of deviation 1 to 2, unequal lengths",
    ),
    Regime("unequal", ("F07",), "keys of each sixth of a request grow: log-sums of splits are 3 to 40 apart"),
    Regime(
        "peaked",
        ("F03", "F07"),
        "logits of deviation near 70: one key takes all, others underflow; one request's are all below -150",
    ),
    Regime(
        "flat", ("F06", "F02"), "equal and nearly equal logits: a mean over all keys, of cancelling terms"
    ),
    Regime("boundaries", ("F05", "F24"), "lengths around page boundaries, 1, and exactly the new tokens"),
    Regime("shared_pages", ("F24", "F27"), "requests share full pages in another order; the last is private"),
    Regime("padding", ("F08", "F45"), "requests of length 0 in the middle and at the end, on NaN pages"),
    Regime("poisoned", ("F04", "F51"), "NaN in every position that no request owns"),
    Regime(
        "nan_request", ("F51", "F27"), "one query row and one request's first key are NaN: they stay there"
    ),
    Regime("wide_offsets", ("F50",), "pages so far apart that byte offsets pass 2**31"),
)


def build(case: Case) -> MlaAttentionArguments:
    """Draw the arguments of a case on the CPU."""
    g = generator(case)
    regime, page, q, heads = case.regime, case["page"], case["tokens"], case["heads"]
    q_scale, k_scale = SCALES[case.seed % len(SCALES)]
    lengths = _lengths(g, regime, case["requests"], q, page, case["length"])
    supply = Supply(case.seed // 100, page, k_scale)
    pages = paged(g, lengths, supply, shared=regime == "shared_pages", wide=regime == "wide_offsets")
    rows = len(lengths) * q
    query = queries(g, regime, rows, heads)
    if regime == "flat":
        query[:, 0] = 0
    if regime == "unequal":
        _grow(pages, lengths)
    if regime == "peaked":
        lower(pages, 0, torch.arange(lengths[0]), query[:q], k_scale)
        if len(lengths) == 2:  # of its second request the later half: its splits are hundreds apart
            lower(pages, 1, torch.arange(lengths[1] // 2, lengths[1]), query[q:], k_scale)
    spoil(pages, lengths, NAN if regime in ("poisoned", "padding") else HUGE)
    if regime == "nan_request":
        pages.cache[int(pages.table[0, 0]), 0, LATENT // 2] = NAN
    return MlaAttentionArguments(
        query=encoded(query / q_scale),
        cache=pages.cache,
        block_table=pages.table,
        lengths=torch.tensor(lengths, dtype=torch.int32),
        out=torch.zeros(rows, heads, LATENT, dtype=torch.bfloat16),
        tokens=q,
        q_scale=q_scale,
        k_scale=k_scale,
        free_slot=pages.free,
        wide_pages=regime == "wide_offsets",
    )


def _lengths(g: Generator, regime: str, requests: int, q: int, page: int, longest: int) -> list[int]:
    """``longest`` and others from q to that, no two alike if there is room; at least q, or 0."""
    drawn = torch.randint(q, longest + 1, (requests,), generator=g).tolist()
    drawn[-1] = longest
    if regime == "boundaries":
        edges = [q, page, page + 1, 2 * page - 1, 2 * page, max(1, q), page - 1, 3 * page + q]
        drawn = [max(q, edges[i] if i < len(edges) else page + i) for i in range(requests)]
    if regime == "shared_pages":
        drawn = [max(n, min(longest, 2 * page + 3 + i)) for i, n in enumerate(drawn)]
    if regime == "padding":
        drawn[requests // 2] = drawn[-1] = 0
        drawn[0] = longest
    if regime == "wide_offsets":
        drawn = [min(n, page - i) for i, n in enumerate(drawn)]
    return drawn


def _grow(pages: Pages, lengths: list[int]) -> None:
    """Scale the keys of each sixth of every request; which sixth is largest differs."""
    factors = (0.2, 1.0, 0.4, 3.0, 0.1, 1.5)
    for request, n in enumerate(lengths):
        position = torch.arange(n)
        part = position * len(factors) // max(n, 1)
        for i in range(len(factors)):
            scaled_rows(pages, request, position[part == i], factors[(i + request) % len(factors)])
