"""Other designs of an executor: honest ones, and planted faults of graphs and side streams.

    stale_slots, stale_lengths    metadata as it was when the batch was prepared: baked in at capture
    stale_accepted                the same of accepted counts: a verify step rolls back by another's
    padding_lives                 a padding request keeps slot and cache row of a live one
    shared_not_joined             the tail does not wait for the shared experts' stream
    other_order                   honest: side work as early, or on a GPU as late, as can be

What this catches: a comparison of whole steps with single operations that would not have noticed. What it
cannot catch: faults nobody planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernels_under_test.executor.schedule import SHARED, schedule, without_join
from kernels_under_test.executor.specialised import Design
from validation.subjects.kimi_k3.batch import STAGED, Batch

LATE = 2_000_000  # cycles: about a millisecond, longer than a layer


def variants(right: Design) -> dict[str, tuple[Design, bool]]:
    """By name: the design, and whether its steps are right."""
    found = {
        "stale_slots": (replace(right, restage=_all_but("slots")), False),
        "stale_lengths": (replace(right, restage=_all_but("lengths", "totals")), False),
        "stale_accepted": (replace(right, restage=_all_but("accepted")), False),
        "padding_lives": (replace(right, restage=_padding_lives), False),
    }
    if right.arrange is schedule:
        late = replace(right, arrange=lambda steps: without_join(schedule(steps), SHARED), slow=LATE)
        found["shared_not_joined"] = (late, False)
        found["other_order"] = (replace(right, early=not right.early, slow=LATE), True)
    return found


def _all_but(*names: str) -> Callable[[Batch, Batch], None]:
    def restage(own: Batch, new: Batch) -> None:
        for name in STAGED:
            if name not in names:
                getattr(own, name).copy_(getattr(new, name))

    return restage


def _padding_lives(own: Batch, new: Batch) -> None:
    """The last request, where it is padding, writes where the first does."""
    own.copy_(new)
    q = own.tokens
    padding = own.totals[-1:] == 0
    own.slots[-1:] = own.slots[:1].where(padding[:, None], own.slots[-1:])
    own.kv_slot[:, -q:] = own.kv_slot[:, :q].where(padding, own.kv_slot[:, -q:])
