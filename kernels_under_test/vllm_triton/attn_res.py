"""AttnRes through vLLM's Triton kernel: what Kimi K3's stock decode launches where its native op is absent.

vLLM's: prefix + delta, the block written, the online softmax over the sources, the mixture divided by its
denominator, the output norm. Ours, in torch: the copy of delta where it replaces the prefix, the auxiliary
row and the copy of the returned rows into ``out``. The norm of ``final`` is a layer of its own in vLLM;
here it is the RMSNorm kernel of its batch-invariant mode.

The kernel writes its block before it reads its sources. vLLM's model always writes the block behind the last
one that it reads, so that does not matter there; a case that writes one of its sources is not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels_under_test.vllm_release import modules
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.arguments import AttnResArguments
    from validation.contracts.contract import Case

_attn_res = modules.module(modules.ATTN_RES).attn_res
_rms_norm = modules.module(modules.BATCH_INVARIANT).rms_norm_batch_invariant


def supports(case: Case) -> str | None:
    if 0 <= case["write"] < case["blocks"]:
        return f"vllm stores block {case['write']} before it reads blocks 0 to {case['blocks'] - 1}"
    return None


@implements("attn_res", provider="vllm_triton", profile="stock", requires=("triton",), supports=supports)
def attn_res(a: AttnResArguments) -> None:
    """Update prefix, block and auxiliary row; write the normalised mixture of the sources."""
    if a.merge == "replace":
        a.prefix.copy_(a.delta)
    mixed = _attn_res(
        prefix=a.prefix,
        delta=a.delta if a.merge == "add" else None,
        blocks=a.blocks,
        norm_weight=a.score_gamma,
        qk_weight=a.score_proj,
        output_norm_weight=a.gamma if a.finish == "norm" else None,
        num_blocks=a.blocks_read,
        block_write_idx=a.write_block,
        eps=a.eps_score,
        output_norm_eps=a.eps,
    )
    if a.write_aux:
        a.aux.copy_(a.prefix)
    if a.finish == "final":
        mixed = _rms_norm(mixed, a.gamma, a.eps)
    a.out.copy_(mixed)
