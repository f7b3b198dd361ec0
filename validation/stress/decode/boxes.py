"""Which mailbox, parity and re-arm each exchange of a decode step has, from the protocols that are proved.

Every exchange goes by ``validation.sync.kimi_k3``. Where the number of MoE layers is 1 modulo 3 the tail's
ordinal within the step, which the subject bakes in, is unsafe (``lockstep sync``; ``plan`` refuses it); the
ordinal then runs on over the steps, counted in memory.

What this catches: a step that does not fit its mailboxes (ValueError). What it cannot say: orders within a
launch; those are the kernel's.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from validation.stress.faults import VICTIM
from validation.stress.layout import ROWS, Layout
from validation.stress.script import Site, cleared_by, use_of
from validation.sync.kimi_k3 import subject

if TYPE_CHECKING:
    from validation.step.shards import Exchange
    from validation.subjects.kimi_k3.config import Config

KERNELS = "kernels_under_test.exchanges.step"
COLUMNS = 64  # of a lane: a row of the widest exchange must fit
# Exchanges of a layer, in the order of the step; the front sends two tensors.
PLACES = ("oproj", "front", "front", "latent", "rs", "out")
# What a planted fault makes of one rank's uses: the parity of the layer before; no word is ever re-armed.
STALE_PARITY, NEVER_REARMED = "stale_parity", "never_rearmed"


def lanes_for(config: Config) -> int:
    """Lanes of a layout whose slots hold every exchange of ``ROWS`` rows."""
    return -(-config.hidden // COLUMNS)


@dataclass(frozen=True)
class Boxes:
    """Exchanges of one rank, as a ``Transport``. ``wires``: what all launches share."""

    config: Config
    layout: Layout
    wires: Any
    fault: str = ""

    def __call__(self, exchange: Exchange) -> None:
        importlib.import_module(KERNELS).exchange(
            self.wires, self.turn(exchange), exchange.sent, exchange.received
        )

    def turn(self, exchange: Exchange) -> Any:
        """How the mailbox is used."""
        data = subject().exchanges[exchange.name]
        moes = self.config.layers - self.config.dense_layers
        if data.parity == "moe" and moes % data.parities == 1:
            data = replace(data, parity="running")
        # No mailbox of tensor parallelism counts MLA layers.
        site = Site(exchange.layer, exchange.layer - self.config.dense_layers, 0, moes)
        use, advance = use_of(data, site)
        at_once = data.when == "right after polling"
        _, rows, columns = exchange.received.shape
        words = columns * exchange.received.element_size() // 4
        cleared = (data.first_rows if site.moe == 0 else data.rows) or rows
        broken = self.fault and self.wires.rank == VICTIM
        if broken and self.fault == STALE_PARITY and exchange.name == "oproj":
            use += 1
        return importlib.import_module(KERNELS).Turn(
            number(exchange),
            self.layout.base(exchange.name) + exchange.part * self.layout.slot // 2,
            use % data.parities,
            cleared_by(data, site, use),
            advance,
            data.parities,
            0 if at_once else min(cleared, ROWS) * words,
            at_once and not (broken and self.fault == NEVER_REARMED),
        )


def number(exchange: Exchange) -> int:
    """Of an exchange among those of a step."""
    return exchange.layer * len(PLACES) + PLACES.index(exchange.name) + exchange.part


def place(act: int) -> str:
    """``layer 3, latent`` for the number of an exchange."""
    layer, at = divmod(act, len(PLACES))
    return f"layer {layer}, {PLACES[at]}"
