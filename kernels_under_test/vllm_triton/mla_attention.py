"""Latent attention over a paged FP8 cache through vLLM's Triton decode kernels (its backend TRITON_MLA).

vLLM's: attention of each split of the keys with an online softmax, FP32 scores, weights rounded to BF16 for
the product with the values (not for their sum), and the merge of the splits. Ours: the query's bytes as
BF16 (exact; with an FP8 cache this backend takes BF16 queries), its scale in the softmax scale, lengths and
tables by row, as the backend makes them for several tokens, zeros for padding.

The number of splits follows vLLM's rule for a GPU; in the interpreter it is 4 at least, so that short
requests are split too. For one head vLLM launches another kernel, which rounds every product of a score to
BF16 before it adds them: such cases are not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels_under_test.vllm_release import modules
from kernels_under_test.vllm_release.stand_ins import compute_units
from validation.contracts.mla.attention_arguments import LATENT, QK_HEAD
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.mla.attention_arguments import MlaAttentionArguments

KEYS_PER_SPLIT, PROGRAMS = 512, 2

_power_of_two = modules.module(modules.MATH).next_power_of_2
_decode = modules.module(modules.MLA_DECODE).decode_attention_fwd


def _splits(longest: int) -> int:
    """As vLLM: a power of two, 512 keys a split at least, two programs a multiprocessor at most."""
    ideal = _power_of_two(max(1, longest // KEYS_PER_SPLIT))
    return min(ideal, PROGRAMS * compute_units()) if torch.cuda.is_available() else max(ideal, 4)


def supports(case: Case) -> str | None:
    return "with one head vllm rounds each product of a score to BF16" if case["heads"] == 1 else None


@implements(
    "mla_attention", provider="vllm_triton", profile="library", requires=("triton",), supports=supports
)
def mla_attention(a: MlaAttentionArguments) -> None:
    """out[row, head] = softmax(scale * query keys^T) keys[:, :512] by request."""
    rows, heads, _ = a.query.shape
    device = a.query.device
    query = a.query.view(torch.float8_e4m3fn).bfloat16()
    cache = a.cache.view(torch.float8_e4m3fn).unsqueeze(2)
    offsets = torch.arange(1 - a.tokens, 1, device=device, dtype=a.lengths.dtype)
    seen = (a.lengths[:, None] + offsets).flatten().clamp(min=0)
    k_scale = torch.tensor(a.k_scale, device=device)
    splits = _splits(int(a.lengths.max()))
    out = torch.zeros(rows, heads, LATENT, dtype=query.dtype, device=device)
    _decode(
        query,
        cache,
        cache[..., :LATENT],
        out,
        torch.zeros(rows, heads, dtype=query.dtype, device=device),
        a.block_table.repeat_interleave(a.tokens, 0),
        seen,
        torch.full((rows, heads, splits, LATENT + 1), float("nan"), device=device),
        splits,
        QK_HEAD**-0.5 * a.q_scale,
        page_size=a.cache.shape[1],
        k_scale=k_scale,
        v_scale=k_scale,
        is_mla=True,
    )
    a.out.copy_(torch.where((seen > 0)[:, None, None], out, 0))
