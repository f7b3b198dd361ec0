"""Latent attention as a plain backend does it: gather a request's keys, softmax in FP32, one cast."""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.mla.attention_arguments import LATENT, MlaAttentionArguments
from validation.providers import implements


@implements("mla_attention", provider="torch", profile="stock")
def mla_attention(a: MlaAttentionArguments) -> None:
    """out[row, head] = bf16(k_scale * softmax(scale * query keys^T) keys[:, :512]), request by request."""
    query = a.query.view(torch.float8_e4m3fn).float()
    for request, length in enumerate(a.lengths.tolist()):
        first = request * a.tokens
        if length == 0:
            a.out[first : first + a.tokens] = 0
            continue
        keys = _keys(a.cache, a.block_table[request], length)
        for t in range(a.tokens):
            seen = keys[: length - a.tokens + 1 + t]
            weights = torch.softmax((query[first + t] @ seen.T) * a.softmax_scale, -1)
            a.out[first + t] = (weights @ seen[:, :LATENT]) * a.k_scale


def _keys(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The request's keys in FP32 [length, 576]."""
    page = cache.shape[1]
    pages = cache[table[: -(-length // page)].long()]
    return pages.view(torch.float8_e4m3fn).float().flatten(0, 1)[:length]
