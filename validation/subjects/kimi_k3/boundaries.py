"""The residual stream of the step: AttnRes before attention and at the end, o-projection and AttnRes after it
(section 2.1, steps 2a, 2c and 3).

Catches: nothing by itself. Cannot represent: the mailbox in which the MoE output travels to the next AttnRes;
here it is a tensor.
"""

from __future__ import annotations

from typing import Any

from validation.contracts.arguments import AttnResArguments
from validation.contracts.oproj_arguments import OprojArguments
from validation.contracts.oproj_inputs import takes_two_shots
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding, Operation


def before_attention(c: Config, layer: int) -> Operation:
    """prefix := bf16(prefix + delta) (on layer 0 the embedding), the block of a block-writing layer, the
    auxiliary row, and the mixture's norm into ``hidden``."""

    def arguments(b: Binding) -> AttnResArguments:
        s, rows = b.scratch, b.batch.rows
        return AttnResArguments(
            **_stream(b),
            delta=s.embedded[0, :rows] if layer == 0 else s.delta[:rows],
            score_gamma=b.weight(layer, "before.score_gamma"),
            score_proj=b.weight(layer, "before.score_proj"),
            gamma=b.weight(layer, "before.gamma"),
            aux=_aux(b, layer),
            out=s.hidden[:rows],
            blocks_read=c.blocks_before(layer),
            write_block=layer // c.attn_res_block if c.writes_block(layer) else -1,
            merge="replace" if layer == 0 else "add",
            write_aux=layer in c.aux,
            eps_score=c.eps,
            eps=c.eps,
        )

    return Operation("attn_res", layer, -1, arguments)


def after_attention(c: Config, layer: int) -> Operation:
    """Sum of the ranks' o-projections; the prefix restarts on block-writing layers; the mixture's norm into
    ``second``."""

    def arguments(b: Binding) -> OprojArguments:
        s, rows = b.scratch, b.batch.rows
        core = s.mla_core if c.is_mla(layer) else s.kda_core
        writes = c.writes_block(layer)
        return OprojArguments(
            **_stream(b),
            y=core[:, :rows],
            weight=b.weight(layer, "o_proj"),
            score_gamma=b.weight(layer, "after.score_gamma"),
            score_proj=b.weight(layer, "after.score_proj"),
            gamma=b.weight(layer, "after.gamma"),
            mailbox=s.mailbox,
            x_moe=s.x_moe[:rows],
            out=s.second[:rows],
            blocks_read=c.blocks_before(layer) + writes,
            merge="replace" if writes else "add",
            two_shot=takes_two_shots(c.ranks, rows),
            write_x_moe=False,
            eps_score=c.eps,
            eps=c.eps,
        )

    return Operation("oproj", layer, -1, arguments)


def final_mix(c: Config) -> Operation:
    """The last AttnRes with the final norm applied, as the specialised path has it."""

    def arguments(b: Binding) -> AttnResArguments:
        s, rows = b.scratch, b.batch.rows
        return AttnResArguments(
            **_stream(b),
            delta=s.delta[:rows],
            score_gamma=b.weights["final.score_gamma"],
            score_proj=b.weights["final.score_proj"],
            gamma=b.weights["final.gamma"],
            aux=_aux(b, c.layers),
            out=s.last[:rows],
            blocks_read=c.blocks,
            finish="final",
            write_aux=c.layers in c.aux,
            eps_score=c.eps,
            eps=c.eps,
        )

    return Operation("attn_res", c.layers, -1, arguments)


def _stream(b: Binding) -> dict[str, Any]:
    return {"prefix": b.scratch.prefix[: b.batch.rows], "blocks": b.scratch.blocks[: b.batch.rows]}


def _aux(b: Binding, layer: int):  # type: ignore[no-untyped-def]
    """The auxiliary row buffer of a layer; one that nobody reads where there is none."""
    aux, rows = b.config.aux, b.batch.rows
    return b.scratch.aux[aux.index(layer), :rows] if layer in aux else b.scratch.unused[:rows]
