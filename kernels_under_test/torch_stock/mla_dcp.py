"""Sharded latent attention in the stock order: attention with log-sum-exp on every rank, each rank's row
corrected and rounded, then the sum over ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from validation.contracts.mla.attention_arguments import LATENT
from validation.contracts.mla.dcp_arguments import MlaDcpArguments, owned
from validation.providers import implements

LOG2_E = math.log2(math.e)


@implements("mla_dcp", provider="torch", profile="stock")
def mla_dcp(a: MlaDcpArguments) -> None:
    """out[row, head] = bf16(sum over ranks of bf16(row of the rank * its share of the exponentials))."""
    query = a.query.view(torch.float8_e4m3fn).float()
    for row in range(query.shape[0]):
        request, t = divmod(row, a.tokens)
        bound = a.totals[request].long() - a.tokens + 1 + t
        shards = []
        for rank in range(a.ranks):
            seen = int(owned(bound.clamp(min=0), rank, a.ranks, a.interleave))
            if int(a.totals[request]) > 0 and seen > 0:
                shards.append(_shard(a, query[row], rank, request, seen))
        a.out[row] = _merged(shards) if shards else 0


def _shard(a: MlaDcpArguments, query: Tensor, rank: int, request: int, seen: int) -> tuple[Tensor, Tensor]:
    """One rank's row [head, 512] in BF16 and log2 of its sum of exponentials [head]."""
    page = a.cache.shape[2]
    pages = a.cache[rank, a.block_table[rank, request, : -(-seen // page)].long()]
    keys = pages.view(torch.float8_e4m3fn).float().flatten(0, 1)[:seen]
    scores = (query @ keys.T) * (a.softmax_scale * LOG2_E)
    top = scores.amax(-1, keepdim=True)
    e = torch.exp2(scores - top)
    total = e.sum(-1, keepdim=True)
    row = (e @ keys[:, :LATENT]) / total * a.k_scale
    return row.bfloat16(), (torch.log2(total) + top)[:, 0]


def _merged(shards: list[tuple[Tensor, Tensor]]) -> Tensor:
    rows, sums = (torch.stack(part) for part in zip(*shards, strict=True))
    weights = torch.exp2(sums - sums.amax(0))
    factors = weights / weights.sum(0)
    return (rows.float() * factors[..., None]).bfloat16().float().sum(0)
