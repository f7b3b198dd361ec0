"""What a rank's memory must hold once a run has ended.

Canaries are as they were filled. A mailbox that is re-armed at once holds sentinels alone; one whose re-arm
is deferred holds publications in the parity that the last step left, and sentinels elsewhere.

What this catches: stores outside of a mailbox, re-arms that are missing, short, or of another parity. What it
cannot catch: a stray store of a word that was there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.stress.layout import CANARY, MOST_PARITIES, ROWS, Layout, signed
from validation.stress.schedule import Schedule

if TYPE_CHECKING:
    from torch import Tensor


def audit(own: Tensor, layout: Layout, schedule: Schedule, steps: int) -> list[str]:
    """What is wrong, one line each."""
    return [*_canaries(own, layout), *(_mailboxes(own, layout, schedule, steps) if steps else [])]


def _canaries(own: Tensor, layout: Layout) -> list[str]:
    found = []
    names = ["the start", *(region.name for region in layout.regions)]
    for name, (start, words) in zip(names, layout.canaries, strict=True):
        changed = own[start : start + words] != signed(CANARY)
        if count := int(changed.sum()):
            first = int(changed.nonzero()[0])
            found.append(f"canary: {count} words behind {name} were overwritten, the first {first} words in")
    return found


def _mailboxes(own: Tensor, layout: Layout, schedule: Schedule, steps: int) -> list[str]:
    found = []
    dirty = _dirty(schedule, steps)
    for name in {step.exchange for variant in schedule.variants for step in variant}:
        region = layout.region(name)
        whole = own[region.start : region.start + region.words].view(MOST_PARITIES, -1)
        full = (whole != signed(region.sentinel)).sum(1).tolist()
        for parity, count in enumerate(full):
            if count and (name, parity) not in dirty:
                found.append(
                    f"mailbox: {name} holds {count} words in parity {parity}, which should be re-armed"
                )
    return found


def _dirty(schedule: Schedule, steps: int) -> set[tuple[str, int]]:
    """(exchange, parity) that may hold publications after the last step: used, and not re-armed since."""
    dirty: dict[tuple[str, int], int] = {}
    for step in range(steps):
        if step < steps - 64:  # what is older has been re-armed by now, or is dirty again
            continue
        rows = schedule.batches[step]
        for act in schedule.variants[schedule.variant_of[step]]:
            if act.verb == "publish":
                dirty[act.exchange, act.parity(step)] = max(
                    rows, dirty.get((act.exchange, act.parity(step)), 0)
                )
            elif act.verb == "rearm":
                cleared = (act.exchange, (act.clears + step * act.advance) % act.parities)
                if dirty.get(cleared, ROWS) <= (act.rows or rows):
                    dirty.pop(cleared, None)
    return set(dirty)


def held(own: Tensor, layout: Layout, name: str, parity: int) -> int:
    """Words of one parity of an exchange that are not the sentinel."""
    words = layout.ranks * layout.slot
    start = layout.base(name) + parity * words
    return int((own[start : start + words] != signed(layout.region(name).sentinel)).sum())
