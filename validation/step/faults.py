"""Faults of whole steps, planted into a right executor or between its steps, by kind of the catalogue.

Each names the operation or check that must be blamed first. What this catches: a check that would not have
noticed, or that blames another. What it cannot catch: faults nobody planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from validation.step.executor import Executor
from validation.step.walk import Hooks, Walk
from validation.subjects.kimi_k3.batch import Batch
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.requests import Request

Change = Callable[[Operation, Any], Any]


@dataclass(frozen=True)
class Planted:
    """``blamed``: operation or check that the first divergence must name. ``scenario``: which walk shows it.
    ``executor(right)`` makes the faulty executor, ``hooks()`` the faulty engine."""

    kind: str
    name: str
    blamed: str
    scenario: str
    executor: Callable[[Executor], Executor] = lambda right: right
    hooks: Callable[[], Hooks] = Hooks


def _instead(op: str, change: Change, layer: int | None = None) -> Callable[[Executor], Executor]:
    """Run ``op`` (in one layer, or in all) on changed arguments that share the right ones' outputs."""

    def wrap(right: Executor) -> Executor:
        def run(operation: Operation, a: Any) -> None:
            here = operation.op == op and layer in (None, operation.layer)
            right.run(operation, change(operation, a) if here else a)

        return replace(right, run=run)

    return wrap


def _afterwards(
    op: str, change: Callable[[Any], None], layer: int | None = None
) -> Callable[[Executor], Executor]:
    """Spoil the outcome of ``op``."""

    def wrap(right: Executor) -> Executor:
        def run(operation: Operation, a: Any) -> None:
            right.run(operation, a)
            if operation.op == op and layer in (None, operation.layer):
                change(a)

        return replace(right, run=run)

    return wrap


def _frozen(op: str, name: str) -> Callable[[Executor], Executor]:
    """The field as it was when each operation first ran: a value baked in at capture."""

    def wrap(right: Executor) -> Executor:
        first: dict[tuple[str, tuple[int, ...]], Tensor] = {}

        def run(operation: Operation, a: Any) -> None:
            if operation.op == op:
                value = getattr(a, name)
                kept = first.setdefault((operation.name, tuple(value.shape)), value.clone())
                a = replace(a, **{name: kept})
            right.run(operation, a)

        return replace(right, run=run)

    return wrap


