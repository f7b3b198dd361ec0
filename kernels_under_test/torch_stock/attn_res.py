"""AttnRes in the stock order: softmax in FP32, mixture divided by its denominator, then the norm, one
cast."""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.arguments import AttnResArguments
from validation.providers import implements


@implements("attn_res", provider="torch", profile="stock")
def attn_res(a: AttnResArguments) -> None:
    """Update prefix, block and auxiliary row; write the normalised mixture of the sources."""
    if a.merge == "add":
        a.prefix.add_(a.delta)
    elif a.merge == "replace":
        a.prefix.copy_(a.delta)
    if a.write_aux:
        a.aux.copy_(a.prefix)
    sources = torch.cat([a.blocks[:, : a.blocks_read], a.prefix[:, None]], 1).float()
    if a.write_block >= 0:
        a.blocks[:, a.write_block] = a.prefix
    mixture = _mixture(sources, a)
    if a.finish == "mix":
        a.out.copy_(mixture)
        return
    if a.finish == "final":
        mixture = mixture.bfloat16().float()
    a.out.copy_(mixture * _inverse_rms(mixture, a.eps) * a.gamma.float())


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _mixture(sources: Tensor, a: AttnResArguments) -> Tensor:
    """Softmax-weighted sum of the sources [row, source, column]. FP32 [row, column]"""
    weight = a.score_gamma.float() * a.score_proj.float()
    scores = (sources * weight).sum(-1) * _inverse_rms(sources, a.eps_score)[..., 0]
    return (torch.softmax(scores, 1)[..., None] * sources).sum(1)
