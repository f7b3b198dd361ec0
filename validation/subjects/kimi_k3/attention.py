"""Attention of a layer, rank by rank: KDA, and MLA with a whole or a sharded cache (section 2.1, step 2b).

Catches: nothing by itself. Cannot represent: the overlap of ranks.
"""

from __future__ import annotations

from validation.contracts.arguments import KdaArguments, ProjectionArguments
from validation.contracts.mla.attention_arguments import MlaAttentionArguments
from validation.contracts.mla.dcp_arguments import MlaDcpArguments
from validation.contracts.mla.query_arguments import MlaQueryArguments
from validation.contracts.mla.value import MlaValueArguments
from validation.subjects.kimi_k3.batch import INTERLEAVE
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding, Operation, Program


def kda(c: Config, layer: int, tokens: int) -> Program:
    """Projection and core of every rank; a verify step (``tokens`` > 1) rolls back by slot."""
    found = []
    op = "kda_verify" if tokens > 1 else "kda_decode"
    for rank in range(c.ranks):
        found += [_projection(c, layer, rank), Operation(op, layer, rank, _kda_core(c, layer, rank))]
    return found


def _projection(c: Config, layer: int, rank: int) -> Operation:
    def arguments(b: Binding) -> ProjectionArguments:
        out = b.scratch.mla_projected if c.is_mla(layer) else b.scratch.kda_projected
        return ProjectionArguments(
            x=b.scratch.hidden[: b.batch.rows],
            weight=b.weight(layer, "in_proj")[rank],
            out=out[rank, : b.batch.rows],
        )

    return Operation("projection", layer, rank, arguments)


def _kda_core(c: Config, layer: int, rank: int):  # type: ignore[no-untyped-def]
    def arguments(b: Binding) -> KdaArguments:
        rows = b.batch.rows
        return KdaArguments(
            projected=b.scratch.kda_projected[rank, :rows],
            conv_weight=b.weight(layer, "conv")[rank],
            f_b=b.weight(layer, "f_b")[rank],
            a_log=b.weight(layer, "a_log")[rank],
            dt_bias=b.weight(layer, "dt_bias")[rank],
            norm_weight=b.weight(layer, "norm"),
            slots=b.batch.slots,
            accepted=b.batch.accepted,
            conv_state=b.state.conv[layer][rank],
            state=b.state.recurrent[layer][rank],
            out=b.scratch.kda_core[rank, :rows],
            heads=c.local_heads,
            head_dim=c.kda_dim,
            tokens=b.batch.tokens,
            lower_bound=c.lower_bound,
            eps=c.eps,
        )

    return arguments


def mla(c: Config, layer: int) -> Program:
    """Query and key insert of every rank, attention (of each rank's heads, or of all heads over the sharded
    cache), value."""
    ranks = range(c.ranks)
    found: Program = []
    for rank in ranks:
        found += [_projection(c, layer, rank), Operation("mla_query", layer, rank, _query(c, layer, rank))]
    if c.dcp > 1:
        found.append(Operation("mla_dcp", layer, -1, _sharded(c, layer)))
    else:
        found += [Operation("mla_attention", layer, rank, _attention(c, layer, rank)) for rank in ranks]
    return found + [Operation("mla_value", layer, rank, _value(c, layer, rank)) for rank in ranks]


def _heads(c: Config, rank: int) -> slice:
    return slice(rank * c.local_heads, (rank + 1) * c.local_heads)


def _query(c: Config, layer: int, rank: int):  # type: ignore[no-untyped-def]
    def arguments(b: Binding) -> MlaQueryArguments:
        rows = b.batch.rows
        return MlaQueryArguments(
            projected=b.scratch.mla_projected[rank, :rows],
            q_norm=b.weight(layer, "q_norm"),
            kv_norm=b.weight(layer, "kv_norm"),
            w_q=b.weight(layer, "w_q")[rank],
            w_uk=b.weight(layer, "w_uk")[rank],
            slot=b.batch.kv_slot[rank],
            cache=b.state.kv[layer][rank],
            query=b.scratch.query[:rows, _heads(c, rank)],
            heads=c.local_heads,
            q_scale=c.q_scale,
            k_scale=c.k_scale,
            eps=c.eps,
        )

    return arguments


def _attention(c: Config, layer: int, rank: int):  # type: ignore[no-untyped-def]
    def arguments(b: Binding) -> MlaAttentionArguments:
        rows = b.batch.rows
        return MlaAttentionArguments(
            query=b.scratch.query[:rows, _heads(c, rank)],
            cache=b.state.kv[layer][rank],
            block_table=b.batch.block_table[rank],
            lengths=b.batch.lengths[rank],
            out=b.scratch.attended[:rows, _heads(c, rank)],
            tokens=b.batch.tokens,
            q_scale=c.q_scale,
            k_scale=c.k_scale,
        )

    return arguments


def _sharded(c: Config, layer: int):  # type: ignore[no-untyped-def]
    def arguments(b: Binding) -> MlaDcpArguments:
        rows = b.batch.rows
        return MlaDcpArguments(
            query=b.scratch.query[:rows],
            cache=b.state.kv[layer],
            block_table=b.batch.block_table,
            lengths=b.batch.lengths,
            totals=b.batch.totals,
            out=b.scratch.attended[:rows],
            tokens=b.batch.tokens,
            interleave=INTERLEAVE,
            q_scale=c.q_scale,
            k_scale=c.k_scale,
        )

    return arguments


def _value(c: Config, layer: int, rank: int):  # type: ignore[no-untyped-def]
    def arguments(b: Binding) -> MlaValueArguments:
        rows = b.batch.rows
        return MlaValueArguments(
            latent=b.scratch.attended[:rows, _heads(c, rank)],
            projected=b.scratch.mla_projected[rank, :rows],
            w_uv=b.weight(layer, "w_uv")[rank],
            lengths=b.batch.totals,
            out=b.scratch.mla_core[rank, :rows],
            heads=c.local_heads,
            tokens=b.batch.tokens,
            gate_start=c.gate_start,
        )

    return arguments
