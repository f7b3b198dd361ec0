"""Forcing under vLLM's V1 model runner: one row of logits per request, batch changes told as they happen.

What this catches: nothing; it forces. The place in the list is the number of tokens the request already
has, so chunked prefill, preemption and asynchronous scheduling need no bookkeeping of ours. What it
cannot do: speculative decoding, for which this runner leaves installed processors out without a word.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor, MoveDirectionality

from lockstep_forced.request import forced_tokens, inside, validate

logger = logging.getLogger("vllm.lockstep_forced")


class ForcedTokensV1(LogitsProcessor):
    """State: batch row -> (tokens to force, the request's own growing list of tokens)."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        validate(sampling_params)

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.vocabulary = int(vllm_config.model_config.get_vocab_size())
        self.rows: dict[int, tuple[tuple[int, ...], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch: removals, then additions, then moves, which is the order the interface
        asks for."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.rows.pop(row, None)
        for row, params, _, output in batch_update.added:
            self.rows.pop(row, None)  # an addition may replace a request
            tokens = forced_tokens(params)
            if not inside(tokens, self.vocabulary):
                logger.error("not forced: token %d of %d in the vocabulary", max(tokens), self.vocabulary)
            elif tokens:
                self.rows[row] = (tokens, output)
        for source, target, direction in batch_update.moved:
            moved, displaced = self.rows.pop(source, None), self.rows.pop(target, None)
            if moved is not None:
                self.rows[target] = moved
            if displaced is not None and direction == MoveDirectionality.SWAP:
                self.rows[source] = displaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave one possible token in every forced row of ``logits`` [rows, vocabulary], in place."""
        due = [(row, tokens[len(out)]) for row, (tokens, out) in self.rows.items() if len(out) < len(tokens)]
        if due:
            places = torch.tensor(due, dtype=torch.long).to(logits.device, non_blocking=True)
            logits[places[:, 0]] = float("-inf")
            logits[places[:, 0], places[:, 1]] = 0.0
        return logits
