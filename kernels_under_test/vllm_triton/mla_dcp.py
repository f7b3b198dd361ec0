"""Merge of sharded latent attention through vLLM's kernels for its all-to-all exchange.

vLLM's, for every rank in turn: packing of BF16 rows and the two halves of their FP32 log-sum-exp into one
buffer, with -inf where the rank has no key; unpacking and the merge in FP32, rank after rank, with weights
2**(log-sum-exp of the shard - log-sum-exp of all). Ours, in torch: the attention of each shard (in base 2, as
vLLM's decode attention libraries return it), and the exchange, which is a transposition in one process.

vLLM masks a shard by its request: a verify row that sees none of its rank's keys, while later rows of the
same request do, gets its -inf from the attention, here as there.

A NaN log-sum-exp means -inf to both kernels: the shard is left out, and the result is a finite mean over
the other ranks' keys. The subject multiplies such a row by 0, and the NaN stays to be seen. So a case with
a NaN is not served: what the contract asks for there, vLLM does not do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kernels_under_test.vllm_release import modules
from validation.contracts.mla.attention_arguments import LATENT
from validation.contracts.mla.dcp_arguments import owned
from validation.providers import implements

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.mla.dcp_arguments import MlaDcpArguments

_dcp = modules.module(modules.DCP)

LOG2_E = math.log2(math.e)


def supports(case: Case) -> str | None:
    hidden = "vllm leaves out a shard whose log-sum-exp is NaN and answers with the others"
    return hidden if case.regime == "nan_request" else None


@implements("mla_dcp", provider="vllm_triton", profile="library", requires=("triton",), supports=supports)
def mla_dcp(a: MlaDcpArguments) -> None:
    """out[row, head] of every head's owner."""
    rows, heads = a.query.shape[:2]
    share, packed = heads // a.ranks, 2  # an FP32 log-sum-exp is two BF16 elements
    starts = torch.arange(0, rows + 1, a.tokens, dtype=torch.int32, device=a.query.device)
    sent = []
    for rank in range(a.ranks):
        out, log_sum = _shard(a, rank)
        buffer = torch.full((a.ranks, rows, share, LATENT + packed), float("nan"), dtype=out.dtype)
        sent.append(buffer.to(out.device))
        _dcp._dcp_a2a_pack_send(
            out, log_sum, sent[rank], a.ranks, share, LATENT, packed, a.lengths[rank], starts
        )
    for owner in range(a.ranks):
        received = torch.stack([buffer[owner] for buffer in sent])
        merged = _dcp._dcp_a2a_unpack_combine(received, LATENT, packed, False, False)
        a.out[:, owner * share : (owner + 1) * share] = merged


def _shard(a: MlaDcpArguments, rank: int) -> tuple[Tensor, Tensor]:
    """Rows BF16 [row, head, 512] and log2-sum-exp2 [row, head] of one rank; NaN and -inf without keys."""
    query = a.query.view(torch.float8_e4m3fn).float()
    out = torch.full((*query.shape[:2], LATENT), float("nan"), dtype=torch.bfloat16, device=query.device)
    log_sum = torch.full(query.shape[:2], -torch.inf, device=query.device)
    for row in range(query.shape[0]):
        request, t = divmod(row, a.tokens)
        bound = (a.totals[request].long() - a.tokens + 1 + t).clamp(min=0)
        seen = int(owned(bound, rank, a.ranks, a.interleave))
        if int(a.totals[request]) == 0 or seen == 0:
            continue
        table = a.block_table[rank, request, : -(-seen // a.cache.shape[2])].long()
        keys = a.cache[rank, table].view(torch.float8_e4m3fn).float().flatten(0, 1)[:seen]
        scores = (query[row] @ keys.T) * (a.softmax_scale * LOG2_E)
        top = scores.amax(-1, keepdim=True)
        e = torch.exp2(scores - top)
        total = e.sum(-1, keepdim=True)
        out[row] = ((e @ keys[:, :LATENT]) / total * a.k_scale).bfloat16()
        log_sum[row] = (torch.log2(total) + top)[:, 0]
    return out, log_sum
