"""Inputs of the sharded latent attention contract: shards of unequal weight, empty shards, rows without keys.

In every regime lengths differ, pages are permuted on every rank for itself, and what nobody owns is spoiled.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Regime
from validation.contracts.mla.attention_arguments import LATENT
from validation.contracts.mla.dcp_arguments import MlaDcpArguments, owned
from validation.contracts.mla.paged import (
    HUGE,
    MOST_PAGES,
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
    Regime("typical", ("F01", "F18", "F31", "F48", "F53"), "every rank has keys, unequal lengths"),
    Regime("unequal", ("F02", "F07"), "keys of the ranks are of unequal size: log-sums 3 to 40 apart"),
    Regime(
        "peaked",
        ("F03", "F07"),
        "log-sums of the ranks differ by 100 and more: one shard takes all; one request's are all below -150",
    ),
    Regime("flat", ("F06",), "nearly equal logits: every rank counts, and terms cancel"),
    Regime("short", ("F08", "F24", "F48"), "fewer positions than ranks: empty shards, and rows without keys"),
    Regime("boundaries", ("F05", "F24"), "local lengths around page boundaries"),
    Regime("padding", ("F08", "F45"), "requests of length 0 in the middle and at the end: their rows are 0"),
    Regime("poisoned", ("F04", "F51"), "NaN in every position that no request owns, and most shards empty"),
    Regime(
        "nan_request", ("F51", "F27"), "one query row and one request's first key are NaN: they stay there"
    ),
    Regime("wide_offsets", ("F50",), "the ranks' caches so far apart that byte offsets pass 2**31"),
)


def build(case: Case) -> MlaDcpArguments:
    """Draw the arguments of a case on the CPU."""
    g = generator(case)
    regime, q, ranks, page = case.regime, case["tokens"], case["ranks"], case["page"]
    q_scale, k_scale = SCALES[case.seed % len(SCALES)]
    totals = _totals(g, case)
    local = torch.stack([owned(totals, rank, ranks, case["interleave"]) for rank in range(ranks)])
    supply = Supply(case.seed // 100, page, k_scale)
    most = MOST_PAGES // ranks
    shards = [paged(g, counts.tolist(), supply, most=most) for counts in local]
    rows, heads = len(totals) * q, ranks * case["heads"]
    query = queries(g, regime, rows, heads)
    if regime == "unequal":
        _grow(shards, local)
    if regime == "peaked":
        for shard, counts in zip(shards, local, strict=True):
            lower(shard, 0, torch.arange(int(counts[0])), query[:q], k_scale)
    for shard, counts in zip(shards, local, strict=True):
        spoil(shard, counts.tolist(), NAN if regime in ("poisoned", "padding", "short") else HUGE)
    if regime == "nan_request":
        shards[0].cache[int(shards[0].table[0, 0]), 0, LATENT // 2] = NAN
    cache, table, free = _stacked(shards)
    return MlaDcpArguments(
        query=encoded(query / q_scale),
        cache=cache,
        block_table=table,
        lengths=local.to(torch.int32),
        totals=totals.to(torch.int32),
        out=torch.zeros(rows, heads, LATENT, dtype=torch.bfloat16),
        tokens=q,
        interleave=case["interleave"],
        q_scale=q_scale,
        k_scale=k_scale,
        free_slot=free,
        wide_ranks=regime == "wide_offsets",
    )


def _totals(g: Generator, case: Case) -> Tensor:
    """Keys of every request over all ranks, the new tokens among them. int64 [request]"""
    requests, q, longest = case["requests"], case["tokens"], case["length"]
    turn = case["ranks"] * case["interleave"]
    totals = torch.randint(q, longest + 1, (requests,), generator=g)
    totals[-1] = longest
    if case.regime in ("short", "poisoned"):
        edges = (q, turn // 2, turn - 1, turn + 1, case["interleave"] + 1, turn + turn // 2)
        totals = torch.tensor([max(q, edges[i % len(edges)]) for i in range(requests)])
    if case.regime == "boundaries":
        whole = case["page"] * turn // case["interleave"]
        totals = torch.tensor([max(q, whole * (1 + i // 3) + (-1, 0, 1)[i % 3]) for i in range(requests)])
    if case.regime == "padding":
        totals[0] = longest
        totals[requests // 2] = totals[-1] = 0
    return totals


def _grow(shards: list[Pages], local: Tensor) -> None:
    """Scale the keys of each rank; which rank's are largest differs from request to request."""
    factors = (0.2, 1.0, 3.0, 0.5, 0.1, 1.5, 2.2, 0.3)
    for rank, shard in enumerate(shards):
        for request, n in enumerate(local[rank].tolist()):
            factor = factors[(rank + 3 * request) % len(factors)]
            scaled_rows(shard, request, torch.arange(n), factor)


def _stacked(shards: list[Pages]) -> tuple[Tensor, Tensor, int]:
    """Caches and tables of all ranks in one tensor each, filled up with one more page that nobody owns."""
    free = max(shard.cache.shape[0] for shard in shards)
    width = max(shard.table.shape[1] for shard in shards)
    ranks, requests = len(shards), shards[0].table.shape[0]
    cache = torch.full((ranks, free + 1, *shards[0].cache.shape[1:]), NAN, dtype=torch.uint8)
    table = torch.full((ranks, requests, width), free, dtype=torch.int32)
    for rank, shard in enumerate(shards):
        cache[rank, : shard.cache.shape[0]] = shard.cache
        table[rank, :, : shard.table.shape[1]] = shard.table
    return cache, table, free
