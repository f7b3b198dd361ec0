"""Choice of the experts through the top-k kernel of OpenAI's triton_kernels, which vLLM carries.

Theirs: the 16 largest keys of a row, equal ones by ascending expert. Ours, in torch: sigmoid and bias, NaN
keys lowered to -inf (the kernel orders bit patterns, by which a NaN is the largest), the weights. vLLM uses
this kernel for models that route by a softmax; for Kimi K3 it has a compiled one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels_under_test.vllm_release import modules
from validation.providers import implements

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.moe.route import RouteArguments

_power_of_two = modules.module(modules.MATH).next_power_of_2
_topk = modules.module(modules.TOPK)._topk_forward

TINY = 1e-20
ROWS, EXPERTS, CLEARED = 32, 32, 128  # of a program; as the launcher of triton_kernels has them


def largest(keys: Tensor, count: int) -> Tensor:
    """Places of the ``count`` largest of each row of FP32 ``keys``, in no order. int16 [row, count]"""
    rows, experts = keys.shape
    # A row at once in the interpreter, where 28 merges of sorted pieces cost a minute.
    lanes = EXPERTS if keys.is_cuda else max(EXPERTS, _power_of_two(experts))
    tile = ROWS if keys.is_cuda else min(ROWS, _power_of_two(rows))
    padded = -(-experts // lanes) * lanes
    values = torch.empty(rows, count, device=keys.device)
    places = torch.empty(rows, count, dtype=torch.int16, device=keys.device)
    words = torch.empty(padded // 32, -(-rows // 32) * 32, dtype=torch.uint32, device=keys.device).T[:rows]
    blocks = -(-experts // CLEARED)
    scratch = torch.empty(blocks * CLEARED, dtype=torch.int32, device=keys.device)
    _topk[(max(-(-rows // tile), blocks),)](
        keys,
        keys.stride(0),
        values,
        places,
        values.stride(0),
        False,
        words,
        words.stride(0),
        words.stride(1),
        rows,
        experts,
        scratch,
        CLEARED,
        blocks,
        BLOCK_M=tile,
        BLOCK_N=lanes,
        APPLY_SOFTMAX=False,
        N_EXPTS_PAD=padded,
        N_EXPTS_ACT=count,
    )
    return places


def supports(case: Case) -> str | None:
    top = dict(case.shape).get("top", 16)
    return None if top & (top - 1) == 0 else f"triton's top-k wants a power of two, not {top}"


@implements("route", provider="vllm_triton", profile="stock", requires=("triton",), supports=supports)
def route(a: RouteArguments) -> None:
    """ids[row, slot] and weights[row, slot] = s / (sum s + 1e-20) * scale."""
    scores = torch.sigmoid(a.logits)
    keys = scores + a.bias
    ids = largest(torch.where(torch.isnan(keys), float("-inf"), keys), a.top).long()
    picked = scores.gather(-1, ids)
    if a.renormalise:
        picked = picked / (picked.sum(-1, keepdim=True) + TINY)
    a.ids.copy_(ids)
    a.weights.copy_(picked * a.scale)
