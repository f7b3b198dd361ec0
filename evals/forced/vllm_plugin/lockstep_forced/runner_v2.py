"""Forcing under vLLM's V2 model runner: rows reordered every step, several per request under speculation.

What this catches: nothing; it forces. A row at position p of its sequence samples the token p + 1, hence
place p + 1 - prompt length of the list; that holds for the rows of draft tokens, for chunked prefill and
after preemption. What it cannot do: synthetic acceptance, which takes drafts whatever the target's logits
say; thinking budgets, which force after us (refused at validation).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.logits_processor.interface import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

from lockstep_forced.request import forced_tokens, inside, validate

logger = logging.getLogger("vllm.lockstep_forced")
SHORTEST = 64  # first width of the table; it doubles when a longer list comes


class ForcedTokensV2(LogitsProcessor):
    """State per request slot: ``table`` [slots, width] and ``lengths`` [slots] on the device.

    The table is as wide as the longest list so far, not as the model's context: at a million positions
    that would be gigabytes.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        validate(sampling_params)

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self.state = req_states
        slots, device = req_states.max_num_reqs, req_states.device
        self.host_lengths = np.zeros(slots, dtype=np.int64)
        self.staged: dict[int, tuple[int, ...]] = {}
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.table = torch.zeros((slots, SHORTEST), dtype=torch.int32, device=device)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take the slot over from whoever had it. True if this request is forced."""
        tokens = forced_tokens(sampling_params)
        if not inside(tokens, self.state.vocab_size):
            logger.error("not forced: token %d of %d in the vocabulary", max(tokens), self.state.vocab_size)
            tokens = ()
        if tokens or self.host_lengths[req_idx]:
            self.staged[req_idx] = tokens
        self.host_lengths[req_idx] = len(tokens)
        return bool(tokens)

    def apply_staged_writes(self) -> None:
        """Bring newly taken slots to the device, in the stream's order, before the forward pass."""
        if not self.staged:
            return
        self._widen(max(len(tokens) for tokens in self.staged.values()))
        for slot, tokens in self.staged.items():
            if tokens:
                row = torch.tensor(tokens, dtype=torch.int32)
                self.table[slot, : len(tokens)] = row.to(self.table.device)
            self.lengths[slot] = len(tokens)
        self.staged.clear()

    def _widen(self, length: int) -> None:
        width = self.table.shape[1]
        while width < length:
            width *= 2
        if width > self.table.shape[1]:
            wider = self.table.new_zeros((self.table.shape[0], width))
            wider[:, : self.table.shape[1]] = self.table
            self.table = wider

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Leave one possible token in every forced row of ``logits`` [rows, vocabulary], in place,
        with no sync."""
        if not self.host_lengths[ctx.idx_mapping_np].any():
            return logits
        slots = ctx.expanded_idx_mapping.long()
        taken = slots.clamp(min=0)  # padding rows carry -1
        place = ctx.pos.long() + 1 - self.state.prompt_len.gpu[taken].long()
        due = (slots >= 0) & (place >= 0) & (place < self.lengths[taken])
        token = self.table[taken, place.clamp(0, self.table.shape[1] - 1)].long().unsqueeze(1)
        logits.masked_fill_(due.unsqueeze(1), float("-inf"))
        kept = logits.gather(1, token)
        logits.scatter_(1, token, torch.where(due.unsqueeze(1), torch.zeros_like(kept), kept))
        return logits