def _field(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda operation, a: replace(a, **{name: change(getattr(a, name))})


# -- changes of arguments and outcomes ---------------------------------------------------------------------


def _too_short_window(operation: Operation, a: Any) -> Any:
    slots = a.slots.clone()
    slots[:, 2:] = 0
    return replace(a, slots=slots)


def _rewound(a: Any) -> None:
    """The history moves on by one column less."""
    slots = a.slots[a.slots[:, 0] > 0, 0].long()
    history = a.conv_state[slots]
    a.conv_state[slots] = torch.cat([history[..., :1], history[..., :-1]], -1)


def _bf16_between_tokens(a: Any) -> None:
    slots = a.slots[:, 1:][a.slots[:, 1:] > 0].long()
    a.state[slots] = a.state[slots].bfloat16().float()


def _written_slots(a: Any) -> Tensor:
    return a.slots[a.slots > 0].long()


def _bf16_state(a: Any) -> None:
    a.state[_written_slots(a)] = a.state[_written_slots(a)].bfloat16().float()


def _drift(a: Any) -> None:
    a.state[_written_slots(a)] *= 0.999


def _nan_state(a: Any) -> None:
    a.state[_written_slots(a)[0], 0, 0, 0] = float("nan")


def _stale_fragment(a: Any) -> None:
    a.out[-1, -8:] = a.out[0, -8:]


def _edge(operation: Operation, a: Any) -> Any:
    """The last place of a page is taken for the one before it."""
    page = a.cache.shape[1]
    last = (a.slot % page == page - 1) & (a.slot >= 0)
    return replace(a, slot=torch.where(last, a.slot - 1, a.slot))


def _first_of_page_lost(operation: Operation, a: Any) -> Any:
    page = a.cache.shape[1]
    return replace(a, lengths=torch.where(a.lengths % page == 1, a.lengths - 1, a.lengths))


def _stale_aux(operation: Operation, a: Any) -> Any:
    """The auxiliary row is the prefix before the delta is added."""
    if a.write_aux and a.merge == "add":
        a.aux.copy_(a.prefix)
        return replace(a, write_aux=False)
    return a


def _one_rank_lost(operation: Operation, a: Any) -> Any:
    return replace(a, y=torch.cat([a.y[:-1], torch.zeros_like(a.y[-1:])]))


def _wrong_block(a: Any) -> None:
    if a.write_block > 0:
        a.blocks[:, a.write_block - 1] = a.blocks[:, a.write_block]


def _skipped(right: Executor) -> Executor:
    def run(operation: Operation, a: Any) -> None:
        if (operation.op, operation.layer) != ("moe_tail", 2):
            right.run(operation, a)

    return replace(right, run=run)


# -- faults of an engine -----------------------------------------------------------------------------------


def _not_reset(kinds: tuple[str, ...]) -> Hooks:
    """A recycled slot keeps what its last tenant left."""

    def admitted(walk: Walk, request: Request) -> None:
        if walk.number:
            for kind, _, tensor in walk.state.buffers():
                if kind in kinds:
                    tensor[:, request.slots] = 0.25

    return Hooks(admitted=admitted)


def _at(step: int, change: Callable[[Walk], None]) -> Hooks:
    return Hooks(between=lambda walk: change(walk) if walk.number == step else None)


def _wipe(walk: Walk) -> None:
    request = walk.requests[0]
    walk.state.recurrent[1][:, request.slots[request.accepted - 1]] = 0


def _another_writes(walk: Walk) -> None:
    slot = walk.requests[1].slots[0]
    walk.state.recurrent[2][0, slot, 0] += 0.01


def _slow_drift(walk: Walk) -> None:
    for tensor in walk.state.recurrent.values():
        tensor[:, walk.requests[0].slots] *= 0.999


def _poisoned(walk: Walk) -> None:
    walk.state.recurrent[1][0, walk.requests[0].slots[0], 0, 0, 0] = float("nan")


def _resumed_without(kind: str) -> Hooks:
    def resumed(walk: Walk, request: Request) -> None:
        for layer in getattr(walk.state, kind):
            getattr(walk.state, kind)[layer][:, request.slots] = 0

    return Hooks(resumed=resumed)


def _late_snapshot(walk: Walk, request: Request) -> None:
    """The snapshot aliases a live state that moved on: one history column is newer."""
    for history in walk.state.conv.values():
        history[:, request.slots] = history[:, request.slots].roll(1, -1)


def _staged(name: str, change: Callable[[Tensor], Tensor]) -> Hooks:
    def stage(batch: Batch) -> Batch:
        changed = batch.clone()
        setattr(changed, name, change(getattr(changed, name)))
        return changed

    return Hooks(stage=stage)


def _permuted(t: Tensor) -> Tensor:
    return t.flip(0)


def _padding_kept(slots: Tensor) -> Tensor:
    kept = slots.clone()
    kept[-1] = slots[0]
    return kept


def step_faults() -> tuple[Planted, ...]:
    """All faults, in the order of their kinds."""
    kda = "kda_verify"
    return (
        Planted(
            "F22", "slot_not_reset", "admission", "tenants", hooks=lambda: _not_reset(("conv", "recurrent"))
        ),
        Planted(
            "F22", "only_history_reset", "admission", "tenants", hooks=lambda: _not_reset(("recurrent",))
        ),
        Planted(
            "F23", "null_slot_live", kda, "verify", _instead(kda, _field("slots", lambda t: t.clamp(min=1)))
        ),
        Planted(
            "F23",
            "null_key_live",
            "mla_query",
            "verify",
            _instead("mla_query", _field("slot", lambda t: t.clamp(min=0))),
        ),
        Planted("F24", "key_at_page_edge", "mla_query", "pages", _instead("mla_query", _edge)),
        Planted(
            "F24",
            "first_key_of_page_lost",
            "mla_attention",
            "pages",
            _instead("mla_attention", _first_of_page_lost),
        ),
        Planted(
            "F25",
            "snapshot_without_state",
            "restored",
            "preempt",
            hooks=lambda: _resumed_without("recurrent"),
        ),
        Planted(
            "F25",
            "snapshot_aliases_live_history",
            "restored",
            "preempt",
            hooks=lambda: Hooks(resumed=_late_snapshot),
        ),
        Planted("F26", "resume_loses_history", "restored", "preempt", hooks=lambda: _resumed_without("conv")),
        Planted(
            "F27", "write_after_reassignment", "continuity", "verify", hooks=lambda: _at(3, _another_writes)
        ),
        Planted(
            "F28",
            "accepted_off_by_one",
            kda,
            "verify",
            _instead(kda, lambda o, a: replace(a, accepted=(a.accepted + 1).clamp(max=a.tokens))),
        ),
        Planted("F28", "accepted_ignored", kda, "verify", _instead(kda, _field("accepted", torch.ones_like))),
        Planted("F29", "window_too_short", kda, "verify", _instead(kda, _too_short_window)),
        Planted("F29", "history_rewound_wrongly", kda, "verify", _afterwards(kda, _rewound)),
        Planted("F30", "accepted_not_permuted", kda, "verify", _instead(kda, _field("accepted", _permuted))),
        Planted("F30", "slots_not_permuted", kda, "verify", _instead(kda, _field("slots", _permuted))),
        Planted("F31", "verify_rounds_state", kda, "verify", _afterwards(kda, _bf16_between_tokens)),
        Planted("F33", "aux_before_the_sum", "attn_res", "plain", _instead("attn_res", _stale_aux)),
        Planted(
            "F43",
            "stale_fragment_projection",
            "projection",
            "plain",
            _afterwards("projection", _stale_fragment),
        ),
        Planted("F43", "stale_fragment_tail", "moe_tail", "plain", _afterwards("moe_tail", _stale_fragment)),
        Planted("F44", "slots_baked_in", kda, "verify", _frozen(kda, "slots")),
        Planted("F44", "lengths_baked_in", "mla_attention", "plain", _frozen("mla_attention", "lengths")),
        Planted("F44", "accepted_baked_in", kda, "verify", _frozen(kda, "accepted")),
        Planted(
            "F45", "padding_keeps_slots", "staging", "verify", hooks=lambda: _staged("slots", _padding_kept)
        ),
        Planted(
            "F45", "padding_keeps_length", "staging", "verify", hooks=lambda: _staged("totals", _padding_kept)
        ),
        Planted("F51", "nan_between_steps", "continuity", "plain", hooks=lambda: _at(2, _poisoned)),
        Planted("F51", "nan_from_core", kda, "verify", _afterwards(kda, _nan_state)),
        Planted(
            "F52",
            "short_length",
            "mla_attention",
            "plain",
            _instead("mla_attention", _field("lengths", lambda t: (t - 1).clamp(min=1))),
        ),
        Planted(
            "F53",
            "block_scale_rule",
            "mx_quantize",
            "plain",
            _instead("mx_quantize", lambda o, a: replace(a, rule="floor")),
        ),
        Planted(
            "F53",
            "plain_core_for_verify",
            kda,
            "verify",
            _instead(kda, _field("accepted", torch.ones_like), 2),
        ),
        Planted("F54", "operation_not_executed", "moe_tail", "plain", _skipped),
        Planted(
            "F55", "requests_out_of_order", "staging", "verify", hooks=lambda: _staged("accepted", _permuted)
        ),
        Planted("F01", "one_rank_lost", "oproj", "plain", _instead("oproj", _one_rank_lost, 2)),
        Planted(
            "F12",
            "prefix_added_not_replaced",
            "oproj",
            "plain",
            _instead("oproj", lambda o, a: replace(a, merge="add"), 2),
        ),
        Planted(
            "F12",
            "a_block_too_few",
            "attn_res",
            "plain",
            _instead("attn_res", lambda o, a: replace(a, blocks_read=max(a.blocks_read - 1, 0)), 3),
        ),
        Planted(
            "F12", "snapshot_into_wrong_block", "attn_res", "plain", _afterwards("attn_res", _wrong_block)
        ),
        Planted("F22", "state_wiped_at_step_5", "continuity", "plain", hooks=lambda: _at(5, _wipe)),
        Planted("F06", "drift_in_core", "kda_decode", "plain", _afterwards("kda_decode", _drift)),
        Planted(
            "F06", "drift_between_steps", "continuity", "plain", hooks=lambda: Hooks(between=_slow_drift_safe)
        ),
        Planted("F06", "bf16_state", "kda_decode", "plain", _afterwards("kda_decode", _bf16_state)),
    )


def _slow_drift_safe(walk: Walk) -> None:
    if walk.number:
        _slow_drift(walk)
