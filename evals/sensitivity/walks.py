"""Walks for the measurement: replies of the model to everyday prompts, and their log-probabilities as arrays.

What this catches: nothing. What it cannot do: represent other text; the measured figures hold for these walks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


from evals.engines.api import Engine, Request, Response, Sampling
from evals.engines.hashing import seed_of
from evals.forced.gather import SKIPPED, common_top
from evals.forced.walk import Walk, forced
from evals.store.row import Label, Row, row_of
from validation.variance.forced import Forced

PROMPTS = (
    "Describe a city at night.",
    "Explain how rain forms.",
    "Write a short story about a fox.",
    "How do I boil an egg?",
    "What is a prime number?",
    "Tell me about the history of bread.",
    "Why is the sky blue?",
    "Give advice to a new teacher.",
    "Describe how a bicycle works.",
    "Write a letter to a friend about the sea.",
    "What should I pack for a hike?",
    "Explain what a database is.",
)
LONGEST = 64




def sample(engine: Engine, tokens: int, seed: int, tick: Callable[[int], None]) -> list[Walk]:
    """Replies at temperature 1 until there are ``tokens`` of them, the same for the same seed and engine."""
    sampling = Sampling(1.0, 0.95, LONGEST)
    asked = [
        Request(f"walk/{i}/0", seed_of("walk", str(i), 0, seed), sampling, messages=_messages(i))
        for i in range(2 * tokens // LONGEST + 8)
    ]
    replies: dict[str, Response] = {}

    def done(request: Request, response: Response) -> None:
        replies[request.key] = response
        tick(len(response.token_ids))

    engine.run(asked, done)
    walks, total = [], 0
    for request in asked:
        ids = tuple(replies[request.key].token_ids)
        if len(ids) > 8 and total < tokens:
            walks.append(Walk(request, "walk", request.key, 0, ids))
            total += len(ids) - SKIPPED
    return walks


def _messages(i: int) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": PROMPTS[i % len(PROMPTS)]},)


def replicate(engine: Engine, walks: Sequence[Walk], number: int, tick: Callable[[int], None]) -> list[Row]:
    """One replicate of all walks, in their order."""
    rows: dict[str, Row] = {}

    def done(request: Request, response: Response) -> None:
        rows[request.key] = row_of(Label("", "", "walk", request.key), request, response)
        tick(len(response.token_ids))

    engine.run([forced(walk, number) for walk in walks], done)
    return [rows[walk.key] for walk in walks]


def arrays(a: Sequence[Sequence[Row]], b: Sequence[Sequence[Row]], tokens: int, block: int) -> Forced:
    """The most likely tokens of the first ``tokens`` tokens as ``Forced``, in blocks of ``block``. ``a`` and
    ``b``: replicates of each arm, each a row per walk."""
    left, parts = tokens, ([], [], [])  # type: ignore[var-annotated]
    for rows in zip(*a, *b, strict=True):
        if left <= 0:
            break
        values, weights = common_top(rows)
        values, weights = values[:, :left], weights[:left]
        left -= values.shape[1]
        parts[0].append(values[: len(a)])
        parts[1].append(values[len(a) :])
        parts[2].append(weights)
    return Forced(*parts).split(block)


