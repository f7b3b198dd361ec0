"""Time pairs of arms at one setting: seconds, share of the measured bandwidth, kernels, ratio.

What this catches: an arm that is slower than the other, far from the memory's speed, or launches more
kernels. What it cannot catch: wrong results; the judge does, on the same functions.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from validation.timing.subject import Setting, Timed
from validation.timing.worker import timed

SIDES = ("specialized", "stock")


@dataclass
class Arm:
    """One arm's figures: ``share`` is bytes over time over the measured bandwidth."""

    uses: str
    seconds: float
    low: float
    high: float
    bytes: int
    share: float
    kernels: list[str]


@dataclass
class Row:
    """One line of the table. ``error`` in place of figures where an arm could not be timed."""

    name: str
    ranks: int
    rows: int
    context: int
    specialized: Arm | None
    stock: Arm | None
    error: str = ""

    @property
    def ratio(self) -> float:
        """How many times faster the specialised arm is; NaN without both."""
        if self.specialized is None or self.stock is None:
            return float("nan")
        return self.stock.seconds / self.specialized.seconds


def measured(subject: str, names: Sequence[str], setting: Setting, bandwidth: float) -> Iterator[Row]:
    """One row a name, in order. An arm that raises, or ends its process, leaves its error in the row; all
    others are still timed."""
    row = None
    tasks = [(name, side) for name in names for side in SIDES]
    for name, side, arm, error in timed(subject, setting, bandwidth, tasks):
        if row is None:
            row = Row(name, **asdict(setting), specialized=None, stock=None)
        if arm is not None:
            setattr(row, side, Arm(**arm))
        if error:
            row.error = f"{row.error} {side}: {error}".strip()
        if side == SIDES[-1]:
            yield row
            row = None


def time_arm(what: Timed, bandwidth: float) -> Arm:
    """Figures of one arm; needs a GPU."""
    import torch

    from validation.dispatch.launches import device_kernels
    from validation.timing.replay import instances, replayed

    calls = [what.make() for _ in range(instances(what.bytes))]
    calls[0]()
    torch.cuda.synchronize()
    kernels = [name for name in device_kernels(calls[0]) if not name.startswith(("Memcpy", "Memset"))]
    time = replayed(calls)
    del calls
    gc.collect()
    torch.cuda.empty_cache()
    share = what.bytes / time.seconds / bandwidth
    return Arm(what.uses, time.seconds, time.low, time.high, what.bytes, share, kernels)
