"""How a long run goes on each device: what a few minutes allow.

Sizes are those of prepared batches: with one or three drafts, as many rows of verify steps are prepared, too.
Catches and cannot catch: nothing by itself.
"""

from __future__ import annotations

from validation.step.items import Item
from validation.step.long_run import Pace

# Above so many steps the reference goes beside the candidate in so many windows only.
BESIDE_ALL, WINDOWS_BESIDE = 20_000, 100
# On a CPU, above so many steps, in every other window.
BESIDE_EACH = 1000


def pace_of(item: Item, device: str, replays: bool) -> Pace:
    """On a GPU batches change and are padded and one request lasts; on a CPU a batch of two requests, one of
    them at times padding.
    ``replays``: the executor promises the bits of its single operations."""
    if item.widths == "real":
        return Pace(item.steps, counts=(2, 1, 3), sizes=(1, 2, 4), judged=4, twice=1, lasting=True)
    if device == "cpu":
        if not replays:
            beside = 2 if item.steps > BESIDE_EACH else 1
            return Pace(item.steps, counts=(2, 1), sizes=(2,), compared=beside, judged=min(10, item.steps))
        # In an interpreter: few steps, whose batches are padded all the same.
        return Pace(item.steps, window=2, renewed=1, counts=(3, 2), sizes=(2, 4), judged=1,
                    twice=1)  # fmt: skip
    if item.steps > BESIDE_ALL:
        compared = -(-item.steps // (25 * WINDOWS_BESIDE))
        return Pace(item.steps, counts=(2, 3, 1, 4), sizes=(1, 2, 4), compared=compared, judged=12, twice=1,
                    lasting=True, watched=4)  # fmt: skip
    return Pace(item.steps, counts=(2, 3, 1, 5, 16, 4, 8, 7, 11), sizes=(1, 2, 4, 8, 16), judged=12, twice=2,
                lasting=True)  # fmt: skip
