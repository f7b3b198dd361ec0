"""Layers of the stock path from released libraries: cuBLAS, vLLM's and FLA's Triton kernels, OpenAI's MXFP4
product.

Operation by operation the best that runs here without compiled parts of vLLM: products by cuBLAS through
torch; AttnRes, convolution, recurrence, gated norm and latent attention by vLLM 0.33.0's Triton kernels;
routed experts by ``triton_kernels.matmul_ogs`` (the copy in that release); element-wise work and norms
compiled by Inductor, as vLLM compiles them. Every rank computes the whole router, latent down- and
up-projection, as stock does. An all-reduce over ranks is the sum of what lies in a mailbox of one slot a
rank, by one kernel.

What this cannot show: vLLM's own compiled kernels, and communication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels_under_test.layers.shapes import (
    EPS,
    EXPERTS,
    HEAD_DIM,
    HIDDEN,
    KV_RANK,
    LATENT,
    NOPE,
    Q_RANK,
    QUERY,
    ROPE,
    TOP_K,
    Shapes,
)
from kernels_under_test.layers.step import Step, once
from kernels_under_test.layers.weights import Kda, Mla, Moe, Stream, bf16, size
from kernels_under_test.vllm_release import modules

BETA, LINEAR = 4.0, 25.0
_attn_res = modules.module(modules.ATTN_RES).attn_res
_convolution = modules.module(modules.CONVOLUTION).causal_conv1d_update
_recurrence = modules.module(modules.KDA).fused_recurrent_kda_packed_decode
_gated_norm = modules.module(modules.GATED_NORM).rms_norm_gated
_attention = modules.module(modules.MLA_DECODE).decode_attention_fwd


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """By Inductor, for static shapes: one fused kernel where it finds one."""
    return torch.compile(function, dynamic=False, mode="max-autotune-no-cudagraphs")


@compiled
def situ(gate_up: Tensor) -> Tensor:
    """SiTU of the halves of [row, 2 f]; BF16."""
    g, u = gate_up.float().chunk(2, -1)
    return (BETA * torch.tanh(g / BETA) * torch.sigmoid(g) * (LINEAR * torch.tanh(u / LINEAR))).bfloat16()


@compiled
def reduced(mailbox: Tensor) -> Tensor:
    """Sum over ranks [rank, row, column] in FP32; BF16."""
    return mailbox.float().sum(0).bfloat16()


@compiled
def select(logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores FP32 and the 16 experts with their weights."""
    scores = torch.sigmoid(logits)
    ids = torch.topk(scores + bias, TOP_K, dim=-1).indices
    weights = scores.gather(1, ids)
    weights = (weights / (weights.sum(-1, keepdim=True) + 1e-20)).bfloat16()
    return scores, ids.int(), weights


@compiled
def gated(x: Tensor, gate: Tensor) -> Tensor:
    return (x.float() * torch.sigmoid(gate.float())).bfloat16()


