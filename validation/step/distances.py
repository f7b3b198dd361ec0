"""How far two walks on the same tokens and slots are apart over a window, by request.

KL divergence of the next-token distributions, squared change of the log-probability of the forced token, and
squared relative distance of recurrent state, history and newest keys of every layer, each summed over the
steps of a window. Nothing leaves the device before the window's end.

Catches: nothing by itself; ``long_run`` has the limits. Cannot represent: which of the two is right.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        self._logits(one, other, following)
        slots = torch.tensor([r.slots[0] for r in one.requests], device=one.device)
        for (kind, layer, mine), (_, _, theirs) in zip(
            one.state.buffers(), other.state.buffers(), strict=True
        ):
            a, b = (_of_requests(w, kind, t, slots) for w, t in ((one, mine), (other, theirs)))
            if a is None or b is None:
                continue
            scale = b.norm(dim=-1).clamp(min=_SMALL)
            self._sum(f"{kind} of layer {layer}", ((a - b).norm(dim=-1) / scale).square())

    def _logits(self, one: Walk, other: Walk, following: Sequence[Sequence[int]] | None) -> None:
        live, vocabulary = len(one.requests), one.config.vocabulary
        p, q = (w.scratch.logits[0, :live, :vocabulary].float().log_softmax(-1) for w in (one, other))
        self._sum("KL divergence", (q.exp() * (q - p)).sum(-1).clamp(min=0))
        if following is not None:
            place = torch.tensor([row[0] for row in following], device=one.device)[:, None]
            self._sum("forced token", (p.gather(1, place) - q.gather(1, place)).square()[:, 0])

    def _sum(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums[name] + value.double() if name in self.sums else value.double()

    def read(self) -> dict[str, Tensor]:
        """The sums on the host."""
        return {name: value.cpu() for name, value in self.sums.items()}


def _of_requests(walk: Walk, kind: str, tensor: Tensor, slots: Tensor) -> Tensor | None:
    """State of every request [request, number]; of the cache the newest keys, where every rank has them."""
    if kind == "recurrent":
        return tensor[:, slots].transpose(0, 1).flatten(1)
    if kind == "conv":
        return tensor[:, slots, :, :3].transpose(0, 1).flatten(1).float()
    if walk.config.dcp > 1 or walk.last is None:
        return None
    rows = walk.last.batch.kv_slot[:, : len(walk.requests)]
    ranks = torch.arange(len(tensor), device=tensor.device)[:, None]
    keys = tensor.flatten(1, 2)[ranks, rows].transpose(0, 1).flatten(1)
    return keys.view(torch.float8_e4m3fn).float()
