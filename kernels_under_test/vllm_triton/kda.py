"""KDA core through vLLM's Triton kernels: the stock decode of Kimi K3 at TP16, and of all its verify steps.

vLLM's, in the order in which its layer calls them: the convolution with its history (BF16 out), the
recurrence with L2 norm, decay gate and beta inside (packed for one token, with slots and accepted counts
for several), the gated norm. Ours, in torch: the product with F_b (cuBLAS in vLLM) and the copy into
``out``.

Null slots: vLLM pads with slot 0. Its recurrence skips every slot <= 0, but its convolution only slot 0,
and takes a negative one for an offset before the cache. The subject promises nothing for negative slots
either, so they become 0 here. In a verify step vLLM leaves the rows of a padding request as they were after
the first, and moves on the history of a request whose first slot is live; the rows are zeroed here, as its
caller does before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels_under_test.gemm import fp32_partial_sums
from kernels_under_test.vllm_release import modules
from validation.errors import UserError
from validation.providers import implements

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.arguments import KdaArguments

_convolution = modules.module(modules.CONVOLUTION).causal_conv1d_update
_recurrence = modules.module(modules.KDA)
_gated_norm = modules.module(modules.GATED_NORM).rms_norm_gated

EPS_L2 = 1e-6  # a literal in vLLM's kernels


def _inputs(a: KdaArguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """qkv [row, 3 d], raw decay gate and output gate [1, row, head, dim], raw beta [1, row, head], conv
    weight [3 d, tap]."""
    if a.eps_l2 != EPS_L2:
        raise UserError(f"vllm normalises q and k with eps {EPS_L2}; the case wants {a.eps_l2}")
    part = {name: a.projected[:, columns] for name, columns in a.columns().items()}
    with fp32_partial_sums():
        raw_g = (part["f_a"] @ a.f_b.T).unflatten(-1, (a.heads, a.head_dim))[None]
    gate = part["gate"].unflatten(-1, (a.heads, a.head_dim))[None]
    weight = a.conv_weight.reshape(4, -1).T.contiguous()
    return a.projected[:, : 3 * a.width], raw_g, gate, part["beta"][None], weight


def _finish(a: KdaArguments, core: Tensor, gate: Tensor) -> None:
    """The gated norm of the core output [1, row, head, v], into ``out``."""
    normed = _gated_norm(core, gate, a.norm_weight, None, activation="sigmoid", eps=a.eps)
    a.out.copy_(normed[0].flatten(-2))


@implements("kda_decode", provider="vllm_triton", profile="library", requires=("triton",))
def kda_decode(a: KdaArguments) -> None:
    """One token a request; null slots give zero rows."""
    qkv, raw_g, gate, beta, weight = _inputs(a)
    slots = a.slots[:, 0].clamp(min=0)
    qkv = _convolution(
        qkv,
        a.conv_state,
        weight,
        None,
        activation="silu",
        conv_state_indices=slots,
        validate_data=True,
        out=torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device),
    )
    core, _ = _recurrence.fused_recurrent_kda_packed_decode(
        mixed_qkv=qkv,
        raw_g=raw_g,
        raw_beta=beta,
        A_log=a.a_log,
        dt_bias=a.dt_bias,
        lower_bound=a.lower_bound,
        initial_state=a.state,
        state_indices=slots,
    )
    _finish(a, core, torch.where((slots > 0)[:, None, None], gate, 0))


@implements("kda_verify", provider="vllm_triton", profile="library", requires=("triton",))
def kda_verify(a: KdaArguments) -> None:
    """q tokens a request from the state after the last accepted one."""
    requests, tokens = a.slots.shape
    qkv, raw_g, gate, beta, weight = _inputs(a)
    starts = torch.arange(0, requests * tokens + 1, tokens, dtype=torch.int32, device=a.slots.device)
    qkv = _convolution(
        qkv,
        a.conv_state,
        weight,
        None,
        activation="silu",
        conv_state_indices=a.slots[:, 0],
        num_accepted_tokens=a.accepted,
        query_start_loc=starts,
        max_query_len=tokens,
        validate_data=False,
        out=torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device),
    )
    q, k, v = (x.unflatten(-1, (a.heads, a.head_dim))[None] for x in qkv.split(a.width, -1))
    core, _ = _recurrence.fused_recurrent_kda(
        q=q,
        k=k,
        v=v,
        raw_g=raw_g,
        raw_beta=beta,
        A_log=a.a_log,
        dt_bias=a.dt_bias,
        lower_bound=a.lower_bound,
        initial_state=a.state,
        cu_seqlens=starts,
        ssm_state_indices=a.slots,
        num_accepted_tokens=a.accepted,
        out=torch.zeros_like(v, memory_format=torch.contiguous_format),
    )
    _finish(a, core, gate)
