"""Prompts on their way into the cache: where each begins, and which are computed together.

Replicates of a request begin at different slots and positions. Rotary positions count by their differences
alone, so this is the same computation in exact arithmetic, with other roundings. Which place replicate r gets
is drawn for every prompt anew. If all prompts began at r, they would share what is particular to r (the
rounded sines and cosines of its positions): a difference between replicates that every prompt confirms, and
that a test would take for one between arms. Drawn, the replicates of a prompt are exchangeable independently
of any other prompt, whatever the prompts share.

What this catches: nothing. What it cannot do: prompts longer than the cache; the engine turns those away.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from evals.engines.api import Request
from evals.engines.hashing import hash_ids

if TYPE_CHECKING:
    from torch import Tensor

    from evals.engines.row_cache import RowCache

SHIFTS = 32  # places at which a request may begin, and so the replicates that differ
PREFILLED = 16  # prompts whose keys and values are kept for their repeats
TOGETHER = 256  # prompts of one prefill on a GPU, where a single one is bound by the host ...
TOGETHER_TOKENS = 16_384  # ... and their tokens: plain attention holds the square of a prompt's length
Place = tuple[tuple[int, ...], int]  # token ids of a prompt, and the slot at which it begins


@dataclass(frozen=True)
class Waiting:
    """A request with its prompt's token ids and the slots it needs."""

    request: Request
    prompt: tuple[int, ...]

    @property
    def place(self) -> Place:
        """What decides keys and values."""
        return self.prompt, self.shift

    @cached_property
    def shift(self) -> int:
        """The slot at which the prompt begins, another for every replicate below SHIFTS."""
        return places(self.prompt)[self.request.replicate % SHIFTS]

    @property
    def slots(self) -> int:
        """Slots of the prompt and the longest reply, wherever they begin: all replicates use one cache
        length."""
        reply = len(self.request.forced) or self.request.sampling.max_tokens
        return SHIFTS - 1 + len(self.prompt) + reply


@lru_cache(maxsize=1 << 15)
def places(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Where the replicates of a prompt begin: an order of range(SHIFTS) that its tokens decide."""
    return tuple(random.Random(hash_ids(prompt)).sample(range(SHIFTS), SHIFTS))


@dataclass(frozen=True)
class Prefilled:
    """Keys and values of every layer, [prompts, heads, length, head_dim] each, and last logits
    [prompts, vocabulary]."""

    keys_and_values: list[tuple[Tensor, Tensor]]
    logits: Tensor

    def alone(self, k: int) -> Prefilled:
        """A copy of one prompt, that does not hold the memory of the others."""
        if len(self.logits) == 1:
            return self
        kept = [(keys[k : k + 1].clone(), values[k : k + 1].clone()) for keys, values in self.keys_and_values]
        return Prefilled(kept, self.logits[k : k + 1].clone())


class Prefill:
    """Takes requests from a queue; ``together``: the most prompts of one computation. Keys and values of a
    prompt are kept while the queue holds its repeats, of ``PREFILLED`` prompts at most."""

    def __init__(self, model: Any, queue: deque[Waiting], together: int) -> None:
        self.model, self.queue, self.together = model, queue, together
        self.known: dict[Place, Prefilled] = {}
        self.waiting = Counter(waiting.place for waiting in queue)

    def batch(self, free: int) -> list[Waiting]:
        """The next requests, as many as are prefilled together: prompts of one length, or one that is
        known."""
        batch = [self.queue.popleft()]
        length = len(batch[0].prompt)
        most = min(free, self.together, max(1, TOGETHER_TOKENS // max(1, length)))
        if batch[0].place in self.known:
            return batch
        while self.queue and len(batch) < most and len(self.queue[0].prompt) == length:
            if self.queue[0].place in self.known:
                break
            batch.append(self.queue.popleft())
        return batch

    def fill(self, cache: RowCache, rows: list[int], batch: list[Waiting]) -> Tensor:
        """Put keys and values of the prompts into the cache; last logits [batch, vocabulary]. Requests with
        the same prompt at the same place share a computation."""
        import torch

        asked = [waiting.place for waiting in batch]
        order = {place: k for k, place in enumerate(dict.fromkeys(asked))}
        found = self.known.get(asked[0]) or self.computed(list(order))
        which = torch.tensor([order[place] for place in asked], device=found.logits.device)
        cache.fill(rows, [waiting.shift for waiting in batch], found.keys_and_values, which)
        self.waiting.subtract(asked)
        for place in order:
            if self.waiting[place] <= 0:
                self.known.pop(place, None)
            elif place not in self.known:
                while len(self.known) >= PREFILLED:
                    del self.known[next(iter(self.known))]
                self.known[place] = found.alone(order[place])
        return found.logits[which]

    def computed(self, wanted: Sequence[Place]) -> Prefilled:
        """Keys, values and last logits of prompts of one length, each from its own position on."""
        import torch
        from transformers import DynamicCache

        model = self.model
        ids = torch.tensor([prompt for prompt, _ in wanted], device=model.device)
        first = torch.tensor([shift for _, shift in wanted], device=model.device)
        where = first[:, None] + torch.arange(ids.shape[1], device=model.device)
        cache: Any = DynamicCache(config=model.config)
        out = model(ids, position_ids=where, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return Prefilled([(layer.keys, layer.values) for layer in cache.layers], out.logits[:, -1])
