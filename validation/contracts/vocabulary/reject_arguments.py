"""The arguments of the acceptance rule of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from validation.contracts.contract import read, write

PLACEHOLDER = -1


@dataclass
class RejectSampleArguments:
    """Which drafted tokens are kept, and the token that follows them.

    The drafts of request r are rows ``ends[r - 1]`` to ``ends[r]`` - 1 of ``drafts`` (token ids, -1 a
    placeholder that was never drafted), ``target`` (p), ``proposal`` (q; None: drafts without
    probabilities, q = 1 at the draft) and ``uniform`` (u). Rows from the last ``ends`` on pad the step and
    must not be read. ``noise[r]``: exponential numbers of the request's one recovered token. ``bonus[r]``:
    the token that follows when every draft is kept. ``temperature`` 0 (either sign): greedy; such a request
    reads neither q, u nor noise. ``tokens``: kept drafts, one more token, -1; ``accepted``: kept drafts.

    ``counted``: all requests share p and q, so that counts of what is emitted have a known law. ``wide_rows``
    asks the arena for matrices whose rows are 2**30 elements apart. ``made``: tokens and accepted that a
    backend made, int64 [request, slot + 1].
    """

    drafts: Tensor = read("draft", "i32")
    ends: Tensor = read("request", "i32")
    target: Tensor = read("draft token", "fp32")
    proposal: Tensor | None = read("draft token", "fp32")
    uniform: Tensor = read("draft", "fp32")
    noise: Tensor = read("request token", "fp32")
    bonus: Tensor = read("request", "i32")
    temperature: Tensor = read("request", "fp32")
    tokens: Tensor = write("request slot", "i32")
    accepted: Tensor = write("request", "i32")
    counted: bool = False
    wide_rows: bool = False
    made: Tensor | None = None

    @property
    def vocabulary(self) -> int:
        return int(self.target.shape[1])

    @property
    def most(self) -> int:
        """The largest number of drafts that a request may have."""
        return int(self.tokens.shape[1]) - 1

    @property
    def greedy(self) -> Tensor:
        """bool [request]"""
        return self.temperature == 0

    @property
    def first(self) -> Tensor:
        """First row of each request's drafts. int64 [request]"""
        ends = self.ends.long()
        return torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])

    @property
    def drafted(self) -> Tensor:
        """Number of drafts of each request. int64 [request]"""
        return self.ends.long() - self.first

    def rows(self) -> tuple[Tensor, Tensor]:
        """Row of draft i of request r, and whether there is one. int64 and bool [request, most]; a row that
        there is not is row 0."""
        at = torch.arange(self.most, device=self.ends.device)
        live = at < self.drafted[:, None]
        return torch.where(live, self.first[:, None] + at, 0), live
