"""Partial-order reduction: a persistent set of one event, where there is one.

Two events conflict if both touch a word and one of them writes it. An enabled event that conflicts with
nothing that could still happen before it is a persistent set by itself: exploring it alone loses no deadlock
and no violated assertion, since programs have no cycles (Godefroid 1996, persistent sets; Valmari, stubborn
sets). What could happen before it is over-approximated: values of words are ignored, and a poll may return if
any store to each of its words may arrive.

Catches nothing by itself. Where a protocol is free of races every state has such an event and the search is
one path; where it has a race, both orders are explored.
"""

from __future__ import annotations

from validation.sync.events import Kind, Program
from validation.sync.state import State


class Reduction:
    """Static conflicts of a program, and the question which event to take alone."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ancestors = _ancestors(program)
        self.conflicts = [self._conflicts(i) for i in range(len(program.events))]

    def _conflicts(self, index: int) -> list[int]:
        """Events on the same word, one of the two writing, that program order leaves unordered."""
        event, found = self.program.events[index], set()
        for word in event.words:
            for other in self.program.access[word]:
                reads = event.kind is Kind.POLL and self.program.events[other].kind is Kind.POLL
                if other == index or reads:
                    continue
                if not (self.ancestors[index] >> other & 1 or self.ancestors[other] >> index & 1):
                    found.add(other)
        return sorted(found)

    def alone(self, state: State, index: int) -> bool:
        """Is the enabled event ``index`` a persistent set by itself?"""
        kept = 0
        may = _Before(state, index)
        for other in self.conflicts[index]:
            if state.done >> other & 1 or self.ancestors[other] & kept:
                continue
            kept |= 1 << other
            if may.happen(other):
                return False
        return True


class _Before:
    """Which events may happen before one given event does: a least fixed point, found backwards."""

    def __init__(self, state: State, index: int) -> None:
        self.state, self.index = state, index
        self.known: dict[int, bool] = {index: False}
        self.circle = False

    def happen(self, other: int) -> bool:
        """Repeats while a circle was cut and something new became possible."""
        while True:
            true = sum(self.known.values())
            self.circle = False
            found = self._visit(other)
            if found or not self.circle or sum(self.known.values()) == true:
                return found
            self.known = {i: value for i, value in self.known.items() if value} | {self.index: False}

    def _visit(self, i: int) -> bool:
        if i in self.known:
            self.circle |= not self.known[i] and i != self.index
            return self.known[i]
        self.known[i] = False  # until shown otherwise
        event, done, memory = self.state.program.events[i], self.state.done, self.state.memory
        stores = self.state.program.stores
        for j in event.after:
            if not done >> j & 1 and not self._visit(j):
                return False
        for word in event.guard:
            if not memory[word] and not any(not done >> j & 1 and self._visit(j) for j in stores[word]):
                return False
        self.known[i] = True
        return True


def _ancestors(program: Program) -> list[int]:
    """For each event the bits of all events that program order puts before it."""
    found: list[int] = []
    for event in program.events:  # numbered so that predecessors come first
        bits = program.before[event.index]
        for i in event.after:
            bits |= found[i]
        found.append(bits)
    return found
