"""Cheap checks of every step of a long run, bit for bit, gathered on the device and read once a window.

``continuity``: history and state are found as the last step left them. ``staging``: the step is told what the
requests say. ``ranks``: replicated tensors and new keys hold the same bits on every rank. ``finite``: logits,
history and state of live requests. ``nobody``: slot 0 and page 0 stay as they were. ``untouched``, at the end
of a window: slots and keys that no step of the window was told to write hold the bits that they had (a NaN
may be another NaN); so a plain step must leave the slots of drafted tokens alone.

Catches: what ``between`` does, at a cost that ten thousand steps can bear, with the first step of each.
Cannot catch: what an operation computes (``local``, ``replay`` and the distances of ``long_run``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from validation.step import between
from validation.step.divergence import Divergence, of_check
from validation.subjects.kimi_k3.batch import Batch
from validation.subjects.kimi_k3.operation import Binding
from validation.subjects.kimi_k3.state import NAN_BYTE, State

if TYPE_CHECKING:
    from validation.step.walk import Walk

_WORDS = {
    "continuity": "changed between two steps",
    "ranks": "parts from rank 0",
    "finite": "is not finite",
    "nobody": "was written, which belongs to nobody",
}
_INTEGERS = {2: torch.int16, 4: torch.int32, 1: torch.uint8}
Name = tuple[str, str, int]  # check, what, layer


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers of its width."""
    return tensor.view(_INTEGERS[tensor.element_size()])


