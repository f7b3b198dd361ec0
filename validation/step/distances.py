"""How far two walks on the same tokens and slots are apart over a window, by request.

KL divergence of the next-token distributions (of all tokens of a verify step), squared change of the
log-probability of the token that is forced behind the accepted ones, and squared relative distance of the
recurrent state and history that the next step starts from and of the step's keys of every layer, each summed
over the steps of a window. Nothing leaves the device before the window's end.

Catches: nothing by itself; ``long_run`` has the limits. Cannot represent: which of the two is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validation.step.walk import Walk

_SMALL = 1e-30


class Distances:
    """Sums over the steps so far, by name. float64 [request]"""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, one: Walk, other: Walk, following: Sequence[Sequence[int]] | None) -> None:
        """Both walks have done the same step; ``following``: the tokens that are forced next."""
        places = Places.of(one)
        self._logits(one, other, places, following)
        for (kind, layer, mine), (_, _, theirs) in zip(
            one.state.buffers(), other.state.buffers(), strict=True
        ):
            a, b = (_of_requests(w, kind, t, places) for w, t in ((one, mine), (other, theirs)))
            if a is None or b is None:
                continue
            scale = b.norm(dim=-1).clamp(min=_SMALL)
            self._sum(f"{kind} of layer {layer}", ((a - b).norm(dim=-1) / scale).square())

    def _logits(self, one: Walk, other: Walk, at: Places, following: Sequence[Sequence[int]] | None) -> None:
        live, vocabulary = len(one.requests) * at.tokens, one.config.vocabulary
        p, q = (w.scratch.logits[0, :live, :vocabulary].float().log_softmax(-1) for w in (one, other))
        apart = (q.exp() * (q - p)).sum(-1).clamp(min=0)
        self._sum("KL divergence", apart.unflatten(0, (-1, at.tokens)).sum(1))
        if following is not None:
            place = torch.tensor([row[0] for row in following], device=one.device)[:, None]
            p, q = p[at.last], q[at.last]
            self._sum("forced token", (p.gather(1, place) - q.gather(1, place)).square()[:, 0])

    def _sum(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums[name] + value.double() if name in self.sums else value.double()

    def read(self) -> dict[str, Tensor]:
        """The sums on the host."""
        return {name: value.cpu() for name, value in self.sums.items()}


@dataclass(frozen=True)
class Places:
    """Where the accepted tokens of the step just done are: the slot of the state behind them, the first slot
    and the columns of its history, and the row of the last of them. [request], ``columns`` [request, 3]"""

    tokens: int
    state: Tensor
    first: Tensor
    columns: Tensor
    last: Tensor

    @classmethod
    def of(cls, walk: Walk) -> Places:
        tokens = walk.last.batch.tokens if walk.last else 1
        found = [(r.slots[r.accepted - 1], r.slots[0], r.accepted - 1) for r in walk.requests]
        state, first, place = torch.tensor(found, device=walk.device).unbind(1)
        columns = place[:, None] + torch.arange(3, device=walk.device)
        last = torch.arange(len(found), device=walk.device) * tokens + place
        return cls(tokens, state, first, columns, last)


def _of_requests(walk: Walk, kind: str, tensor: Tensor, at: Places) -> Tensor | None:
    """State of every request [request, number]; of the cache the newest keys, where every rank has them."""
    if kind == "recurrent":
        return tensor[:, at.state].transpose(0, 1).flatten(1)
    if kind == "conv":
        held = tensor[:, at.first]
        columns = at.columns[None, :, None].expand(*held.shape[:3], 3)
        return held.gather(3, columns).transpose(0, 1).flatten(1).float()
    if walk.config.dcp > 1 or walk.last is None:
        return None
    rows = walk.last.batch.kv_slot[:, : len(walk.requests) * at.tokens]
    ranks = torch.arange(len(tensor), device=tensor.device)[:, None]
    keys = tensor.flatten(1, 2)[ranks, rows].unflatten(1, (-1, at.tokens)).transpose(0, 1).flatten(1)
    return keys.view(torch.float8_e4m3fn).float()
