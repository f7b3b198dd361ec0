"""KDA core in the stock order: convolution, decay gate, recurrence and gated norm as separate operations.

Convolution output and core output are stored in BF16 between them; the recurrent state is FP32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_under_test.gemm import fp32_partial_sums
from validation.contracts.arguments import KdaArguments
from validation.providers import implements


def _core(a: KdaArguments) -> None:
    requests, q = a.slots.shape
    first = a.accepted.long() - 1
    initial = a.slots.long().gather(1, first[:, None])[:, 0]
    live = initial > 0
    rows = a.projected.reshape(requests, q, -1)[live]
    slots, first, initial = a.slots.long()[live], first[live], initial[live]
    a.out.zero_()
    if rows.shape[0] == 0:
        return
    z = _convolution(a, rows, slots[:, 0], first)
    query, key, v = (z[:, :, part].float() for part in range(3))
    query = _l2_normalised(query, a) * a.head_dim**-0.5
    key = _l2_normalised(key, a)
    core = _recurrence(a, rows, query, key, v, slots, initial)
    a.out.reshape(requests, q, -1)[live] = _gated_norm(a, rows, core).reshape(len(rows), q, -1)


def _convolution(a: KdaArguments, rows: Tensor, slot: Tensor, first: Tensor) -> Tensor:
    """Width-4 convolution over the accepted history and the new inputs, SiLU, BF16; the history moves on.

    Returns [request, token, part, head, dim].
    """
    n, q = rows.shape[:2]
    index = (first[:, None] + torch.arange(3, device=rows.device))[:, None].expand(-1, 3 * a.width, -1)
    taps = a.conv_state[slot].gather(2, index)
    window = torch.cat([taps, rows[..., : 3 * a.width].transpose(1, 2)], 2)
    a.conv_state[slot, :, : 2 + q] = window[..., 1:]
    weight = a.conv_weight.reshape(4, -1)
    tokens = []
    for t in range(q):
        u = torch.zeros(n, 3 * a.width, device=rows.device)
        for tap in range(4):
            u = torch.addcmul(u, window[..., t + tap].float(), weight[tap])
        tokens.append(torch.nn.functional.silu(u).bfloat16())
    return torch.stack(tokens, 1).reshape(n, q, 3, a.heads, a.head_dim)


def _l2_normalised(x: Tensor, a: KdaArguments) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + a.eps_l2)


def _decay(a: KdaArguments, rows: Tensor) -> Tensor:
    """exp(lower_bound * sigmoid(exp(A_log) * (g + dt_bias))), g = bf16(f_a F_b^T). [request, token, head,
    k]"""
    with fp32_partial_sums():
        g = rows[..., a.columns()["f_a"]] @ a.f_b.T
    g = g.float().reshape(*rows.shape[:2], a.heads, a.head_dim)
    g = (g + a.dt_bias.reshape(a.heads, -1)) * a.a_log.exp()[:, None]
    return torch.exp(a.lower_bound * torch.sigmoid(g))


def _recurrence(
    a: KdaArguments, rows: Tensor, query: Tensor, key: Tensor, v: Tensor, slots: Tensor, initial: Tensor
) -> Tensor:
    """Gated delta rule; the state after token t goes to slots[:, t] where that is above 0. BF16 core
    output."""
    decay = _decay(a, rows)
    beta = torch.sigmoid(rows[..., a.columns()["beta"]].float())
    state = a.state[initial]
    tokens = []
    for t in range(rows.shape[1]):
        k = key[:, t, :, None]
        state = state * decay[:, t, :, None]
        correction = (v[:, t] - (state * k).sum(-1)) * beta[:, t, :, None]
        state = state + correction[..., None] * k
        tokens.append((state * query[:, t, :, None]).sum(-1).bfloat16())
        stored = slots[:, t] > 0
        a.state[slots[stored, t]] = state[stored]
    return torch.stack(tokens, 1)


def _gated_norm(a: KdaArguments, rows: Tensor, core: Tensor) -> Tensor:
    core = core.float()
    gate = torch.sigmoid(rows[..., a.columns()["gate"]].float()).reshape(core.shape)
    inverse = torch.rsqrt(core.square().mean(-1, keepdim=True) + a.eps)
    return (core * inverse * a.norm_weight.float() * gate).bfloat16()


@implements("kda_decode", provider="torch", profile="stock")
def kda_decode(a: KdaArguments) -> None:
    """One token a request; null slots give zero rows."""
    _core(a)


@implements("kda_verify", provider="torch", profile="stock")
def kda_verify(a: KdaArguments) -> None:
    """q tokens a request from the state after the last accepted one."""
    _core(a)
