"""KDA core through ``fla.ops.kda.fused_recurrent_kda``, one call a token.

FLA's: the L2 norm of q and k, the decay gate exp(lower_bound * sigmoid(exp(A_log) * (g + dt_bias))), the
sigmoid of beta, the delta rule on an FP32 state, the core output. Ours, in torch: the convolution with its
history, the product with F_b, gathering and scattering of slots, the gated norm.

Roundings (profile ``library``): q, k, v and g are BF16 because a model hands them over in BF16, and FLA
returns the core output in the dtype of v; inside, and in the state, FLA computes in FP32. Between the
tokens of a verify step the state stays FP32, so several calls give what one call over the tokens would.

Every intermediate that FLA reads lies between NaN (``fenced``), as the arguments do in the arena: in 0.5.2
the load of g has no mask, so for a head dimension that is no power of two the last head of the last request
reads what lies behind g, and 0 * NaN spreads over its row and state. 0.6.0 masks it.

What this cannot show: FLA's own conv, norm and chunked kernels, and its in-place handling of slots.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from kernels_under_test.gemm import fp32_partial_sums
from validation.errors import UserError
from validation.providers import implements

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "Triton is not supported on current platform": it is, interpreted
    from fla.ops.kda import fused_recurrent_kda

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.arguments import KdaArguments

EPS_L2 = 1e-6  # FLA's own, not a parameter


def fenced(value: Tensor) -> Tensor:
    """A dense copy with as many NaN in front of it and behind it as its last axis is long, and 64 more."""
    fence = value.shape[-1] + 64
    memory = torch.full(
        (fence + value.numel() + fence,), float("nan"), dtype=value.dtype, device=value.device
    )
    inner = memory[fence : fence + value.numel()].view(value.shape)
    return inner.copy_(value)


def _step(a: KdaArguments) -> None:
    if a.eps_l2 != EPS_L2:
        raise UserError(f"fla normalises q and k with eps {EPS_L2}; the case wants {a.eps_l2}")
    requests, tokens = a.slots.shape
    slots, first = a.slots.long(), a.accepted.long() - 1
    initial = slots.gather(1, first[:, None])[:, 0]
    live = (initial > 0).nonzero()[:, 0]
    a.out.zero_()
    if len(live) == 0:
        return
    slots, state = slots[live], a.state[initial[live]]
    rows = a.projected.view(requests, tokens, -1)[live]
    q, k, v = _convolved(a, rows, slots[:, 0], first[live])
    part = {name: rows[..., columns] for name, columns in a.columns().items()}
    with fp32_partial_sums():
        g = (part["f_a"] @ a.f_b.T).unflatten(-1, (a.heads, a.head_dim))
    out = a.out.view(requests, tokens, a.heads, a.head_dim)
    for t in range(tokens):
        core, state = recurrent(a, [x[:, t : t + 1] for x in (q, k, v, g, part["beta"])], state)
        gate = part["gate"][:, t].unflatten(-1, (a.heads, a.head_dim))
        out[live, t] = _gated_norm(a, core[:, 0], gate)
        stored = slots[:, t] > 0
        a.state[slots[stored, t]] = state[stored]


def recurrent(a: KdaArguments, qkvgb: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """One token of each request by FLA: core BF16 [request, 1, head, v], state [request, head, v, k]."""
    q, k, v, g, beta = (fenced(x) for x in qkvgb)
    core, after = fused_recurrent_kda(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        A_log=a.a_log,
        dt_bias=a.dt_bias,
        initial_state=fenced(state),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        lower_bound=a.lower_bound,
        state_v_first=True,
    )
    return core, after


def _convolved(a: KdaArguments, rows: Tensor, slot: Tensor, first: Tensor) -> tuple[Tensor, ...]:
    """q, k, v BF16 [request, token, head, dim] after the convolution and SiLU; moves the history on."""
    column = first[:, None, None] + torch.arange(3, device=rows.device)
    taps = a.conv_state[slot].gather(2, column.expand(-1, 3 * a.width, -1))
    window = torch.cat([taps, rows[..., : 3 * a.width].transpose(1, 2)], 2)
    a.conv_state[slot, :, : rows.shape[1] + 2] = window[..., 1:]
    weight = a.conv_weight.reshape(4, -1).T[:, None, :]
    u = (window.float().unfold(2, 4, 1) * weight).sum(-1)  # [request, channel, token]
    z = torch.nn.functional.silu(u).bfloat16().transpose(1, 2)
    return z.unflatten(-1, (3, a.heads, a.head_dim)).unbind(2)


def _gated_norm(a: KdaArguments, core: Tensor, gate: Tensor) -> Tensor:
    """RMSNorm of the core output over v, times its weight and the sigmoid of the gate; [request, head, v]."""
    o = core.float()
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + a.eps) * a.norm_weight.float()
    return (o * torch.sigmoid(gate.float())).bfloat16()


@implements("kda_decode", provider="fla", profile="library", requires=("triton", "fla"))
def kda_decode(a: KdaArguments) -> None:
    """One token a request; null slots give zero rows."""
    _step(a)


@implements("kda_verify", provider="fla", profile="library", requires=("triton", "fla"))
def kda_verify(a: KdaArguments) -> None:
    """q tokens a request from the state after the last accepted one; null slots give zero rows."""
    _step(a)
