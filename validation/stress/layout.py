"""Where the mailboxes of one rank lie in its symmetric memory: regions between canaries.

Words are 32 bits wide. An exchange has [parities, slots, rows, lanes, columns] of them, one slot for each
rank. The staging area, one [rows, lanes, columns], is what a rank publishes from where inputs lie in memory.

What this catches: nothing by itself; ``audit`` looks at the canaries. What it cannot say: alignment for wider
stores than 16 bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

from validation.sync.exchange import Exchange
from validation.sync.setting import MOST_ROWS

ROWS, COLUMNS = MOST_ROWS, 32  # of a lane; a column is a word, two BF16 values
# A canary is longer than a row of the most lanes.
CANARY_WORDS, CANARY = 4096, 0x5CA1AB1E
GARBAGE = 0x00000000
MOST_PARITIES = 3


@dataclass(frozen=True)
class Region:
    """Words ``start`` to ``start + words`` of an exchange's mailbox, or of the staging area. ``sentinel``:
    the word that says empty."""

    name: str
    start: int
    words: int
    sentinel: int = GARBAGE


@dataclass(frozen=True)
class Layout:
    """All regions of one rank. ``words``: of everything, canaries included."""

    ranks: int
    lanes: int
    regions: tuple[Region, ...]
    words: int

    def base(self, name: str) -> int:
        return self.region(name).start

    def region(self, name: str) -> Region:
        return next(region for region in self.regions if region.name == name)

    @property
    def canaries(self) -> list[tuple[int, int]]:
        """(first word, words) of each canary."""
        ends = [0, *(region.start + region.words for region in self.regions)]
        return [(end, CANARY_WORDS) for end in ends]

    @property
    def row(self) -> int:
        """Words of a row of one slot."""
        return self.lanes * COLUMNS

    @property
    def slot(self) -> int:
        """Words of one slot of one parity."""
        return ROWS * self.row


STAGE = "stage"


def layout(exchanges: Iterable[Exchange], ranks: int, lanes: int) -> Layout:
    """Regions for the exchanges, each with room for as many parities as any variant of it has."""
    slot = ROWS * lanes * COLUMNS
    at, regions = CANARY_WORDS, []
    for exchange in exchanges:
        regions.append(Region(exchange.name, at, MOST_PARITIES * ranks * slot, sentinel(exchange)))
        at += regions[-1].words + CANARY_WORDS
    regions.append(Region(STAGE, at, slot))
    return Layout(ranks, lanes, tuple(regions), at + slot + CANARY_WORDS)


def sentinel(exchange: Exchange) -> int:
    """The word that says empty, as the protocol's data has it."""
    return int(exchange.sentinel, 16)


def signed(word: int) -> int:
    """A 32-bit pattern as torch's int32 has it."""
    return ctypes.c_int32(word).value
