"""The whole decode step as an ordered list of operations (section 2.1).

Catches: nothing by itself; a test compares its data flow with a restatement in float64. Cannot represent: the
separate final norm of the stock path, which is the last AttnRes' here (section 2.3: the values are the same
but for the declared roundings).
"""

from __future__ import annotations

from validation.contracts.vocabulary.embedding import EmbeddingArguments
from validation.contracts.vocabulary.logits import LogitsArguments
from validation.subjects.kimi_k3 import attention, boundaries, mlp
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding, Operation, Program


def program(c: Config, tokens: int = 1) -> Program:
    """Operations of a step with ``tokens`` tokens a request, embedding to logits."""
    found: Program = [Operation("embedding", -1, -1, _embedding)]
    for layer in range(c.layers):
        found.append(boundaries.before_attention(c, layer))
        found += attention.mla(c, layer) if c.is_mla(layer) else attention.kda(c, layer, tokens)
        found.append(boundaries.after_attention(c, layer))
        found += mlp.dense(c, layer) if layer < c.dense_layers else mlp.moe(c, layer)
    return [*found, boundaries.final_mix(c), Operation("logits", c.layers, -1, _logits)]


def _embedding(b: Binding) -> EmbeddingArguments:
    return EmbeddingArguments(
        ids=b.batch.ids,
        ids32=b.batch.ids.to(b.batch.slots.dtype),
        weight=b.weights["embedding"],
        out=b.scratch.embedded[:, : b.batch.rows],
        org_vocab=b.config.vocabulary,
    )


def _logits(b: Binding) -> LogitsArguments:
    s, rows = b.scratch, b.batch.rows
    return LogitsArguments(
        x=s.last[:rows],
        gamma=s.no_gain,
        weight=b.weights["head"],
        rows_wanted=b.batch.wanted,
        hidden=s.unused[:rows],
        out=s.logits[:, : len(b.batch.wanted), : b.config.vocabulary],
        org_vocab=b.config.vocabulary,
        norm="done",
        eps=b.config.eps,
    )
