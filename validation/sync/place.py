"""Where a run stands, and which parity of a mailbox a kernel uses or clears there.

What this catches: nothing; ``build`` asks it. What it cannot say: anything of orders.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from validation.sync.exchange import Exchange


@dataclass
class Stream:
    """Where one rank is: points of the last kernel of the main stream, and of the side and host streams."""

    start: int = -1
    waited: int = -1
    trigger: int = -1
    end: int = -1
    consumer: int = -1
    side: int = -1
    host: list[int] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where in a run a kernel stands. ``first``: the first expert layer of its step."""

    step: int
    batch: int
    layer: int
    moe: int
    mla: int
    moes: int

    @property
    def first(self) -> bool:
        return self.moe == 0


def use(exchange: Exchange, place: Place, stream: Stream) -> int:
    """What counts the parities: number of this use."""
    counts = {"one": 0, "layer": place.layer, "moe": place.moe, "mla": place.mla, "step": place.step}
    counts["running"] = place.step * place.moes + place.moe
    counts |= {name: stream.calls.get(name, 0) for name in ("call", "common")}
    counts["unique"] = place.step * 1000 + place.layer
    return counts[exchange.parity]


def parity(exchange: Exchange, place: Place, stream: Stream) -> int:
    """The parity of this use."""
    number = use(exchange, place, stream)
    return number if exchange.parity == "unique" else number % exchange.parities


def cleared(exchange: Exchange, place: Place, stream: Stream) -> int:
    """The parity that a re-arm clears."""
    number, n = use(exchange, place, stream), exchange.parities
    if exchange.clears == "previous" and place.first and exchange.parity != "running":
        return (place.moes - 1) % n
    shift = {"current": 0, "previous": -1, "other": 1, "next": 1}[exchange.clears]
    return (number + shift) % n


def origin(exchange: Exchange, place: Place) -> Place:
    """Where a publication was made that is polled here: the tail's output comes from the layer before."""
    if exchange.name != "out":
        return place
    return Place(place.step, place.batch, place.layer - 1, place.moe - 1, place.mla, place.moes)
