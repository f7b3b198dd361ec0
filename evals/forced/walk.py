"""The tokens that both arms walk, and the walking.

The continuations are the reference arm's own replies, forced token by token through the decode path of either
arm: log-probabilities of a prompt would come from prefill, which is stock in both. Every arm walks them in
several replicates: the same computation in another company (order, batch, place in the cache), whose spread
is the rounding noise that a difference is compared with. No two replicates of a run, of either arm, have the
same number: they must be exchangeable if the arms are alike.

What this catches: continuations of other tokens in one arm, fewer tokens than asked for. What it cannot
catch: a server that reports forced tokens without having computed them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from evals.engines.api import Engine, Request, Response
from evals.store.row import Label, Row, row_of
from evals.store.store import Store

TASK = "forced"
PROMPTS = "prompts"  # task name of everyday prompts; only the reference answers them, to have what to walk
TOP = 20
SHORTEST = 8  # tokens; shorter replies say little beside their first token, which prefill computes


@dataclass(frozen=True)
class Walk:
    """One continuation: the request it answered, and the token ids to force."""

    request: Request
    task: str
    question: str
    repeat: int
    tokens: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{TASK}/{self.request.key}"


def choose(
    requests: Sequence[Request], rows: Iterable[Row], tokens: int, longest: int = 1 << 30
) -> list[Walk]:
    """Replies of the reference arm, the first repeat of every question before the second of any, until they
    hold ``tokens`` tokens, each cut at ``longest`` tokens. The same rows give the same walks."""
    asked = {request.key: request for request in requests}
    usable = [row for row in rows if row.ok and row.key in asked and len(row.token_ids) >= SHORTEST]
    usable.sort(key=lambda row: (row.repeat, row.prompt_hash, row.key))
    walks, left = [], tokens
    for row in usable:
        if left < SHORTEST:
            break
        ids = tuple(int(i) for i in row.token_ids[: min(left, longest)])
        walks.append(Walk(asked[row.key], row.task, row.question, row.repeat, ids))
        left -= len(ids)
    return walks


def replicate_numbers(arm: int, count: int) -> list[int]:
    """Of the reference (0): 0, 1, ...; of the candidate (1): those that follow."""
    return list(range(arm * count, (arm + 1) * count))


def walk(
    engine: Engine,
    store: Store,
    arm: str,
    walks: Sequence[Walk],
    replicates: Sequence[int],
    advance: Callable[[Request, Response], None] = lambda *_: None,
) -> None:
    """Walk what the store does not have yet, one replicate after another, each in an order of its own."""
    by_key = {each.key: each for each in walks}
    for replicate in replicates:
        requests = store.remaining(arm, [forced(each, replicate) for each in walks], replicate)
        random.Random(replicate).shuffle(requests)

        def done(request: Request, response: Response, replicate: int = replicate) -> None:
            each = by_key[request.key]
            label = Label("", arm, TASK, f"{each.task}/{each.question}", "", each.repeat, replicate)
            store.add(row_of(label, request, response))
            advance(request, response)

        engine.run(requests, done)


def forced(each: Walk, replicate: int) -> Request:
    """The request that forces one continuation."""
    return replace(each.request, key=each.key, forced=each.tokens, top=TOP, replicate=replicate)
