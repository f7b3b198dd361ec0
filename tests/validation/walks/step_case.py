"""A small step for tests: model, state, requests and one batch after another, all from a seed."""

from __future__ import annotations

import torch

from validation.step.executor import Executor
from validation.subjects.kimi_k3.batch import Batch, batch_of
from validation.subjects.kimi_k3.config import Config, scaled
from validation.subjects.kimi_k3.operation import Binding
from validation.subjects.kimi_k3.program import program
from validation.subjects.kimi_k3.requests import Pool, Request
from validation.subjects.kimi_k3.state import Scratch, empty_state
from validation.subjects.kimi_k3.weights import random_weights


def small(drafts: int = 0, ranks: int = 2, dcp: bool = False) -> Config:
    """Five layers, three blocks: dense and two MoE layers of KDA, two MoE layers of MLA."""
    return scaled(ranks=ranks, drafts=drafts, layers=5, block=2, dcp=dcp)


class Case:
    """Requests of a small model, stepped by an executor."""

    def __init__(self, config: Config, requests: int = 2, seed: int = 0) -> None:
        self.config = config
        self.weights = random_weights(config, seed)
        self.pool = Pool(config, requests, 64, seed)
        self.state = empty_state(config, self.pool.slot_count, self.pool.page_count)
        self.requests: list[Request] = [self.pool.admit(self.state) for _ in range(requests)]
        self.scratch = Scratch(config)
        self.draw = torch.Generator().manual_seed(seed + 1)

    def ids(self, tokens: int = 1) -> list[list[int]]:
        shape = (len(self.requests), tokens)
        return torch.randint(0, self.config.vocabulary, shape, generator=self.draw).tolist()

    def binding(self, batch: Batch) -> Binding:
        return Binding(self.config, self.weights, self.state, self.scratch, batch)

    def step(
        self,
        executor: Executor,
        ids: list[list[int]],
        accepted: list[int] | None = None,
        padded: int | None = None,
    ) -> torch.Tensor:
        """One step; returns the logits of every row and advances the requests."""
        batch = batch_of(self.config, self.requests, ids, padded)
        self.scratch.poison()
        executor.step(program(self.config, batch.tokens), self.binding(batch))
        counts = accepted or [len(row) for row in ids]
        for request, row, count in zip(self.requests, ids, counts, strict=True):
            request.advance(row, count)
        return self.scratch.logits[0, : batch.rows, : self.config.vocabulary].clone()
