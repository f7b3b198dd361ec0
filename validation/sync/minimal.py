"""The smallest part of a violating run that still violates: what is not needed for it is left out.

Catches nothing by itself. The result is minimal, not always shortest: no event can be left out, but another
run might need fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

from validation.sync.events import Kind, Program
from validation.sync.state import State, Violation

LONG = 600  # events; longer runs are only cut down to their causes


def replay(program: Program, order: Sequence[int]) -> tuple[Violation | None, list[int]]:
    """Execute those events of ``order`` that can happen; the first violation and what was executed."""
    state, done = State(program), []
    for index in order:
        if not state.enabled(index):
            continue
        done.append(index)
        if found := state.execute(index):
            return found, done
    return None, done


def minimal(program: Program, trace: Sequence[int], violation: Violation) -> list[int]:
    """Leave out whatever can be; a hang keeps all that led to it."""
    if violation.event < 0:
        return list(trace)
    kept = list(trace)
    found, done = replay(program, _causes(program, trace))
    if found and found.event == violation.event:
        kept = done
    size = max(1, len(kept) // 2)
    while size and (size > 1 or len(kept) <= LONG):
        start = len(kept) - 1 - size
        while start > -size:
            tried = kept[: max(0, start)] + kept[start + size :]
            found, done = replay(program, tried)
            if found and (found.event, found.invariant) == (violation.event, violation.invariant):
                kept = done
            start -= size
        size = size // 2 if len(kept) <= LONG else 0
    return _gathered(program, kept, violation)


def _causes(program: Program, trace: Sequence[int]) -> list[int]:
    """What the last event of a trace needs: program order, and what its words held before."""
    latest: dict[int, list[int]] = {}
    seen: dict[int, list[int]] = {}
    for index in trace:
        event = program.events[index]
        seen[index] = [i for word in event.words for i in latest.get(word, [])]
        if event.kind is Kind.STORE:
            latest[event.words[0]] = [*latest.get(event.words[0], [])[-1:], index]
        elif event.kind is Kind.REARM:
            for word in event.words:
                latest[word] = [index]
    needed = {trace[-1]}
    for index in reversed(trace):
        if index in needed:
            needed.update(program.events[index].after)
            needed.update(seen[index])
    return [index for index in trace if index in needed]


def _gathered(program: Program, kept: list[int], violation: Violation) -> list[int]:
    """Stores of one publication side by side, where the run allows it."""
    order = list(kept)
    for index in kept:
        event = program.events[index]
        if event.kind is not Kind.STORE:
            continue
        same = [i for i in order if i != index and publication(program, i) == publication(program, index)]
        before = [i for i in same if order.index(i) < order.index(index)]
        if not before:
            continue
        tried = [i for i in order if i != index]
        tried.insert(tried.index(before[-1]) + 1, index)
        found, done = replay(program, tried)
        if found and found.event == violation.event and len(done) == len(order):
            order = tried
    return order


def publication(program: Program, index: int) -> tuple[object, ...]:
    """Stores with the same value are of one publication."""
    event = program.events[index]
    return event.kind, event.rank, event.label, event.exchange


def steps(program: Program, trace: Sequence[int]) -> list[list[int]]:
    """The trace as events of the diagram: stores of one publication that arrive together are one."""
    found: list[list[int]] = []
    for index in trace:
        if program.events[index].kind is Kind.POINT:
            continue
        if found and publication(program, found[-1][0]) == publication(program, index):
            found[-1].append(index)
        else:
            found.append([index])
    return found
