"""Who owns a slot: recycled slots, snapshots, padding, metadata in another order (F22, F23, F25 to F27, F45,
F55).

Catches and cannot catch: see the package.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from validation.step.faults.planted import KDA, Planted, at_step, changed, instead, permuted, staged
from validation.step.walk import Hooks, Walk
from validation.subjects.kimi_k3.requests import Request


def _not_reset(*kinds: str) -> Callable[[], Hooks]:
    """A recycled slot keeps what its last tenant left."""

    def admitted(walk: Walk, request: Request) -> None:
        if walk.number:
            for kind, _, tensor in walk.state.buffers():
                if kind in kinds:
                    tensor[:, request.slots] = 0.25

    return lambda: Hooks(admitted=admitted)


def _wipe(walk: Walk) -> None:
    request = walk.requests[0]
    walk.state.recurrent[1][:, request.slots[request.accepted - 1]] = 0


def _another_writes(walk: Walk) -> None:
    slot = walk.requests[1].slots[0]
    walk.state.recurrent[2][0, slot, 0] += 0.01


def _resumed_without(kind: str) -> Callable[[], Hooks]:
    def resumed(walk: Walk, request: Request) -> None:
        for layer in getattr(walk.state, kind):
            getattr(walk.state, kind)[layer][:, request.slots] = 0

    return lambda: Hooks(resumed=resumed)


def _late_snapshot(walk: Walk, request: Request) -> None:
    """The snapshot aliases a live state that moved on: one history column is newer."""
    for history in walk.state.conv.values():
        history[:, request.slots] = history[:, request.slots].roll(1, -1)


def _padding_kept(slots: Tensor) -> Tensor:
    kept = slots.clone()
    kept[-1] = slots[0]
    return kept


_LIVE = changed("slots", lambda t: t.clamp(min=1))


def _aliased() -> Hooks:
    return Hooks(resumed=_late_snapshot)


FAULTS = (
    Planted("F22", "slot_not_reset", "admission", "tenants", hooks=_not_reset("conv", "recurrent")),
    Planted("F22", "only_history_reset", "admission", "tenants", hooks=_not_reset("recurrent")),
    Planted("F22", "state_wiped_at_step_5", "continuity", "plain", hooks=lambda: at_step(5, _wipe)),
    Planted("F23", "null_slot_live", KDA, "verify", instead(KDA, _LIVE)),
    Planted("F25", "snapshot_without_state", "restored", "preempt", hooks=_resumed_without("recurrent")),
    Planted("F25", "snapshot_aliases_live_history", "restored", "preempt", hooks=_aliased),
    Planted("F26", "resume_loses_history", "restored", "preempt", hooks=_resumed_without("conv")),
    Planted(
        "F27", "write_after_reassignment", "continuity", "verify", hooks=lambda: at_step(3, _another_writes)
    ),
    Planted("F45", "padding_keeps_slots", "staging", "verify", hooks=lambda: staged("slots", _padding_kept)),
    Planted(
        "F45", "padding_keeps_length", "staging", "verify", hooks=lambda: staged("totals", _padding_kept)
    ),
    Planted("F55", "requests_out_of_order", "staging", "verify", hooks=lambda: staged("accepted", permuted)),
)
