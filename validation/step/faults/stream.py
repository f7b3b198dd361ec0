"""The residual stream, and what operations leave for each other: blocks, ranks, auxiliary rows, stale
fragments (F01, F12, F33, F43, F54).

Catches and cannot catch: see the package.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from validation.step.executor import Executor
from validation.step.faults.planted import Planted, afterwards, instead
from validation.subjects.kimi_k3.operation import Operation


def _stale_fragment(a: Any) -> None:
    a.out[-1, -8:] = a.out[0, -8:]


def _stale_aux(operation: Operation, a: Any) -> Any:
    """The auxiliary row is the prefix before the delta is added."""
    if a.write_aux and a.merge == "add":
        a.aux.copy_(a.prefix)
        return replace(a, write_aux=False)
    return a


def _one_rank_lost(operation: Operation, a: Any) -> Any:
    return replace(a, y=torch.cat([a.y[:-1], torch.zeros_like(a.y[-1:])]))


def _added(operation: Operation, a: Any) -> Any:
    return replace(a, merge="add")


def _a_block_too_few(operation: Operation, a: Any) -> Any:
    return replace(a, blocks_read=max(a.blocks_read - 1, 0))


def _wrong_block(a: Any) -> None:
    if a.write_block > 0:
        a.blocks[:, a.write_block - 1] = a.blocks[:, a.write_block]


def _skipped(right: Executor) -> Executor:
    def run(operation: Operation, a: Any) -> None:
        if (operation.op, operation.layer) != ("moe_tail", 2):
            right.run(operation, a)

    return replace(right, run=run)


_STALE = {op: afterwards(op, _stale_fragment) for op in ("projection", "moe_tail")}
FAULTS = (
    Planted("F01", "one_rank_lost", "oproj", "plain", instead("oproj", _one_rank_lost, 2)),
    Planted("F12", "prefix_added_not_replaced", "oproj", "plain", instead("oproj", _added, 2)),
    Planted("F12", "a_block_too_few", "attn_res", "plain", instead("attn_res", _a_block_too_few, 3)),
    Planted("F12", "snapshot_into_wrong_block", "attn_res", "plain", afterwards("attn_res", _wrong_block)),
    Planted("F33", "aux_before_the_sum", "attn_res", "plain", instead("attn_res", _stale_aux)),
    Planted("F43", "stale_fragment_projection", "projection", "plain", _STALE["projection"]),
    Planted("F43", "stale_fragment_tail", "moe_tail", "plain", _STALE["moe_tail"]),
    Planted("F54", "operation_not_executed", "moe_tail", "plain", _skipped),
)
