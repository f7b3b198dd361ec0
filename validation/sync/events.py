"""A run of a protocol as a set of events: what happens, to which words, after which other events.

The memory model. A store is the event of its *arrival* at one word of one rank. It comes after what its
kernel did before it, and after earlier stores of the same rank to the same word; nothing else orders it, so
stores to different words are delayed and reordered at will, and a fragment arrives in parts. A kernel's
completion waits for its local stores, not for those to other ranks. A poll re-reads until no word that it
judges is the sentinel. Program order and completion edges are the only fences.

What this cannot represent: caches and scopes below one word per rank, values out of thin air, speculation of
loads past a poll, fairness of the scheduler (co-residency), time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Kind(IntEnum):
    """What an event does. POINT does nothing: it marks a kernel's start, wait or end."""

    POINT = 0
    STORE = 1
    POLL = 2
    REARM = 3


@dataclass(frozen=True)
class Word:
    """One 4-byte word. ``group``: rows that the same batches use; ``part``: its place in a fragment."""

    rank: int
    exchange: str
    parity: int
    slot: int
    group: int
    part: int


@dataclass
class Event:
    """One event. ``words`` are indices of words; ``tags`` the publications written or expected there.

    ``guard``: the words that a poll judges. ``after``: indices of events that come before it.
    """

    index: int
    kind: Kind
    rank: int
    label: str
    exchange: str = ""
    words: tuple[int, ...] = ()
    tags: tuple[int, ...] = ()
    guard: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    place: str = ""


@dataclass
class Program:
    """All events of all ranks. ``names[tag]``: a publication in words. ``plans[rank]``: which launches it
    makes. ``foreign``: tags of publications that belong to another token.
    """

    ranks: int
    events: list[Event] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    initial: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["sentinel"])
    plain: set[int] = field(default_factory=set)
    counters: set[int] = field(default_factory=set)
    foreign: set[int] = field(default_factory=set)
    plans: list[list[str]] = field(default_factory=list)
    stores: list[list[int]] = field(default_factory=list)
    access: list[list[int]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    readers: dict[tuple[int, int], int] = field(default_factory=dict)
    successors: list[list[int]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    def close(self) -> Program:
        """Index what the search asks for: accesses and stores of each word, predecessors as bits, readers."""
        self.stores = [[] for _ in self.words]
        self.access = [[] for _ in self.words]
        self.successors = [[] for _ in self.events]
        self.missing = [len(set(event.after)) for event in self.events]
        for event in self.events:
            for i in set(event.after):
                self.successors[i].append(event.index)
            self.before.append(sum(1 << i for i in set(event.after)))
            for word, tag in zip(event.words, event.tags, strict=True):
                self.access[word].append(event.index)
                if event.kind is Kind.STORE:
                    self.stores[word].append(event.index)
                elif event.kind is Kind.POLL:
                    pair = (word, tag)
                    self.readers[pair] = self.readers.get(pair, 0) | 1 << event.index
        return self
