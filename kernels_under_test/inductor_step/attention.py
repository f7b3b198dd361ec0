"""KDA and MLA with masks instead of loops and selections.

Padding requests write back what was there; their rows are zero. Catches and cannot catch: nothing by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from validation.contracts.mla.attention_arguments import LATENT

E4M3_MAX = 448.0


def kda(a: Any) -> None:
    """q tokens a request from the state after the last accepted one; the history moves on."""
    requests, q = a.slots.shape
    first = a.accepted.long() - 1
    slots = a.slots.long()
    initial = slots.gather(1, first[:, None])[:, 0]
    live = initial > 0
    rows = a.projected.reshape(requests, q, -1)
    window = _window(a, rows, slots[:, 0].clamp(min=0), first, live)
    z = _convolution(a, window, requests, q)
    query, key, v = (z[:, :, part].float() for part in range(3))
    query = _l2(query, a.eps_l2) * a.head_dim**-0.5
    key = _l2(key, a.eps_l2)
    decay, beta = _gates(a, rows)
    state = a.state[initial.clamp(min=0)]
    tokens = []
    for t in range(q):
        k = key[:, t, :, None]
        state = state * decay[:, t, :, None]
        correction = (v[:, t] - (state * k).sum(-1)) * beta[:, t, :, None]
        state = state + correction[..., None] * k
        tokens.append((state * query[:, t, :, None]).sum(-1).bfloat16())
        _put(a.state, slots[:, t], live, state)
    core = torch.stack(tokens, 1).float()
    gate = torch.sigmoid(rows[..., a.columns()["gate"]].float()).reshape(core.shape)
    inverse = torch.rsqrt(core.square().mean(-1, keepdim=True) + a.eps)
    out = core * inverse * a.norm_weight.float() * gate
    out = torch.where(live[:, None, None, None], out, 0.0)
    a.out.copy_(out.bfloat16().reshape(a.out.shape))


def _put(cache: Tensor, slot: Tensor, live: Tensor, new: Tensor) -> None:
    """Store rows in the slots of live requests; the null slot gets back what it holds."""
    keep = live & (slot > 0)
    safe = torch.where(keep, slot, 0)
    shape = (-1,) + (1,) * (new.dim() - 1)
    cache[safe] = torch.where(keep.reshape(shape), new, cache[safe])


def _window(a: Any, rows: Tensor, slot: Tensor, first: Tensor, live: Tensor) -> Tensor:
    """The three taps before token 0, then the new inputs [request, channel, 3 + q]; stores the history."""
    q = rows.shape[1]
    index = (first[:, None] + torch.arange(3, device=rows.device))[:, None].expand(-1, 3 * a.width, -1)
    held = a.conv_state[slot]
    window = torch.cat([held.gather(2, index), rows[..., : 3 * a.width].transpose(1, 2)], 2)
    moved = torch.cat([window[..., 1:], held[..., 2 + q :]], 2)
    _put(a.conv_state, slot, live, moved)
    return window


def _convolution(a: Any, window: Tensor, requests: int, q: int) -> Tensor:
    """SiLU of the width-4 convolution, BF16 [request, token, part, head, dim]."""
    weight = a.conv_weight.reshape(4, -1)
    tokens = []
    for t in range(q):
        u = window[..., t].float() * weight[0]
        for tap in range(1, 4):
            u = u + window[..., t + tap].float() * weight[tap]
        tokens.append(torch.nn.functional.silu(u).bfloat16())
    return torch.stack(tokens, 1).reshape(requests, q, 3, a.heads, a.head_dim)


def _l2(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def _gates(a: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Decay [request, token, head, k] and beta [request, token, head]."""
    columns = a.columns()
    g = torch.matmul(rows[..., columns["f_a"]], a.f_b.T).float()
    g = g.reshape(*rows.shape[:2], a.heads, a.head_dim)
    g = (g + a.dt_bias.reshape(a.heads, -1)) * a.a_log.exp()[:, None]
    return torch.exp(a.lower_bound * torch.sigmoid(g)), torch.sigmoid(rows[..., columns["beta"]].float())


def mla_query(a: Any) -> None:
    """Norms, q_b, absorption, E4M3; keys of rows without a slot go back to what page 0 holds."""
    c = _rms(a.part("q_a"), a.q_norm, a.eps)
    q = torch.mm(c, a.w_q.T).unflatten(1, (a.heads, -1))
    absorbed = torch.bmm(q[..., : a.nope].transpose(0, 1), a.w_uk).transpose(0, 1)
    a.query.copy_(_e4m3(torch.cat([absorbed, q[..., a.nope :]], -1), a.q_inverse))
    keys = _e4m3(torch.cat([_rms(a.part("kv"), a.kv_norm, a.eps), a.part("k_pe")], -1), a.k_inverse)
    page, live = a.cache.shape[1], a.slot >= 0
    slot = a.slot.clamp(min=0)
    place = slot // page, slot % page
    a.cache[place] = torch.where(live[:, None], keys, a.cache[place])


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).bfloat16()


def _e4m3(x: Tensor, inverse: float) -> Tensor:
    return (x.float() * inverse).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def mla_attention(a: Any) -> None:
    """All requests at once over the whole capacity; what a row does not see has no weight and no value."""
    requests, q = a.lengths.shape[0], a.tokens
    keys = a.cache[a.block_table.long()].flatten(1, 2).view(torch.float8_e4m3fn).float()
    query = a.query.reshape(requests, q, *a.query.shape[1:]).view(torch.float8_e4m3fn).float()
    bound = a.lengths.long()[:, None] - q + 1 + torch.arange(q, device=keys.device)
    seen = torch.arange(keys.shape[1], device=keys.device) < bound[..., None]
    stored = torch.arange(keys.shape[1], device=keys.device) < a.lengths.long()[:, None]
    keys = torch.where(stored[..., None], keys, 0.0)
    scores = torch.einsum("rqhw,rkw->rqhk", query, keys) * a.softmax_scale
    scores = scores.masked_fill(~seen[:, :, None], -torch.inf)
    weights = torch.softmax(torch.where(stored.any(-1)[:, None, None, None], scores, 0.0), -1)
    out = torch.einsum("rqhk,rkd->rqhd", weights, keys[..., :LATENT]) * a.k_scale
    a.out.copy_(out.reshape(a.out.shape))


def mla_value(a: Any) -> None:
    v = torch.bmm(a.latent.transpose(0, 1), a.w_uv).transpose(0, 1)
    gated = v.float() * torch.sigmoid(a.gate.float())
    a.out.copy_(torch.where(a.live[:, None, None], gated, 0.0).flatten(1))


OPERATIONS = {
    "kda_decode": kda,
    "kda_verify": kda,
    "mla_query": mla_query,
    "mla_attention": mla_attention,
    "mla_value": mla_value,
}
