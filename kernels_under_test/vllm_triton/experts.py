"""Routed experts through vLLM's grouped Triton matmul for mixture-of-experts layers (``fused_moe_kernel``).

vLLM's: both matmuls, grouped by expert, BF16 operands with FP32 accumulation (FP32 out of the first, BF16
out of the second), and the kernel that stores the hidden as MXFP8. Ours, in torch: MXFP4 and MXFP8 to BF16,
which is exact, the sorting of the pairs by expert (compiled in vLLM), SiTU (compiled), the weighted sum
over the slots (compiled).

What this cannot show: vLLM's kernels that multiply MXFP4 without unpacking it, and its choice of tile sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton.language as tl

from kernels_under_test.vllm_release import modules
from validation.providers import implements

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.moe.experts_arguments import ExpertsArguments

_grouped = modules.module(modules.FUSED_MOE).invoke_fused_moe_triton_kernel
_quantize = modules.module(modules.MX_QUANTIZE)._mxfp8_e4m3_quantize_triton

BETA, LINEAR_BETA = 4.0, 25.0
PAIRS = 16  # of one expert in a program
CONFIG = {
    "BLOCK_SIZE_M": PAIRS,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _scaled(values: Tensor, codes: Tensor) -> Tensor:
    """values [.., k] times 2**(code - 127), codes [.., k / 32]; NaN for code 255. BF16, exact."""
    scale = codes.contiguous().view(torch.float8_e8m0fnu).bfloat16()
    return (values.bfloat16().unflatten(-1, (-1, 32)) * scale[..., None]).flatten(-2)


def _weights(nibbles: Tensor, scales: Tensor) -> Tensor:
    """MXFP4 bytes [.., k / 2], low nibble first, as BF16 [.., k]."""
    table = torch.tensor(_E2M1 + tuple(-v for v in _E2M1), dtype=torch.bfloat16, device=nibbles.device)
    return _scaled(table[torch.stack([nibbles & 15, nibbles >> 4], -1).flatten(-2).int()], scales)


def _matmul(x: Tensor, weight: Tensor, of_expert: Tensor, rows: Tensor, experts: Tensor, out: Tensor) -> None:
    """out[pair] = weight[expert of the pair] x[pair // pairs a row of x] for the sorted pairs ``rows``."""
    _grouped(
        x,
        weight,
        out,
        None,
        None,
        None,
        sorted_token_ids=rows,
        expert_ids=experts,
        num_tokens_post_padded=torch.tensor([len(rows)], dtype=torch.int32, device=x.device),
        mul_routed_weight=False,
        top_k=len(of_expert) // len(x),
        config=_config(x),
        compute_type=tl.float32 if out.dtype == torch.float32 else tl.bfloat16,
        use_fp8_w8a8=False,
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        per_channel_quant=False,
    )


def _config(x: Tensor) -> dict[str, Any]:
    """Few large programs in the interpreter, where a program costs more than its work."""
    return CONFIG if x.is_cuda else CONFIG | {"BLOCK_SIZE_N": 512, "BLOCK_SIZE_K": 512}


def sorted_pairs(of_expert: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Pairs by expert, each expert's padded to whole blocks with a pair that does not exist, and the expert
    (its place among the used ones) of each block. int32"""
    used, places, counts = of_expert.unique(return_inverse=True, return_counts=True)
    blocks = -(-counts // block)
    order = places.argsort(stable=True)
    first = (blocks.cumsum(0) - blocks) * block  # where an expert's pairs begin
    within = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[places[order]]
    rows = torch.full((int(blocks.sum()) * block,), len(of_expert), dtype=torch.int32, device=order.device)
    rows[first[places[order]] + within] = order.int()
    return rows, torch.arange(len(used), device=order.device).repeat_interleave(blocks).int()


@implements("experts", provider="vllm_triton", profile="stock", requires=("triton",))
def experts(a: ExpertsArguments) -> None:
    """out[row, column] = bf16(sum over slots of weight * bf16(W2 MX(SiTU(W13 x))))."""
    of_expert = a.ids.flatten().long()
    used = of_expert.unique()
    rows, blocks = sorted_pairs(of_expert, PAIRS)
    x = _scaled(a.x.contiguous().view(torch.float8_e4m3fn), a.x_scale)
    halves = [slice(start, start + a.live) for start in (0, a.padded)]
    w13 = torch.cat([_weights(a.w13[used, half], a.w13_scale[used, half]) for half in halves], 1)
    raw = torch.empty(len(of_expert), 2 * a.live, device=x.device)
    _matmul(x, w13, of_expert, rows, blocks, raw.unsqueeze(1))
    g, u = raw.split(a.live, -1)
    hidden = BETA * torch.tanh(g / BETA) * torch.sigmoid(g) * (LINEAR_BETA * torch.tanh(u / LINEAR_BETA))
    stored = _scaled(*_quantize(hidden))
    w2 = _weights(a.w2[used, :, : a.live // 2], a.w2_scale[used, :, : a.live // 32])
    each = torch.empty(len(of_expert), a.out.shape[1], dtype=torch.bfloat16, device=x.device)
    _matmul(stored, w2, of_expert, rows, blocks, each.unsqueeze(1))
    each = each.unflatten(0, a.ids.shape)
    if a.rows is not None:
        a.rows.copy_(each)
    a.out.copy_((each.float() * a.weights.float()[..., None]).sum(1))
