"""Layers of the portable specialised kernels, for one rank: the same functions that the judge runs.

A rank projects its own shard, puts its partial into its slot of the mailbox and reads all slots; it routes by
logits of which it computed its own rows; its shared expert runs on a side stream beside the routed ones.

Weights are not prefetched: the subject does so while it waits for other ranks; here nobody waits, so a
prefetch would only compete with the kernels for the memory. What this cannot show: waiting for other ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels_under_test.layers import weights as weights_module
from kernels_under_test.layers.shapes import (
    EXPERTS,
    HEAD_DIM,
    HIDDEN,
    KV_RANK,
    LATENT,
    Q_RANK,
    QUERY,
    TOP_K,
    Shapes,
)
from kernels_under_test.layers.step import Step, once
from kernels_under_test.layers.weights import Kda, Mla, Moe, Stream, bf16, size
from kernels_under_test.triton_portable import (
    dense_mlp,
    moe_front,
    moe_tail,
    oproj,
    rank_partials,
    shared_expert,
)
from kernels_under_test.triton_portable.attn_res import attn_res
from kernels_under_test.triton_portable.kda import kda_decode
from kernels_under_test.triton_portable.projection import projection
from validation.contracts.arguments import AttnResArguments, KdaArguments, ProjectionArguments
from validation.contracts.oproj_arguments import OprojArguments
from validation.contracts.oproj_inputs import takes_two_shots

BETA, LINEAR = 4.0, 25.0
TRITON = "Triton (this suite)"


def _before(stream: Stream, rows: int, blocks: int, hidden: Tensor) -> Step:
    a = once(lambda: AttnResArguments(
        prefix=stream.prefix, delta=stream.delta, blocks=stream.blocks, score_gamma=stream.score_gamma,
        score_proj=stream.score_proj, gamma=stream.gamma, aux=stream.delta, out=hidden, blocks_read=blocks,
    ))  # fmt: skip
    return Step("attn_res", lambda: attn_res(a()), lambda: rows * HIDDEN * 2 * (blocks + 4), TRITON)


def _projected(hidden: Tensor, weight: Callable[[], Tensor], out: Tensor) -> Step:
    a = once(lambda: ProjectionArguments(x=hidden, weight=weight(), out=out))
    return Step("projection", lambda: projection(a()), lambda: size(weight()), TRITON)


def _after(
    shapes: Shapes, stream: Stream, blocks: int, core: Tensor, o_proj: Callable[[], Tensor], hidden: Tensor
) -> Step:
    """o-projection into slot 0, sum of the ranks, and the AttnRes after attention."""
    rows = core.shape[0]
    mailbox = bf16(shapes.ranks, rows, HIDDEN, scale=0.3)
    two_shot = takes_two_shots(shapes.ranks, rows)
    arguments = once(lambda: OprojArguments(
        y=core[None], weight=o_proj()[None], prefix=stream.prefix, blocks=stream.blocks,
        score_gamma=stream.score_gamma, score_proj=stream.score_proj, gamma=stream.gamma, mailbox=mailbox,
        x_moe=hidden, out=hidden, blocks_read=blocks, two_shot=two_shot,
    ))  # fmt: skip
    # An owner of columns would sum its share only; the other owners' sums lie in ``gathered``.
    gathered, share = bf16(1, rows, HIDDEN, scale=0.8), HIDDEN // shapes.ranks

    def run() -> None:
        a = arguments()
        if shapes.ranks > oproj.MANY and rows == 1:
            oproj.fused(a.y, a.weight, mailbox, a)
            return
        if rows <= 2:
            oproj.summed(a.y, a.weight, mailbox, a)
            oproj.consume(mailbox, a, summed=True)
            return
        oproj.produce(a.y, a.weight, mailbox[:1])
        if two_shot:
            rank_partials.add_ranks(mailbox[:, :, :share], gathered[0, :, :share])
        oproj.consume(gathered if two_shot else mailbox, a)

    def moved() -> int:
        return size(o_proj(), gathered if two_shot else mailbox) + rows * HIDDEN * 2 * (blocks + 4)

    return Step("oproj", run, moved, TRITON)


def kda_attention(shapes: Shapes, rows: int, stream: Stream, blocks: int) -> list[Step]:
    """Pre-attention AttnRes to post-attention AttnRes of a KDA layer."""
    w = Kda(shapes, rows)
    hidden, core = bf16(rows, HIDDEN, scale=1.0), bf16(rows, shapes.width, scale=1.0)
    projected = bf16(rows, shapes.kda_rows, scale=1.0)
    a = once(lambda: KdaArguments(
        projected=projected, conv_weight=w.conv_weight, f_b=w.f_b, a_log=w.a_log, dt_bias=w.dt_bias,
        norm_weight=w.norm, slots=w.slots, accepted=torch.ones_like(w.slots[:, 0]),
        conv_state=w.conv_state, state=w.state, out=core, heads=shapes.heads,
    ))  # fmt: skip
    state = 2 * rows * (shapes.heads * HEAD_DIM * HEAD_DIM * 4 + 3 * 3 * shapes.width * 2)
    return [
        _before(stream, rows, blocks, hidden),
        _projected(hidden, lambda: w.in_proj, projected),
        Step("kda_decode", lambda: kda_decode(a()), lambda: state + size(w.f_b), TRITON),
        _after(shapes, stream, blocks, core, lambda: w.o_proj, hidden),
    ]


def mla_attention(shapes: Shapes, rows: int, context: int, stream: Stream, blocks: int) -> list[Step]:
    """Pre-attention AttnRes to post-attention AttnRes of an MLA layer."""
    from kernels_under_test.triton_portable.mla_attention import mla_attention as attend
    from kernels_under_test.triton_portable.mla_query import mla_query
    from kernels_under_test.triton_portable.mla_value import mla_value
    from validation.contracts.mla.attention_arguments import MlaAttentionArguments
    from validation.contracts.mla.query_arguments import MlaQueryArguments
    from validation.contracts.mla.value import MlaValueArguments

    w = Mla(shapes, rows, context)
    heads = shapes.heads
    hidden, core = bf16(rows, HIDDEN, scale=1.0), bf16(rows, shapes.width, scale=1.0)
    projected = bf16(rows, shapes.mla_rows, scale=1.0)
    query = torch.zeros(rows, heads, QUERY, dtype=torch.uint8, device=weights_module.DEVICE)
    latent = bf16(rows, heads, KV_RANK, scale=1.0)
    q = once(lambda: MlaQueryArguments(
        projected=projected, q_norm=w.q_norm, kv_norm=w.kv_norm, w_q=w.q_b, w_uk=w.w_uk, slot=w.slots,
        cache=w.cache, query=query, heads=heads,
    ))  # fmt: skip
    a = once(lambda: MlaAttentionArguments(
        query=query, cache=w.cache, block_table=w.table, lengths=w.lengths, out=latent,
    ))  # fmt: skip
    v = once(lambda: MlaValueArguments(
        latent=latent, projected=projected, w_uv=w.w_uv, lengths=w.lengths, out=core, heads=heads,
        gate_start=Q_RANK + QUERY,
    ))  # fmt: skip
    return [
        _before(stream, rows, blocks, hidden),
        _projected(hidden, lambda: w.in_proj, projected),
        Step("mla_query", lambda: mla_query(q()), lambda: size(w.q_b, w.w_uk), TRITON),
        Step("mla_attention", lambda: attend(a()), lambda: rows * context * QUERY, TRITON),
        Step("mla_value", lambda: mla_value(v()), lambda: size(w.w_uv), TRITON),
        _after(shapes, stream, blocks, core, lambda: w.o_proj, hidden),
    ]


def moe(shapes: Shapes, rows: int) -> list[Step]:
    """Front to MoE output, from the post-attention hidden rows."""
    from kernels_under_test.triton_portable.experts import experts
    from kernels_under_test.triton_portable.mx_quantize import mx_quantize
    from kernels_under_test.triton_portable.route import route
    from validation.contracts.moe.experts_arguments import ExpertsArguments
    from validation.contracts.moe.quantize import MxQuantizeArguments
    from validation.contracts.moe.route import RouteArguments

    ranks = shapes.ranks
    w, experts_here, latent_here = Moe(shapes, ranks), EXPERTS // ranks, LATENT // ranks
    hidden, latent = bf16(rows, HIDDEN, scale=1.0), bf16(rows, LATENT, scale=1.0)
    logits = torch.empty(rows, EXPERTS, dtype=torch.float32, device=weights_module.DEVICE).normal_()
    partial, shared = bf16(ranks, rows, LATENT, scale=0.3), bf16(ranks, rows, HIDDEN, scale=0.3)
    out = bf16(rows, HIDDEN, scale=1.0)
    choice = once(lambda: RouteArguments(
        logits=logits, bias=w.bias, weights=bf16(rows, TOP_K),
        ids=torch.zeros(rows, TOP_K, dtype=torch.int32, device=weights_module.DEVICE),
    ))  # fmt: skip
    codes = torch.zeros(rows, LATENT, dtype=torch.uint8, device=weights_module.DEVICE)
    quantised = MxQuantizeArguments(latent, codes, torch.zeros_like(codes[:, : LATENT // 32]))

    def chosen() -> None:
        route(choice())
        mx_quantize(quantised)

    @once
    def routed() -> ExpertsArguments:
        chosen()
        return ExpertsArguments(
            x=codes, x_scale=quantised.scales, ids=choice().ids, weights=choice().weights, w13=w.w13,
            w13_scale=w.w13_scale, w2=w.w2, w2_scale=w.w2_scale, out=partial[0], rows=None,
            live=shapes.expert, hidden_rule="floor" if shapes.floor_rule else "no_saturation",
        )  # fmt: skip

    def front() -> None:
        moe_front.front(hidden, w.router, w.down, logits[:, :experts_here], latent[:, :latent_here])

    def beside() -> None:
        shared_expert.shard(hidden, w.gate_up[None], w.shared_down[None], shared[:1], BETA, LINEAR)

    def tail() -> None:
        moe_tail.tail(partial, shared, w.latent_gamma, w.up[None], out, 1e-5)

    return [
        Step("shared_expert", beside, lambda: size(w.gate_up, w.shared_down), TRITON, stream="shared"),
        Step("moe_front", front, lambda: size(w.router, w.down), TRITON),
        Step("route", chosen, lambda: size(logits, latent), TRITON),
        Step("experts", lambda: experts(routed()), lambda: w.routed_bytes(rows), TRITON),
        Step("moe_tail", tail, lambda: size(w.up, partial) + size(shared) // ranks, TRITON, join="shared"),
    ]


def dense(shapes: Shapes, rows: int) -> list[Step]:
    """The dense MLP of layer 0, with its sum over ranks."""
    gate_up = once(lambda: bf16(1, 2 * shapes.dense, HIDDEN))
    down = once(lambda: bf16(1, HIDDEN, shapes.dense))
    x, out = bf16(rows, HIDDEN, scale=1.0), bf16(rows, HIDDEN, scale=1.0)
    mailbox = bf16(shapes.ranks, rows, HIDDEN, scale=0.3)
    hidden = torch.empty(1, rows, shapes.dense, dtype=torch.bfloat16, device=weights_module.DEVICE)

    def run() -> None:
        dense_mlp.hide(x, gate_up(), hidden)
        rank_partials.produce(hidden, down(), mailbox[:1])
        rank_partials.add_ranks(mailbox, out)

    return [Step("dense_mlp", run, lambda: size(gate_up(), down(), mailbox), TRITON)]
