"""Where two replies drawn with the same seed part, and by how much the model preferred one token there.

What this catches: a candidate that leaves the reference early, or where the reference was sure (a large
margin: no rounding turns that). What it cannot catch: whether a small margin was turned by rounding or by a
small fault; one divergence proves nothing, the distribution of positions and margins against an A/A pair
does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evals.store.row import Row

NAN = float("nan")


@dataclass(frozen=True)
class Divergence:
    """``position``: tokens in common; -1 if the replies are equal. ``tokens``: the two there, -1 past an end.

    ``margin``: log-probability of the reference's token less that of the candidate's, both by the reference
    (by the candidate if only it tells), in nats; ``exact`` says that. Otherwise each arm's own value for its
    own token stands in, and one arm that has ended gives NaN.
    """

    position: int = -1
    tokens: tuple[int, int] = (-1, -1)
    margin: float = NAN
    exact: bool = False

    @property
    def diverged(self) -> bool:
        return self.position >= 0


def first_divergence(reference: Row, candidate: Row) -> Divergence:
    """Compare two replies token by token. Raises ValueError if they are not of one key and seed."""
    if (reference.key, reference.seed) != (candidate.key, candidate.seed):
        raise ValueError(f"{reference.key} and {candidate.key} are not the same request with the same seed")
    a, b = reference.token_ids, candidate.token_ids
    n = min(len(a), len(b))
    unequal = np.flatnonzero(a[:n] != b[:n])
    if not len(unequal):
        if len(a) == len(b):
            return Divergence()
        return Divergence(n, (int(a[n]) if len(a) > n else -1, int(b[n]) if len(b) > n else -1))
    i = int(unequal[0])
    one, two = int(a[i]), int(b[i])
    for row in (reference, candidate):
        margin = _logprob(row, i, one) - _logprob(row, i, two)
        if not np.isnan(margin):
            return Divergence(i, (one, two), margin, True)
    own = [float(row.logprobs[i]) if len(row.logprobs) > i else NAN for row in (reference, candidate)]
    return Divergence(i, (one, two), own[0] - own[1])


def _logprob(row: Row, i: int, token: int) -> float:
    """What this arm gave a token at a position, by its own choice or its most likely tokens; else NaN."""
    if len(row.token_ids) > i and len(row.logprobs) > i and row.token_ids[i] == token:
        return float(row.logprobs[i])
    if len(row.top_ids) > i:
        found = np.flatnonzero(row.top_ids[i] == token)
        if len(found):
            return float(row.top_logprobs[i][found[0]])
    return NAN
