"""From a window that went wrong to the first step, layer, operation and element, and a capture.

The window is run again from the state it began with. Of every step it is asked, in this order, whether the
executor's own way of running it leaves the bits of the same operations run one by one (if not, bisection over
the operations finds the first that parts), and whether each operation, judged on its own arguments, is right.

Catches: what parts again when it is repeated. Cannot catch: a race that is not lost again, and what only many
steps together show (the window's distances then stand without a place).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from validation.step import replay
from validation.step.divergence import Divergence, of_operation
from validation.step.executor import eagerly
from validation.step.free_running import Step
from validation.step.local import Judged, compared, judged_step, snapshot
from validation.step.walk import Walk
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.operation import Binding
from validation.subjects.kimi_k3.state import State


@dataclass(frozen=True)
class Window:
    """Where a window began: state, tokens stored and last accepted of each request, step number; and its
    steps."""

    state: State
    stored: list[tuple[int, int]]
    number: int
    steps: list[Step]
    padded: int | None


@dataclass(frozen=True)
class Place:
    """The first divergence, and the operation's arguments before and after, where it is one operation's."""

    divergence: Divergence
    judged: Judged | None = None


def located(
    walk: Walk, window: Window, share: float, say: Callable[[int], None] = lambda step: None
) -> Place | None:
    """Run the window again; the first place that parts, or None if none does."""
    walk.state.copy_(window.state)
    for request, (length, accepted) in zip(walk.requests, window.stored, strict=True):
        request.length, request.accepted = length, accepted
    for offset, forced in enumerate(window.steps):
        step = window.number + offset
        say(step)
        right = batch_of(walk.config, walk.requests, forced.ids, window.padded, walk.pool.capacity)
        binding = walk.binding(walk.hooks.stage(right))
        before = walk.state.clone()
        place = _of_replay(walk, step, binding, before, share) if walk.executor.replays else None
        place = place or _of_operation(walk, step, binding, before, share)
        if place:
            return place
        for request, row, count in zip(walk.requests, forced.ids, forced.accepted, strict=True):
            request.advance(row, count)
    return None


def _of_replay(walk: Walk, step: int, b: Binding, before: State, share: float) -> Place | None:
    """The first operation whose outcome in a whole step is another than by itself."""
    program = walk.program(b.batch.tokens)
    parted = replay.first_operation(program, b, walk.executor, before)
    if parted is None:
        b.state.copy_(before)
        return None
    count, found = parted
    order = walk.executor.order(program)
    operation = order[count - 1]
    b.state.copy_(before)
    b.scratch.poison()
    eagerly(walk.executor, order[: count - 1], b)
    clean = snapshot(operation.arguments(b))
    b.state.copy_(before)
    b.scratch.poison()
    walk.executor.upto(program, b, count)
    outcome = snapshot(operation.arguments(b))
    judged = compared(operation, clean, outcome, walk.executor.profile, share)
    words = dataclasses.replace(
        found, step=step, layer=operation.layer, op=operation.op, rank=operation.rank, statistic="replay"
    )
    return Place(words, judged)


def _of_operation(walk: Walk, step: int, b: Binding, before: State, share: float) -> Place | None:
    """The first operation that is wrong on its own arguments."""
    b.state.copy_(before)
    b.scratch.poison()
    program = walk.program(b.batch.tokens)
    failed = judged_step(program, b, walk.executor, share, stop=True)
    return Place(of_operation(step, failed[0]), failed[0]) if failed else None
