"""Requests and the pools that they draw slots and pages from, as the engine's manager does it.

Slots and pages are handed out in a permuted order, never 0, and a page table of one rank differs from that of
another: neutral numbering hides faults. Catches: two requests with one slot or page (``Pool``). Cannot catch:
a kernel that writes elsewhere (``memory`` of the step layer does).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from validation.errors import UserError
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.state import NAN_BYTE, State


@dataclass
class Request:
    """One sequence: its state slots (one for each token of a verify step), pages by rank, how many tokens
    are stored, and how many the last step accepted. ``tokens``: all tokens stored so far."""

    slots: list[int]
    pages: list[list[int]]
    length: int = 0
    accepted: int = 1
    tokens: list[int] = field(default_factory=list)

    @cached_property
    def tables(self) -> list[Tensor]:
        """Its pages by rank, as staging needs them in every step: a long request has thousands. int32"""
        return [torch.tensor(pages, dtype=torch.int32) for pages in self.pages]

    def advance(self, ids: list[int], accepted: int) -> None:
        """A step with ``ids`` is done, of which the first ``accepted`` stay."""
        if not 1 <= accepted <= len(ids):
            raise UserError(f"{accepted} of {len(ids)} tokens accepted; at least 1 and at most all")
        self.length += accepted
        self.accepted = accepted
        self.tokens += ids[:accepted]


class Pool:
    """Free slots and pages of a state. ``context``: most tokens of a request; ``lasting``: of one request
    among them that outlives the others (0: there is none)."""

    def __init__(
        self,
        config: Config,
        requests: int,
        context: int,
        seed: int = 0,
        spare: int = 3,
        lasting: int = 0,
    ) -> None:
        self.config = config
        self.pages_each = -(-context // config.page)
        self.pages_lasting = -(-lasting // config.page)
        self.capacity = max(self.pages_each, self.pages_lasting)
        self.slot_count = 1 + (requests + spare) * config.tokens
        self.page_count = 1 + (requests + spare) * self.pages_each + self.pages_lasting
        g = torch.Generator().manual_seed(seed)
        self.free_slots = (torch.randperm(self.slot_count - 1, generator=g) + 1).tolist()
        self.free_pages = [
            (torch.randperm(self.page_count - 1, generator=g) + 1).tolist() for _ in range(config.ranks)
        ]

    def admit(self, state: State, lasting: bool = False) -> Request:
        """A new request on free slots, which are reset. UserError if there is no room."""
        each = self.pages_lasting if lasting else self.pages_each
        if len(self.free_slots) < self.config.tokens or len(self.free_pages[0]) < each:
            raise UserError("no free slot or page for another request")
        slots = [self.free_slots.pop() for _ in range(self.config.tokens)]
        pages = [[free.pop() for _ in range(each)] for free in self.free_pages]
        state.reset(slots)
        return Request(slots, pages)

    def release(self, request: Request, state: State | None = None) -> None:
        """Give slots and pages back: the next tenant gets them first. With ``state`` they are poisoned."""
        self.free_slots += request.slots
        for free, pages in zip(self.free_pages, request.pages, strict=True):
            free += pages
        if state is None:
            return
        for part in (state.conv, state.recurrent):
            for tensor in part.values():
                tensor[:, request.slots] = float("nan")
        for tensor in state.kv.values():
            for rank, pages in enumerate(request.pages):
                tensor[rank, pages] = NAN_BYTE
