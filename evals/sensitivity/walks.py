"""Walks for the measurement: short replies of the model, each to a prompt of its own, and their
log-probabilities as arrays.

What this catches: nothing. What it cannot do: represent other text; the measured figures hold for these
walks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evals.engines.api import Engine, Request, Response, Sampling
from evals.engines.hashing import hash_ids, seed_of
from evals.forced.gather import SKIPPED, common_top
from evals.forced.walk import SHORTEST, Walk, forced
from evals.store.row import Label, Row, row_of
from validation.errors import UserError
from validation.variance.forced import Forced

REPLY = 16  # tokens: 100 tokens are then seven prompts, enough sequences for a p-value below 1 %
SPARE = 1.08  # prompts asked for each one wanted: some replies end early


def prompts_for(tokens: int, sets: int) -> int:
    """How many prompts ``sample`` needs."""
    return int(SPARE * sets * (-(-tokens // (REPLY - SKIPPED)) + 1)) + 8


def sample(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    tokens: int,
    sets: int,
    seed: int,
    tick: Callable[[int], None],
) -> list[list[Walk]]:
    """Sets of replies at temperature 1, each set at least ``tokens`` tokens that count. The same for the same
    prompts, seed and engine; no prompt is used twice."""
    sampling = Sampling(1.0, 0.95, REPLY)
    asked = [
        Request(f"walk/{hash_ids(ids)}/0", seed_of("walk", hash_ids(ids), 0, seed), sampling, prompt_ids=ids)
        for ids in prompts
    ]
    replies: dict[str, Response] = {}

    def done(request: Request, response: Response) -> None:
        replies[request.key] = response
        tick(len(response.token_ids))

    engine.run(asked, done)
    made: list[list[Walk]] = [[]]
    left = tokens
    for request in asked:
        ids = tuple(replies[request.key].token_ids)
        if len(ids) < SHORTEST:
            continue
        if left <= 0:
            made.append([])
            left = tokens
        if len(made) > sets:
            break
        made[-1].append(Walk(request, "walk", request.key, 0, ids))
        left -= len(ids) - SKIPPED
    if len(made) < sets or (len(made) == sets and left > 0):
        raise UserError("the model's replies end too early for so many tokens; lower --tokens or --sets")
    return made[:sets]


def replicate(engine: Engine, walks: Sequence[Walk], number: int, tick: Callable[[int], None]) -> list[Row]:
    """One replicate of all walks, in their order."""
    rows: dict[str, Row] = {}

    def done(request: Request, response: Response) -> None:
        if not response.ok:
            raise UserError(f"a walk failed ({response.failure}): {response.message}")
        rows[request.key] = row_of(Label("", "", "walk", request.key), request, response)
        tick(len(response.token_ids))

    engine.run([forced(walk, number) for walk in walks], done)
    return [rows[walk.key] for walk in walks]


@dataclass(frozen=True)
class Arrays:
    """Log-probabilities of the most likely tokens, a walk at a time: ``values`` [replicates of both arms,
    tokens, k] and ``weights`` [tokens, k]; the first ``reference`` replicates are the reference's."""

    values: list[np.ndarray]
    weights: list[np.ndarray]
    reference: int

    def first(self, tokens: int) -> Forced:
        """The first ``tokens`` tokens. A walk is a sequence: each has a prompt of its own."""
        a, b, weights = [], [], []
        for value, weight in zip(self.values, self.weights, strict=True):
            if tokens <= 0:
                break
            value, weight = value[:, :tokens], weight[:tokens]
            tokens -= len(weight)
            a.append(value[: self.reference])
            b.append(value[self.reference :])
            weights.append(weight)
        return Forced(a, b, weights)


def arrays(a: Sequence[Sequence[Row]], b: Sequence[Sequence[Row]]) -> Arrays:
    """``a`` and ``b``: replicates of each arm, each a row per walk."""
    found = [common_top(rows) for rows in zip(*a, *b, strict=True)]
    return Arrays([values for values, _ in found], [weights for _, weights in found], len(a))
