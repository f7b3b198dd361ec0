"""Embedding and logits as the stock path computes them: mask, gather and all-reduce; norm of the sampled
rows, one BF16 product a shard, all-gather, cut to the vocabulary, scale."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_under_test.gemm import fp32_partial_sums
from validation.contracts.vocabulary.embedding import EmbeddingArguments
from validation.contracts.vocabulary.logits import LogitsArguments
from validation.providers import implements


@implements("embedding", provider="torch", profile="stock")
def embedding(a: EmbeddingArguments) -> None:
    """out[every rank] = the sum over ranks of the rows that each of them owns."""
    ranks, shard, _ = a.weight.shape
    tokens = a.tokens.long()
    partial = []
    for rank in range(ranks):
        first = rank * shard
        last = min(first + shard, a.org_vocab)
        outside = (tokens < first) | (tokens >= last)
        rows = torch.nn.functional.embedding((tokens - first).masked_fill(outside, 0), a.weight[rank])
        partial.append(rows.masked_fill_(outside[:, None], 0))
    a.out.copy_(partial[0] if ranks == 1 else torch.stack(partial).sum(0))


# Above this many rows the stock RMSNorm changes its block size, and with it the order of its sum.
NORM_ROWS = 255


@implements("logits", provider="torch", profile="stock")
def logits(a: LogitsArguments) -> None:
    """out[every rank] = the logits of the wanted rows; hidden = all rows normalised, where they all are."""
    if a.norm == "all":
        for start in range(0, len(a.x), NORM_ROWS):
            part = slice(start, start + NORM_ROWS)
            a.hidden[part] = _normed(a.x[part], a)
        rows = a.hidden[a.rows_wanted]
    else:
        rows = a.x[a.rows_wanted]
        if a.norm == "sampled":
            rows = _normed(rows, a)
    with fp32_partial_sums():
        shards = [torch.mm(rows, shard.T) for shard in a.weight]
    gathered = torch.cat(shards, -1)[:, : a.org_vocab]
    a.out.copy_(gathered if a.scale == 1.0 else gathered * a.scale)


def _normed(x: Tensor, a: LogitsArguments) -> Tensor:
    """RMSNorm with one cast. BF16, shape of ``x``"""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + a.eps)
    return (wide * inverse * a.gamma.float()).bfloat16()
