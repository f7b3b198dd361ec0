"""One reply while it is being decoded.

What this catches: nothing. What it cannot do: see the model; it is given logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evals.engines.api import Request, Response
from evals.engines.hashing import hash_ids
from evals.engines.sampling import Draws, top_of

if TYPE_CHECKING:
    from torch import Tensor

TAIL = 16  # tokens that a stop string may span


class Row:
    """The state of one reply. ``slot``: where its last token is going to be written."""

    def __init__(self, request: Request, prompt: Sequence[int], shift: int, began: float) -> None:
        self.request, self.began = request, began
        self.slot = shift + len(prompt)
        self.last = 0
        self.draws = Draws(request.seed)
        self.response = Response(request.key, request.seed)
        self.response.prompt_tokens, self.response.prompt_hash = len(prompt), hash_ids(prompt)

    def advance(self, logits: Tensor, ends: set[int], detokenize: Callable[[Sequence[int]], str]) -> bool:
        """Append the next token, forced or drawn from ``logits`` [vocabulary]; True if it was the last."""
        self.last = self._next(logits)
        self._note(logits.log_softmax(-1))
        if self._ended(ends, detokenize):
            self._finish(detokenize)
            return True
        return False

    def _next(self, logits: Tensor) -> int:
        request, sampling = self.request, self.request.sampling
        if request.forced:
            return request.forced[len(self.response.token_ids)]
        return self.draws.choose(logits, sampling.temperature, sampling.top_p)

    def _note(self, logprobs: Tensor) -> None:
        response = self.response
        response.token_ids.append(self.last)
        response.logprobs.append(float(logprobs[self.last]))
        if response.first_token is None:
            response.first_token = time.monotonic() - self.began
        if self.request.top:
            ids, values = top_of(logprobs[None], self.request.top)
            response.top_ids.append(ids[0])
            response.top_logprobs.append(values[0])

    def _ended(self, ends: set[int], detokenize: Callable[[Sequence[int]], str]) -> bool:
        request, response = self.request, self.response
        response.finish = "length"
        if request.forced:
            return len(response.token_ids) == len(request.forced)
        stops = request.sampling.stop
        tail = detokenize(response.token_ids[-TAIL:]) if stops else ""
        if self.last in ends or any(stop in tail for stop in stops):
            response.finish = "stop"
            return True
        return len(response.token_ids) >= request.sampling.max_tokens

    def _finish(self, detokenize: Callable[[Sequence[int]], str]) -> None:
        self.response.total = time.monotonic() - self.began
        text = detokenize(self.response.token_ids)
        for stop in self.request.sampling.stop:
            text = text.split(stop)[0]
        self.response.text = text
