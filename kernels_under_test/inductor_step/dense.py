"""Operations without data-dependent sizes: those of the provider ``torch``, without its context managers.

A compiler cannot look into ``fp32_partial_sums``, which on a CPU changes nothing. Catches and cannot catch:
nothing by itself.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels_under_test.torch_stock.attn_res import attn_res
from kernels_under_test.torch_stock.dense_mlp import _situ_and_mul
from kernels_under_test.torch_stock.moe_tail import _latent
from kernels_under_test.torch_stock.shared_expert import situ
from kernels_under_test.torch_stock.vocabulary import _normed, embedding


def projection(a: Any) -> None:
    a.out.copy_(torch.mm(a.x, a.weight.T))


def oproj(a: Any) -> None:
    """One GEMM a rank, an FP32 sum, AttnRes."""
    partials = torch.stack([torch.mm(y, w.T) for y, w in zip(a.y, a.weight, strict=True)])
    attn_res(a.boundary(partials.float().sum(0).bfloat16()))
    if a.write_x_moe:
        a.x_moe.copy_(torch.where(a.out == 0, 0.0, a.out))


def dense_mlp(a: Any) -> None:
    pairs = zip(a.gate_up, a.down, strict=True)
    partials = [torch.mm(_situ_and_mul(torch.mm(a.x, w.T)), down.T) for w, down in pairs]
    a.out.copy_(torch.stack(partials).float().sum(0))


def moe_front(a: Any) -> None:
    """Router logits in FP32 and latent in BF16, rank after rank; zeros positive."""
    h = a.h.float()
    a.logits.copy_(torch.cat([torch.mm(h, w.float().T) for w in a.router], 1) + 0.0)
    a.latent.copy_(torch.cat([torch.mm(a.h, w.T) for w in a.down], 1) + 0.0)


def shared_expert(a: Any) -> None:
    partials = []
    for gate_up, down in zip(a.gate_up, a.down, strict=True):
        gate, up = torch.mm(a.h, gate_up.T).float().chunk(2, -1)
        partials.append(torch.mm(situ(gate, up, a.beta, a.linear_beta).bfloat16(), down.T) + 0.0)
    sent = torch.stack(partials)
    a.partial.copy_(sent)
    a.out.copy_(sent.float().sum(0) + 0.0)


def moe_tail(a: Any) -> None:
    """Latent sum, norm, up-projection, shared sum."""
    z = _latent(a).float().sum(0).bfloat16().float()
    inverse = torch.rsqrt(z.square().mean(-1, keepdim=True) + a.eps)
    normed = (z * inverse * a.gamma.float()).bfloat16()
    up = torch.cat([torch.mm(normed, shard.T) for shard in a.up.unbind(0)], -1)
    a.out.copy_((up + a.shared.float().sum(0).bfloat16()) + 0.0)


def logits(a: Any) -> None:
    """Norm where it is asked for, one product a shard, cut, scale."""
    if a.norm == "all":
        a.hidden.copy_(_normed(a.x, a))
    rows = (a.hidden if a.norm == "all" else a.x)[a.rows_wanted]
    rows = _normed(rows, a) if a.norm == "sampled" else rows
    gathered = torch.cat([torch.mm(rows, shard.T) for shard in a.weight], -1)[:, : a.org_vocab]
    a.out.copy_((gathered if a.scale == 1.0 else gathered * a.scale).expand(a.out.shape))


OPERATIONS = {
    "embedding": embedding,
    "attn_res": attn_res,
    "projection": projection,
    "oproj": oproj,
    "dense_mlp": dense_mlp,
    "moe_front": moe_front,
    "shared_expert": shared_expert,
    "moe_tail": moe_tail,
    "logits": logits,
}
