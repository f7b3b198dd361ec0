"""What a step is told: tokens, slots, accepted counts, page tables and lengths, as an engine stages them.

Catches: nothing by itself. Cannot represent: an engine's own mistakes in staging; ``lifecycle`` plants them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validation.contracts.mla.dcp_arguments import owned
from validation.errors import UserError
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.requests import Request

INTERLEAVE = 1


@dataclass
class Batch:
    """One step of R requests with ``tokens`` tokens each, B = R * tokens rows.

    ``ids`` int64 [row]. ``slots`` int32 [request, token]: <= 0 is the null slot. ``accepted`` int32
    [request]. ``block_table`` int32 [rank, request, page]; ``lengths`` int32 [rank, request]: keys on that
    rank with the new tokens (all of them unless the cache is sharded), ``totals`` int32 [request]: all keys,
    0 for padding. ``kv_slot`` int64 [rank, row]: cache row of the new key, -1 for none. ``wanted`` int64:
    rows whose logits are asked for.
    """

    ids: Tensor
    slots: Tensor
    accepted: Tensor
    block_table: Tensor
    lengths: Tensor
    totals: Tensor
    kv_slot: Tensor
    wanted: Tensor
    tokens: int

    @property
    def rows(self) -> int:
        return int(self.ids.shape[0])

    @property
    def live(self) -> int:
        """Requests that are not padding."""
        return int((self.totals > 0).sum())

    def copy_(self, other: Batch) -> None:
        """Restage in place: what a graph replay reads must keep its address."""
        for name in STAGED:
            getattr(self, name).copy_(getattr(other, name))

    def clone(self) -> Batch:
        return Batch(**{name: getattr(self, name).clone() for name in STAGED}, tokens=self.tokens)

    def to(self, device: str | torch.device) -> Batch:
        """The same batch on a device; itself where it is there. A GPU's queue is not waited for: what is
        copied has been staged when this returns."""
        if self.ids.device.type == torch.device(device).type:
            return self
        ahead = torch.device(device).type == "cuda"
        staged = {name: getattr(self, name).to(device, non_blocking=ahead) for name in STAGED}
        return Batch(**staged, tokens=self.tokens)

    def neutral(self) -> Batch:
        """A batch of the same shape and device in which every request is padding."""
        empty = self.clone()
        for name, value in PADDING.items():
            getattr(empty, name).fill_(value)
        return empty


STAGED = ("ids", "slots", "accepted", "block_table", "lengths", "totals", "kv_slot", "wanted")
# What padding requests are told.
PADDING = {"slots": 0, "accepted": 1, "block_table": 0, "lengths": 0, "totals": 0, "kv_slot": -1}


def batch_of(
    config: Config,
    requests: Sequence[Request],
    ids: Sequence[Sequence[int]],
    padded: int | None = None,
    capacity: int = 0,
) -> Batch:
    """Stage a step that gives every request its ``ids`` (equally many each), padded to ``padded`` requests
    with null slots, accepted 1 and length 0. ``capacity``: pages a request in the table, at least as many as
    any has. UserError if lengths differ or a request has no room."""
    tokens = {len(row) for row in ids}
    if len(tokens) != 1 or len(ids) != len(requests) or not requests:
        raise UserError(f"a step needs equally many tokens of every request, not {[len(row) for row in ids]}")
    q, count = tokens.pop(), padded or len(requests)
    capacity = max(capacity, *(len(request.pages[0]) for request in requests), 1)
    b = Batch(
        ids=torch.zeros(count * q, dtype=torch.int64),
        slots=torch.zeros(count, q, dtype=torch.int32),
        accepted=torch.ones(count, dtype=torch.int32),
        block_table=torch.zeros(config.ranks, count, capacity, dtype=torch.int32),
        lengths=torch.zeros(config.ranks, count, dtype=torch.int32),
        totals=torch.zeros(count, dtype=torch.int32),
        kv_slot=torch.full((config.ranks, count * q), -1, dtype=torch.int64),
        wanted=torch.arange(len(requests) * q),
        tokens=q,
    )
    # Padding rows differ from each other: equal rows have equal rounding errors, and sums over rows take
    # errors for independent.
    b.ids[len(requests) * q :] = (7 * torch.arange((count - len(requests)) * q) + 3) % config.vocabulary
    b.wanted = torch.cat([b.wanted, torch.zeros(count * q - len(b.wanted), dtype=torch.int64)])
    for i, (request, row) in enumerate(zip(requests, ids, strict=True)):
        b.ids[i * q : (i + 1) * q] = torch.tensor(row)
        b.slots[i] = torch.tensor(request.slots[:q], dtype=torch.int32)
        b.accepted[i] = request.accepted
        b.totals[i] = request.length + q
        _stage_keys(config, b, i, request)
    return b


def _stage_keys(config: Config, b: Batch, i: int, request: Request) -> None:
    """Page tables, lengths and cache rows of one request, on every rank."""
    total = request.length + b.tokens
    for rank, pages in enumerate(request.pages):
        length, places = total, list[int | None](range(request.length, total))
        if config.dcp > 1:
            length = _owned(config, rank, total)
            mine = [p for p in range(request.length, total) if p // INTERLEAVE % config.ranks == rank]
            places = [_owned(config, rank, p) if p in mine else None for p in range(request.length, total)]
        if length > len(pages) * config.page:
            raise UserError(f"a request of {length} tokens does not fit {len(pages)} pages of {config.page}")
        b.block_table[rank, i, : len(pages)] = request.tables[rank]
        b.lengths[rank, i] = length
        rows = [-1 if p is None else pages[p // config.page] * config.page + p % config.page for p in places]
        b.kv_slot[rank, i * b.tokens : (i + 1) * b.tokens] = torch.tensor(rows)


def _owned(config: Config, rank: int, position: int) -> int:
    """How many of the first positions a rank holds."""
    return int(owned(torch.tensor(position), rank, config.ranks, INTERLEAVE))
