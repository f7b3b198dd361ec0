"""Walks that bring about what faults need: page edges, verify steps with rejections and padding, tenants that
follow one another, preemption.

Catches: nothing by itself. Cannot represent: an engine's schedule; these are its events one at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from validation.step.divergence import Divergence
from validation.step.walk import Diverged, Walk, forced

STEPS = 6


def plain(walk: Walk) -> None:
    """Two requests, one token a step."""
    walk.admit(), walk.admit()
    for ids in forced(walk.config, 2, STEPS, seed=walk.seed):
        walk.step(ids)


def pages(walk: Walk) -> None:
    """Two requests up to and over the edge of a page; only the last steps are judged."""
    walk.admit(), walk.admit()
    share, walk.share = walk.share, None
    page = walk.config.page
    for number, ids in enumerate(forced(walk.config, 2, page + 1, seed=walk.seed)):
        walk.share = share if number >= page - 2 else None
        walk.step(ids)


def verify(walk: Walk) -> None:
    """Prompts token by token, then verify steps with every number of accepted tokens, padded to three
    requests, the requests changing places once."""
    walk.admit(), walk.admit()
    q = walk.config.tokens
    for ids in forced(walk.config, 2, 2, seed=walk.seed):
        walk.step(ids)
    for number, ids in enumerate(forced(walk.config, 2, STEPS - 2, q, seed=walk.seed + 1)):
        if number == 2:
            walk.requests.reverse()
        walk.step(ids, [1 + number % q, q - number % q], padded=3)


def tenants(walk: Walk) -> None:
    """A request ends, another takes its slots and pages."""
    walk.admit()
    first = walk.admit()
    tokens = forced(walk.config, 2, 4, seed=walk.seed)
    for ids in tokens[:2]:
        walk.step(ids)
    walk.release(first)
    walk.admit()
    for ids in tokens[2:]:
        walk.step(ids)


def preempt(walk: Walk) -> None:
    """A request is taken out, its slots are poisoned, and it comes back on others."""
    walk.admit()
    walk.admit()
    tokens = forced(walk.config, 2, 5, seed=walk.seed)
    for ids in tokens[:2]:
        walk.step(ids)
    out = walk.preempt(walk.requests[0])
    walk.step(tokens[2][:1])
    walk.resume(out)
    for ids in tokens[3:]:
        walk.step(ids)


def acceptance(walk: Walk) -> None:
    """Verify steps in which every number of accepted tokens follows every other, for two requests at
    different places of that sequence."""
    walk.admit(), walk.admit()
    q = walk.config.tokens
    counts = every_pair(q)
    steps = forced(walk.config, 2, len(counts), q, seed=walk.seed)
    for number, ids in enumerate(steps):
        walk.step(ids, [counts[number], counts[number - len(counts) // 2]])


def every_pair(q: int) -> list[int]:
    """A sequence of 1 .. q, closed into a ring, in which every ordered pair of neighbours occurs once (an
    Euler tour of the complete graph with loops)."""
    left = {a: list(range(1, q + 1)) for a in range(1, q + 1)}
    path, tour = [1], []
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            tour.append(path.pop())
    return tour[:-1]


def batches(walk: Walk) -> None:
    """Requests come and go so that the rows of a step pass every threshold of the kernels, up and down."""
    counts = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 2, 1)
    for number, count in enumerate(counts):
        while len(walk.requests) < count:
            walk.admit()
        while len(walk.requests) > count:
            walk.release(walk.requests[number % len(walk.requests)])
        walk.step(forced(walk.config, count, 1, seed=walk.seed + number)[0])


def snapshots(walk: Walk) -> None:
    """A request is started from another's prefix while that one goes on, and both from its end once more."""
    first = walk.admit()
    tokens = forced(walk.config, 3, 6, seed=walk.seed)
    for ids in tokens[:2]:
        walk.step(ids[:1])
    walk.fork(first)
    for ids in tokens[2:4]:
        walk.step(ids[:2])
    walk.fork(first)
    for ids in tokens[4:]:
        walk.step(ids)


def prefill(walk: Walk) -> None:
    """Prompts in one pass over the edge of a page, one of them in two chunks, then two steps of both."""
    first, second = walk.admit(), walk.admit()
    prompt = [ids[0][0] for ids in forced(walk.config, 1, walk.config.page + 3, seed=walk.seed)]
    walk.prefill(first, prompt)
    walk.prefill(second, prompt[:5])
    walk.prefill(second, prompt[5:8])
    for ids in forced(walk.config, 2, 2, seed=walk.seed + 1):
        walk.step(ids)


SCENARIOS: dict[str, Callable[[Walk], None]] = {
    "plain": plain,
    "pages": pages,
    "verify": verify,
    "tenants": tenants,
    "preempt": preempt,
    "acceptance": acceptance,
    "batches": batches,
    "snapshots": snapshots,
    "prefill": prefill,
}
DRAFTS = {"verify": 2, "preempt": 1, "acceptance": 2}
# Most requests at a time, where that is not two.
MOST = {"batches": 33, "snapshots": 3}


def first_divergence(walk: Walk, scenario: str) -> Divergence | None:
    """Walk until something is wrong; None if nothing is."""
    walk.stop = True
    with contextlib.suppress(Diverged):
        SCENARIOS[scenario](walk)
    return walk.first()
