"""One reply while it is being decoded.

What this catches: nothing. What it cannot do: see the model; it is given tokens and their log-probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evals.engines.api import Request, Response
from evals.engines.hashing import hash_ids
from evals.engines.sampling import Draw

TAIL = 16  # tokens that a stop string may span


@dataclass(frozen=True)
class Ending:
    """What ends a reply besides its length: the model's end tokens; ``detokenize`` shows stop strings."""

    tokens: set[int]
    detokenize: Callable[[Sequence[int]], str]


class Row:
    """The state of one reply. ``slot``: where its last token is going to be written."""

    def __init__(
        self, request: Request, prompt: Sequence[int], shift: int, began: float, ending: Ending
    ) -> None:
        self.request, self.began, self.ending = request, began, ending
        self.slot = shift + len(prompt)
        self.last = 0
        self.response = Response(request.key, request.seed)
        self.response.prompt_tokens, self.response.prompt_hash = len(prompt), hash_ids(prompt)

    @property
    def top(self) -> int:
        return self.request.top

    @property
    def draw(self) -> Draw:
        """How the next token comes about."""
        request, position = self.request, len(self.response.token_ids)
        forced = request.forced[position] if request.forced else None
        return Draw(request.seed, position, request.sampling.temperature, request.sampling.top_p, forced)

    def take(self, token: int, logprob: float, ids: list[int], logprobs: list[float]) -> bool:
        """Append a token; True if it was the last."""
        response = self.response
        self.last = token
        response.token_ids.append(token)
        response.logprobs.append(logprob)
        if response.first_token is None:
            response.first_token = time.monotonic() - self.began
        if self.top:
            response.top_ids.append(ids[: self.top])
            response.top_logprobs.append(logprobs[: self.top])
        return self._ended()

    def _ended(self) -> bool:
        request, response = self.request, self.response
        response.finish = "length"
        if request.forced:
            return len(response.token_ids) == len(request.forced)
        stops = request.sampling.stop
        tail = self.ending.detokenize(response.token_ids[-TAIL:]) if stops else ""
        if self.last in self.ending.tokens or any(stop in tail for stop in stops):
            response.finish = "stop"
            return True
        return len(response.token_ids) >= request.sampling.max_tokens

    def finish(self) -> None:
        """Complete the response."""
        self.response.total = time.monotonic() - self.began
        text = self.ending.detokenize(self.response.token_ids)
        for stop in self.request.sampling.stop:
            text = text.split(stop)[0]
        self.response.text = text