@compiled
def reduced_norm(mailbox: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of the sum over ranks [rank, row, column], which is rounded first; BF16."""
    wide = mailbox.float().sum(0).bfloat16().float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.float()).bfloat16()


@compiled
def finished(up: Tensor, mailbox: Tensor) -> Tensor:
    """Up-projection plus the shared expert's sum over ranks; BF16."""
    return (up.float() + mailbox.float().sum(0).bfloat16().float()).bfloat16()


def boundary(stream: Stream, blocks: int, delta: Tensor) -> Tensor:
    """AttnRes over ``blocks`` blocks and the prefix."""
    return _attn_res(
        prefix=stream.prefix, delta=delta, blocks=stream.blocks, norm_weight=stream.score_gamma,
        qk_weight=stream.score_proj, output_norm_weight=stream.gamma, num_blocks=blocks, block_write_idx=-1,
        eps=EPS, output_norm_eps=EPS,
    )  # fmt: skip


def boundary_bytes(rows: int, blocks: int) -> int:
    """Sources, delta and output of one AttnRes, and the prefix written back."""
    return rows * HIDDEN * 2 * (blocks + 4)


class Attention:
    """What the attention of every layer has: the boundary before it, the packed projection, and what follows.
    Each call leaves its result for the next; timed alone, it finds a drawn one.
    """

    def __init__(self, shapes: Shapes, rows: int, packed: int, stream: Stream, blocks: int) -> None:
        self.stream, self.blocks, self.rows = stream, blocks, rows
        self.hidden = bf16(rows, HIDDEN, scale=1.0)
        self.projected = bf16(rows, packed, scale=1.0)
        self.core = bf16(rows, shapes.width, scale=1.0)
        self.mailbox = bf16(shapes.ranks, rows, HIDDEN, scale=0.3)

    def before(self) -> None:
        self.hidden = boundary(self.stream, self.blocks, self.stream.delta)

    def after(self, o_proj: Tensor) -> None:
        torch.mm(self.core, o_proj.T, out=self.mailbox[0])
        self.hidden = boundary(self.stream, self.blocks, reduced(self.mailbox))

    def first_steps(self, weight: Callable[[], Tensor]) -> list[Step]:
        def project() -> None:
            torch.mm(self.hidden, weight().T, out=self.projected)

        moved = boundary_bytes(self.rows, self.blocks)
        return [
            Step("attn_res", self.before, lambda: moved, "vLLM Triton"),
            Step("projection", project, lambda: size(weight()), "cuBLAS"),
        ]

    def last_step(self, o_proj: Callable[[], Tensor]) -> Step:
        def moved() -> int:
            return size(o_proj(), self.mailbox) + boundary_bytes(self.rows, self.blocks)

        return Step("oproj", lambda: self.after(o_proj()), moved, "cuBLAS, Inductor, vLLM Triton")


def kda_attention(shapes: Shapes, rows: int, stream: Stream, blocks: int) -> list[Step]:
    """Pre-attention AttnRes to post-attention AttnRes of a KDA layer."""
    w, flow = Kda(shapes, rows), Attention(shapes, rows, shapes.kda_rows, stream, blocks)
    d, h = shapes.width, shapes.heads
    slots, projected = w.slots[:, 0].contiguous(), flow.projected
    weight = once(lambda: w.conv_weight.reshape(4, -1).T.contiguous())
    f_a, beta = projected[:, 4 * d : 4 * d + HEAD_DIM], projected[:, 4 * d + HEAD_DIM : 4 * d + HEAD_DIM + h]
    gate = projected[:, 3 * d : 4 * d].unflatten(-1, (h, HEAD_DIM))[None]

    def recurrence() -> None:
        raw_g = (f_a @ w.f_b.T).unflatten(-1, (h, HEAD_DIM))[None]
        qkv = torch.empty(rows, 3 * d, dtype=torch.bfloat16, device="cuda")
        _convolution(
            projected[:, : 3 * d], w.conv_state, weight(), None, activation="silu",
            conv_state_indices=slots, out=qkv,
        )  # fmt: skip
        o, _ = _recurrence(
            mixed_qkv=qkv, raw_g=raw_g, raw_beta=beta[None], A_log=w.a_log, dt_bias=w.dt_bias,
            lower_bound=-5.0, initial_state=w.state, state_indices=slots,
        )  # fmt: skip
        flow.core = _gated_norm(o, gate, w.norm, None, activation="sigmoid", eps=EPS)[0].flatten(-2)

    state = 2 * rows * (h * HEAD_DIM * HEAD_DIM * 4 + 3 * 3 * d * 2)
    return [
        *flow.first_steps(lambda: w.in_proj),
        Step("kda_decode", recurrence, lambda: state + size(w.f_b), "cuBLAS, vLLM Triton"),
        flow.last_step(lambda: w.o_proj),
    ]


def mla_attention(shapes: Shapes, rows: int, context: int, stream: Stream, blocks: int) -> list[Step]:
    """Pre-attention AttnRes to post-attention AttnRes of an MLA layer."""
    w, flow = Mla(shapes, rows, context), Attention(shapes, rows, shapes.mla_rows, stream, blocks)
    h, projected = shapes.heads, flow.projected
    query, latent = bf16(rows, h, QUERY, scale=1.0), bf16(rows, h, KV_RANK, scale=1.0)
    cache = once(lambda: w.cache.view(torch.float8_e4m3fn)[:, :, None])
    flat = once(lambda: w.cache.view(-1, QUERY))
    splits = min(64, max(4, 1 << (256 // rows).bit_length() - 1))
    partials = torch.empty(rows, h, splits, KV_RANK + 1, dtype=torch.float32, device="cuda")
    lse = torch.empty(rows, h, dtype=torch.float32, device="cuda")
    one = torch.ones((), dtype=torch.float32, device="cuda")

    def queries() -> None:
        q, key = normed(projected, w.q_norm, w.kv_norm)
        flat()[w.slots] = key.view(torch.uint8)
        heads = (q @ w.q_b.T).view(rows, h, NOPE + ROPE)
        torch.bmm(heads[..., :NOPE].transpose(0, 1), w.w_uk, out=query[..., :KV_RANK].transpose(0, 1))
        query[..., KV_RANK:] = heads[..., NOPE:]

    def attention() -> None:
        _attention(
            query, cache(), cache()[..., :KV_RANK], latent, lse, w.table, w.lengths, partials, splits,
            (NOPE + ROPE) ** -0.5, page_size=w.cache.shape[1], k_scale=one, v_scale=one, is_mla=True,
        )  # fmt: skip

    def value() -> None:
        v = torch.bmm(latent.transpose(0, 1), w.w_uv).transpose(0, 1).reshape(rows, -1)
        flow.core = gated(v, projected[:, Q_RANK + QUERY :])

    keys = rows * context * QUERY
    return [
        *flow.first_steps(lambda: w.in_proj),
        Step("mla_query", queries, lambda: size(w.q_b, w.w_uk), "Inductor, cuBLAS, torch"),
        Step("mla_attention", attention, lambda: keys, "vLLM Triton"),
        Step("mla_value", value, lambda: size(w.w_uv), "cuBLAS, Inductor"),
        flow.last_step(lambda: w.o_proj),
    ]


@compiled
def normed(x: Tensor, q_norm: Tensor, kv_norm: Tensor) -> tuple[Tensor, Tensor]:
    """Normed q_a BF16, and the new FP8 key: normed latent and k_pe."""
    q, kv = x[:, :Q_RANK].float(), x[:, Q_RANK : Q_RANK + KV_RANK].float()
    q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + EPS) * q_norm.float()
    kv = kv * torch.rsqrt(kv.square().mean(-1, keepdim=True) + EPS) * kv_norm.float()
    key = torch.cat([kv.bfloat16(), x[:, Q_RANK + KV_RANK : Q_RANK + QUERY]], 1)
    return q.bfloat16(), key.to(torch.float8_e4m3fn)


def moe(shapes: Shapes, rows: int) -> list[Step]:
    """Router to MoE output, from the post-attention hidden rows."""
    from kernels_under_test.layers.released_moe import Experts

    w = Moe(shapes, 1)
    experts = once(lambda: Experts(w, situ))
    hidden = bf16(rows, HIDDEN, scale=1.0)
    logits = torch.empty(rows, EXPERTS, dtype=torch.float32, device="cuda").normal_()
    latent = bf16(rows, LATENT, scale=1.0)
    partial = bf16(shapes.ranks, rows, LATENT, scale=0.3)
    shared = bf16(shapes.ranks, rows, HIDDEN, scale=0.3)
    made: dict[str, Any] = {}

    def front() -> None:
        torch.mm(hidden, w.router.T, out_dtype=torch.float32, out=logits)
        torch.mm(hidden, w.down.T, out=latent)

    def route() -> None:
        made["choice"] = select(logits, w.bias)

    def tail() -> None:
        finished(reduced_norm(partial, w.latent_gamma) @ w.up.T, shared)

    def shared_expert() -> None:
        torch.mm(situ(hidden @ w.gate_up.T), w.shared_down.T, out=shared[0])

    def routed() -> None:
        if "choice" not in made:
            route()
        scores, ids, weights = made["choice"]
        experts()(latent, scores, ids, weights, partial[0])

    return [
        Step(
            "shared_expert",
            shared_expert,
            lambda: size(w.gate_up, w.shared_down),
            "cuBLAS, Inductor",
            stream="shared",
        ),
        Step("moe_front", front, lambda: size(w.router, w.down), "cuBLAS"),
        Step("route", route, lambda: size(logits), "Inductor, torch.topk"),
        Step("experts", routed, lambda: w.routed_bytes(rows), "triton_kernels"),
        Step("moe_tail", tail, lambda: size(w.up, partial, shared), "Inductor, cuBLAS", join="shared"),
    ]


def dense(shapes: Shapes, rows: int) -> list[Step]:
    """The dense MLP of layer 0, with its all-reduce."""
    gate_up = once(lambda: bf16(2 * shapes.dense, HIDDEN))
    down = once(lambda: bf16(HIDDEN, shapes.dense))
    hidden, mailbox = bf16(rows, HIDDEN, scale=1.0), bf16(shapes.ranks, rows, HIDDEN, scale=0.3)

    def run() -> object:
        torch.mm(situ(hidden @ gate_up().T), down().T, out=mailbox[0])
        return reduced(mailbox)

    return [Step("dense_mlp", run, lambda: size(gate_up(), down(), mailbox), "cuBLAS, Inductor")]
