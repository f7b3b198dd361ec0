"""Time pairs of arms at one setting: seconds, share of the measured bandwidth, kernels, ratio.

What this catches: an arm that is slower than the other, far from the memory's speed, or launches more
kernels. What it cannot catch: wrong results; the judge does, on the same functions.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from validation.dispatch.launches import device_kernels
from validation.timing.replay import Time, instances, replayed
from validation.timing.subject import Pair, Setting, Timed


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


def measured(pairs: Sequence[Pair], setting: Setting, bandwidth: float) -> Iterator[Row]:
    """One row a pair, in order. An arm that raises leaves its error in the row; the other is still timed."""
    for pair in pairs:
        row = Row(pair.name, **asdict(setting), specialized=None, stock=None)
        for side in ("specialized", "stock"):
            try:
                setattr(row, side, _arm(getattr(pair, side), bandwidth))
            except Exception as error:  # one arm's failure must not cost the others' figures
                text = " ".join(str(error).split())[:200]
                row.error = f"{row.error} {side}: {type(error).__name__}: {text}".strip()
        yield row


def _arm(timed: Timed, bandwidth: float) -> Arm:
    calls = [timed.make() for _ in range(instances(timed.bytes))]
    calls[0]()
    torch.cuda.synchronize()
    kernels = [name for name in device_kernels(calls[0]) if not name.startswith(("Memcpy", "Memset"))]
    time: Time = replayed(calls)
    del calls
    gc.collect()
    torch.cuda.empty_cache()
    share = timed.bytes / time.seconds / bandwidth
    return Arm(timed.uses, time.seconds, time.low, time.high, timed.bytes, share, kernels)
