"""One state of a run, and what executing an event does to it: the invariants A, B, C and their kin.

Catches, at the event that breaks it: a payload that is the sentinel (A), a fragment judged by part of its
words (B), a stale or erased publication and a publication into a word that is not re-armed (C), a counter
left dirty, a rank that takes another plan or token, program data used out of order, a poll that never
returns. Cannot catch: wrong arithmetic, and anything the memory model in ``events`` leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from validation.sync.events import Event, Kind, Program


class Invariant(StrEnum):
    """What can be violated (kimi_k3_ops.md, section 4.1 and 4.2)."""

    SENTINEL = "payload equals sentinel"
    GRANULARITY = "granularity"
    FRESHNESS = "freshness"
    PARITY = "parity reuse"
    COUNTER = "dirty counter"
    PLAN = "rank takes another plan"
    ORDER = "order"
    HANG = "poll never returns"


@dataclass(frozen=True)
class Violation:
    """A broken invariant, where, and what was found in words. ``event``: the one that breaks it, -1 for a
    hang.
    """

    invariant: Invariant
    event: int
    message: str


class State:
    """Executed events as bits, the memory, and how many predecessors each event still waits for."""

    __slots__ = ("done", "memory", "missing", "program", "ready", "successors")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.done, self.memory = 0, list(program.initial)
        self.successors, self.missing = program.successors, list(program.missing)
        self.ready = {i for i, count in enumerate(self.missing) if not count}

    def copy(self) -> State:
        """An independent state of the same program."""
        other = object.__new__(State)
        other.program, other.successors, other.done = self.program, self.successors, self.done
        other.memory, other.missing, other.ready = list(self.memory), list(self.missing), set(self.ready)
        return other

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """Two states with one key have the same future."""
        return self.done, tuple(self.memory)

    def enabled(self, index: int) -> bool:
        """Its predecessors are done and, for a poll, no word that it judges is the sentinel."""
        event = self.program.events[index]
        return index in self.ready and all(self.memory[word] for word in event.guard)

    def execute(self, index: int) -> Violation | None:
        """Do an enabled event; what it violates, if anything."""
        event = self.program.events[index]
        found = CHECKS[event.kind](self, event)
        if event.kind is Kind.STORE or event.kind is Kind.REARM:
            for word, tag in zip(event.words, event.tags, strict=True):
                self.memory[word] = tag
        self.done |= 1 << index
        self.ready.discard(index)
        for i in self.successors[index]:
            self.missing[i] -= 1
            if not self.missing[i]:
                self.ready.add(i)
        return found

    def unread(self, word: int) -> bool:
        """Does the word hold a publication that a reader still has to consume?"""
        readers = self.program.readers.get((word, self.memory[word]), 0)
        return readers & ~self.done != 0

    def hang(self) -> Violation | None:
        """What a state without enabled events means; None where every event is done."""
        stuck = [e for e in self.program.events if e.index in self.ready]
        if not stuck:
            return None
        event = stuck[0]
        empty = next(word for word in event.guard if not self.memory[word])
        message = (
            f"{where(event)} waits for ever for {self.program.names[event.tags[event.words.index(empty)]]}"
        )
        agree = all(plan == self.program.plans[0] for plan in self.program.plans)
        return Violation(Invariant.HANG if agree else Invariant.PLAN, -1, message)


def where(event: Event) -> str:
    """Rank and place of an event."""
    return f"rank {event.rank} ({event.label})"


def _store(state: State, event: Event) -> Violation | None:
    (word,), (tag,) = event.words, event.tags
    names, held = state.program.names, state.memory[word]
    if not tag:
        text = f"{where(event)} publishes {event.exchange} with a payload that equals the sentinel"
        return Violation(Invariant.SENTINEL, event.index, text)
    if word in state.program.plain:
        if not state.unread(word):
            return None
        text = f"{where(event)} overwrites {names[held]} before it is read"
        return Violation(Invariant.ORDER, event.index, text)
    if not held:
        return None
    kind = Invariant.COUNTER if word in state.program.counters else Invariant.PARITY
    slot = state.program.words[word]
    text = (
        f"{names[tag]} arrives in parity {slot.parity} at rank {slot.rank}, which still holds {names[held]}"
    )
    return Violation(kind, event.index, text)


def _poll(state: State, event: Event) -> Violation | None:
    names = state.program.names
    for word, tag in zip(event.words, event.tags, strict=True):
        held = state.memory[word]
        if held == tag:
            continue
        kind = _wrong(state, word, held, bool(event.guard))
        text = f"{where(event)} expects {names[tag]} and takes {names[held] if held else 'an unwritten word'}"
        return Violation(kind, event.index, text)
    return None


def _wrong(state: State, word: int, held: int, guarded: bool) -> Invariant:
    """Which invariant a wrong word breaks."""
    if held in state.program.foreign:
        return Invariant.PLAN
    if not held:
        return Invariant.GRANULARITY if guarded else Invariant.ORDER
    if word in state.program.plain:
        return Invariant.ORDER
    return Invariant.COUNTER if word in state.program.counters else Invariant.FRESHNESS


def _rearm(state: State, event: Event) -> Violation | None:
    for word in event.words:
        if state.memory[word] and state.unread(word):
            lost = state.program.names[state.memory[word]]
            text = (
                f"{where(event)} re-arms a word of {event.exchange} and erases {lost} before it is consumed"
            )
            return Violation(Invariant.FRESHNESS, event.index, text)
    return None


def _point(state: State, event: Event) -> None:
    return None


CHECKS = {Kind.POINT: _point, Kind.STORE: _store, Kind.POLL: _poll, Kind.REARM: _rearm}