class Watch:
    """Checks of one walk, at every ``every``-th step. ``first``: the first step at which each was broken,
    below 0 for none. [name]"""

    def __init__(self, walk: Walk, every: int = 1) -> None:
        self.every, self.fresh = every, False
        self.wrong: dict[Name, Tensor] = {}
        self.names: list[Name] = []
        self.first = torch.empty(0, dtype=torch.int64)
        self.found: list[Divergence] = []
        self.kept: dict[tuple[str, int], Tensor] = {}
        self.begin(walk)

    def begin(self, walk: Walk) -> None:
        """A window begins, with these requests and this state."""
        device = walk.device
        self.start = walk.state.clone()
        slots = walk.pool.slot_count
        self.told = {k: torch.zeros(slots, dtype=torch.bool, device=device) for k in ("conv", "recurrent")}
        self.written = {
            layer: torch.zeros(cache.shape[:3], dtype=torch.bool, device=device).flatten()
            for layer, cache in walk.state.kv.items()
        }
        self.ranks = torch.arange(walk.config.ranks, device=device)[:, None]
        self.right = torch.zeros((), dtype=torch.bool, device=device)
        self.fresh = True
        self._keep(walk.state)

    def _keep(self, state: State) -> None:
        for kind, layer, tensor in state.buffers():
            if kind != "kv":
                if (kind, layer) in self.kept:
                    self.kept[kind, layer].copy_(tensor)
                else:
                    self.kept[kind, layer] = tensor.clone()

    # -- every step ------------------------------------------------------------------------------------------

    def before(self, walk: Walk) -> None:
        """Ahead of a step: nobody touched the state since the last one."""
        if not self.fresh:
            return
        for (kind, layer), kept in self.kept.items():
            now = getattr(walk.state, kind)[layer]
            self.wrong["continuity", kind, layer] = (bits(now) != bits(kept)).any()
        self._gather(walk.number)

    def staged(self, step: int, batch: Batch, right: Batch) -> None:
        """What the step is told, on the host."""
        self.found += between.staging(step, batch, right)

    def after(self, walk: Walk, b: Binding, live: int) -> None:
        """Behind a step."""
        self._mark(b)
        self.fresh = walk.number % self.every == 0
        if self.fresh:
            self._look(walk, b, live)
            self._gather(walk.number)
            self._keep(walk.state)

    def _mark(self, b: Binding) -> None:
        """The slots and the rows of the caches that this step owns; the history is in the first slot."""
        slots = b.batch.slots.long().clamp(min=0)
        self.told["recurrent"][slots] = True
        self.told["conv"][slots[:, 0]] = True
        rows = b.batch.kv_slot.clamp(min=0)
        for layer, cache in b.state.kv.items():
            self.written[layer][self.ranks * cache.shape[1] * cache.shape[2] + rows] = True

    def _look(self, walk: Walk, b: Binding, live: int) -> None:
        self._ranks(b, live)
        self._finite(b, live)
        for kind, layer, tensor in walk.state.buffers():
            nobody = tensor[:, 0]
            changed = nobody != NAN_BYTE if kind == "kv" else ~nobody.isnan()
            self.wrong["nobody", kind, layer] = changed.any()

    def _ranks(self, b: Binding, live: int) -> None:
        for name, tensor in between.replicated(b, live).items():
            self.wrong["ranks", name, -1] = (bits(tensor) != bits(tensor[:1])).any()
        if b.config.dcp > 1:
            return
        for layer, cache in b.state.kv.items():
            keys = cache.flatten(1, 2)[self.ranks, b.batch.kv_slot[:, :live]]
            self.wrong["ranks", "keys", layer] = (keys != keys[:1]).any()

    def _finite(self, b: Binding, live: int) -> None:
        logits = b.scratch.logits[:, :live, : b.config.vocabulary]
        self.wrong["finite", "logits", -1] = ~logits.isfinite().all()
        slots = b.batch.slots[: live // b.batch.tokens].long()
        for layer, state in b.state.recurrent.items():
            self.wrong["finite", "recurrent", layer] = ~state[:, slots].isfinite().all()
            history = b.state.conv[layer][:, slots[:, 0], :, : 2 + b.batch.tokens]
            self.wrong["finite", "conv", layer] = ~history.isfinite().all()

    def _gather(self, step: int) -> None:
        names = [name for name in self.wrong if name not in self.names]
        if names:
            self.names += names
            device = next(iter(self.wrong.values())).device
            new = torch.full((len(names),), -1, dtype=torch.int64, device=device)
            self.first = torch.cat([self.first.to(device), new])
        now = torch.stack([self.wrong.get(name, self.right) for name in self.names])
        self.first = torch.where((self.first < 0) & now, step, self.first)
        self.wrong = {}

    # -- every window ----------------------------------------------------------------------------------------

    def end(self, walk: Walk) -> list[Divergence]:
        """What was wrong in the window, in the order of its steps; the checks start anew."""
        found, self.found = self.found, []
        for (check, what, layer), step in zip(self.names, self.first.tolist(), strict=True):
            if step >= 0:
                message = f"{what} {_WORDS[check]}"
                found.append(of_check(step, check, what, message, count=1, layer=layer))
        self.first = torch.full_like(self.first, -1)
        found += self._untouched(walk)
        return sorted(found, key=lambda d: d.step)

    def _untouched(self, walk: Walk) -> list[Divergence]:
        found = []
        for (kind, layer, then), (_, _, now) in zip(self.start.buffers(), walk.state.buffers(), strict=True):
            changed = bits(then) != bits(now)
            if kind == "kv":
                changed = changed & ~self.written[layer].view(changed.shape[:3])[..., None]
            else:
                changed[:, self.told[kind]] = False
                # A compiler that copies a whole cache may bring back another NaN.
                changed &= ~(then.isnan() & now.isnan())
            changed[:, 0] = False  # ``nobody`` looks at it
            if bool(changed.any()):
                places = changed.flatten(2).any(-1).nonzero()[0].tolist()
                unit = "page" if kind == "kv" else "slot"
                message = f"{unit} {places[1]} of rank {places[0]} was written, which no request owned"
                found.append(
                    of_check(
                        walk.number - 1, "untouched", kind, message, count=int(changed.sum()), layer=layer
                    )
                )
        return found
