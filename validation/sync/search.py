"""The model checker: depth-first search over interleavings with state hashing, and random walks.

Catches every violation of the invariants in ``state`` that some interleaving of the program reaches, within
the memory model of ``events``. ``explore`` that ends within its limit is a proof for that program; random
walks prove nothing. Cannot catch: what other ranks, layers and batches would do.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

from validation.sync.events import Kind, Program
from validation.sync.reduction import Reduction
from validation.sync.state import State, Violation

LIMIT = 200_000  # states; beyond them the answer is undecided


@dataclass
class Result:
    """``complete``: every interleaving was covered. ``trace``: events up to the violation."""

    states: int
    complete: bool
    violation: Violation | None = None
    trace: tuple[int, ...] = ()
    branches: int = 0


def explore(program: Program, limit: int = LIMIT, reduce: bool = True) -> Result:
    """All interleavings, up to reordering of independent events (or one by one, without reduction)."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * len(program.events) + 1000))
    reduction = Reduction(program) if reduce else None
    stack: list[tuple[State, list[int]]] = [(State(program), [])]
    seen: set[tuple[int, tuple[int, ...]]] = set()
    states, branches = 1, 0
    while stack:
        state, path = stack.pop()
        while True:
            choices = _choices(state, reduction)
            if not choices:
                found = state.hang()
                if found:
                    return Result(states, False, found, tuple(path), branches)
                break
            if len(choices) > 1:
                if state.key in seen:
                    break
                seen.add(state.key)
                branches += 1
                stack += [(state.copy(), [*path, i]) for i in choices[1:]]
                for waiting, walked in stack[len(stack) - len(choices) + 1 :]:
                    if found := waiting.execute(walked[-1]):
                        return Result(states + 1, False, found, tuple(walked), branches)
                states += len(choices) - 1
            path.append(choices[0])
            states += 1
            if found := state.execute(choices[0]):
                return Result(states, False, found, tuple(path), branches)
            if states > limit:
                return Result(states, False, branches=branches)
    return Result(states, True, branches=branches)


def _choices(state: State, reduction: Reduction | None) -> list[int]:
    """The events to explore: one that is a persistent set by itself, else all that are enabled."""
    events = state.program.events
    enabled = []
    for i in sorted(state.ready):
        if reduction and events[i].kind is Kind.POINT:
            return [i]
        if state.enabled(i):
            if reduction and reduction.alone(state, i):
                return [i]
            enabled.append(i)
    return enabled


def walk(program: Program, seed: int, tries: int = 1) -> Result:
    """Random interleavings in which one rank at a time lags; the first violation ends it. No proof."""
    draw = random.Random(seed)
    states = 0
    for _ in range(tries):
        state, path = State(program), []
        while state.ready:
            slow = draw.randrange(program.ranks)
            for _ in range(draw.randrange(1, 200)):
                enabled = [i for i in state.ready if state.enabled(i)]
                if not enabled:
                    break
                quick = [i for i in enabled if program.events[i].rank != slow] or enabled
                path.append(draw.choice(sorted(quick)))
                states += 1
                if found := state.execute(path[-1]):
                    return Result(states, False, found, tuple(path))
            else:
                continue
            break
        if found := state.hang():
            return Result(states, False, found, tuple(path))
    return Result(states, False)
