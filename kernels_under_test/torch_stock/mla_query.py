"""MLA query and key insert in the stock order: fused norms, q_b GEMM, bmm, then concatenation and insert with
a clamp to the range of E4M3."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_under_test.gemm import fp32_partial_sums
from validation.contracts.mla.query_arguments import MlaQueryArguments
from validation.providers import implements

E4M3_MAX = 448.0


@implements("mla_query", provider="torch", profile="stock")
def mla_query(a: MlaQueryArguments) -> None:
    """Write the E4M3 query of every row and insert the keys of the rows that have a slot."""
    c = _rms_norm(a.part("q_a"), a.q_norm, a.eps)
    with fp32_partial_sums():
        q = torch.mm(c, a.w_q.T).unflatten(1, (a.heads, -1))
        absorbed = torch.bmm(q[..., : a.nope].transpose(0, 1), a.w_uk).transpose(0, 1)
    a.query.copy_(_e4m3(torch.cat([absorbed, q[..., a.nope :]], -1), a.q_inverse))
    keys = torch.cat([_rms_norm(a.part("kv"), a.kv_norm, a.eps), a.part("k_pe")], -1)
    live = a.slot >= 0
    slot, page = a.slot[live], a.cache.shape[1]
    a.cache[slot // page, slot % page] = _e4m3(keys[live], a.k_inverse)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()).bfloat16()


def _e4m3(x: Tensor, inverse: float) -> Tensor:
    """Bytes of x * inverse in E4M3, saturated; NaN stays NaN."""
    return (x.float() * inverse).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
