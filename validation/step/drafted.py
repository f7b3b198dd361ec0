"""The steps of requests with a drafter: runs of q-token verify steps, of whose tokens 1 (no draft) to all are
accepted, and plain steps between them.

A plain step reads the first slot, where the state is after a step that accepted one token; so the step ahead
of it accepts no draft. Without drafts every step is plain.

Catches: nothing by itself. Cannot represent: requests with and without drafts in one batch, and a number of
drafts that changes, which are never specialised.
"""

from __future__ import annotations

import torch

from validation.step.free_running import Step
from validation.subjects.kimi_k3.config import Config

# What the steps of a run are, over and over: v verifies, p is plain. Its length is prime to the usual
# window's, so a step of a window is now one and now the other.
KINDS = "vpvvpvpppvvvvvvv"


def tokens_of(config: Config, step: int) -> int:
    """Tokens a request of the ``step``-th step of a run."""
    return config.tokens if KINDS[step % len(KINDS)] == "v" else 1


def most_accepted(config: Config, step: int) -> int:
    """Tokens that step may accept: what is ahead of a plain step leaves its state in the first slot."""
    return tokens_of(config, step) if tokens_of(config, step + 1) > 1 else 1


def most_stored(config: Config, steps: int) -> int:
    """Most tokens that a request stores in so many steps in a row."""
    whole = sum(most_accepted(config, step) for step in range(len(KINDS)))
    return -(-steps // len(KINDS)) * whole


def drafted(config: Config, requests: int, first: int, count: int, seed: int = 0) -> list[Step]:
    """Steps ``first`` to ``first + count - 1`` of a run: random tokens, all of a step different from each
    other (equal rows would have equal rounding errors), and random accepted counts."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for step in range(first, first + count):
        q, most = tokens_of(config, step), most_accepted(config, step)
        ids = torch.randperm(config.vocabulary, generator=g)[: requests * q].reshape(requests, q)
        accepted = torch.randint(1, most + 1, (requests,), generator=g) if most > 1 else torch.ones(requests)
        found.append(Step(ids.tolist(), [int(n) for n in accepted]))
    return found
