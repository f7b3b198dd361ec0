"""Checks between operations and between steps, all bit for bit: what no operation can be blamed for.

``continuity``: nobody touched the state between two steps (an ownership shadow of every slot and page).
``admission``: a new tenant's slots are reset. ``staging``: slots, accepted counts, page tables and lengths
are those of the requests. ``restored``: a resumed request, or one that starts from a prefix snapshot, has the
bytes that were saved. ``ranks``: replicated tensors hold the same bits on every rank. ``finite``: no live
slot keeps a NaN or an infinity.

Catches: wiped, drifted or crossed state between steps, recycled slots, metadata of another step or another
order, ranks that part, poison that persists. Cannot catch: what an operation does (``local``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from validation.step.divergence import Divergence, of_check
from validation.subjects.kimi_k3.batch import STAGED, Batch
from validation.subjects.kimi_k3.operation import Binding
from validation.subjects.kimi_k3.requests import Request
from validation.subjects.kimi_k3.state import State, differences, raw


def continuity(step: int, before: State, now: State) -> list[Divergence]:
    """The state as the last step left it, ``before``, must be the state that this step finds."""
    found = []
    for kind, layer, mask in differences(before, now):
        rank, place = torch.nonzero(mask)[0].tolist()
        unit = "page" if kind == "kv" else "slot"
        where = f"rank {rank}, {unit} {place}"
        message = f"{int(mask.sum())} {unit}s changed between two steps"
        found.append(
            of_check(step, "continuity", kind, message, count=int(mask.sum()), layer=layer, where=where)
        )
    return found


def admission(step: int, state: State, request: Request) -> list[Divergence]:
    """All slots of a new request are zero in every layer and on every rank."""
    found = []
    for kind, layer, tensor in state.buffers():
        if kind == "kv":
            continue
        live = (tensor[:, request.slots] != 0).flatten(2).any(-1)
        if bool(live.any()):
            slot = request.slots[int(torch.nonzero(live)[0, 1])]
            message = f"slot {slot} of a new request holds its last tenant's state"
            found.append(
                of_check(
                    step, "admission", kind, message, count=int(live.sum()), layer=layer, where=f"slot {slot}"
                )
            )
    return found


def restored(step: int, saved: State, old: Request, now: State, new: Request) -> list[Divergence]:
    """History, state and keys of ``new`` are those of ``old`` when it was saved."""
    found = []
    for (kind, layer, then), (_, _, tensor) in zip(saved.buffers(), now.buffers(), strict=True):
        if kind == "kv":
            # Keys behind the last one are nobody's.
            pairs = zip(then, old.pages, tensor, new.pages, strict=True)
            rows = [(a[p].flatten(0, 1), b[q].flatten(0, 1)) for a, p, b, q in pairs]
            count = new.length if now.config.dcp == 1 else len(rows[0][0])
            wrong = sum(int((a[:count] != b[:count]).any(-1).sum()) for a, b in rows)
        else:
            wrong = int((raw(then[:, old.slots]) != raw(tensor[:, new.slots])).sum())
        if wrong:
            message = f"{wrong} bytes of a resumed request are not what was saved"
            found.append(of_check(step, "restored", kind, message, count=wrong, layer=layer))
    return found


def staging(step: int, staged: Batch, right: Batch) -> list[Divergence]:
    """What the step is told against what the requests say; padding must be neutral."""
    found = []
    for name in STAGED:
        told, wanted = getattr(staged, name), getattr(right, name)
        wrong = told != wanted if told.shape == wanted.shape else torch.ones(1, dtype=torch.bool)
        if bool(wrong.any()):
            place = torch.nonzero(wrong)[0].tolist()
            message = f"{name} at {place} is {told[tuple(place)].tolist()}, the requests say otherwise"
            found.append(of_check(step, "staging", name, message, count=int(wrong.sum()), where=str(place)))
    return found


def replicated(b: Binding, wanted: int) -> dict[str, Tensor]:
    """What every rank holds alike after a step, by name: the embedding, ``wanted`` rows of logits, and
    replicated columns of the last projections. [rank, row, column]"""
    s, c, rows = b.scratch, b.config, b.batch.rows
    whole = 4 * c.kda_width
    return {
        "embedded": s.embedded[:, :rows],
        "logits": s.logits[:, :wanted, : c.vocabulary],
        "latent query and key": s.mla_projected[:, :rows, : c.gate_start],
        "decay gate": s.kda_projected[:, :rows, whole : whole + c.gate_rank],
    }


def ranks(step: int, b: Binding) -> list[Divergence]:
    """Embedding, logits, replicated columns of the last projections, and every request's keys."""
    found = []
    for name, tensor in replicated(b, len(b.batch.wanted)).items():
        found += _equal(step, name, -1, tensor)
    if b.config.dcp == 1:
        for layer, cache in b.state.kv.items():
            tables = b.batch.block_table.long()
            keys = torch.stack([pages[table] for pages, table in zip(cache, tables, strict=True)])
            keys = keys.flatten(2, 3)[:, b.batch.totals > 0]  # [rank, request, position, byte]
            lengths = b.batch.totals[b.batch.totals > 0]
            inside = torch.arange(keys.shape[2], device=keys.device) < lengths[:, None]
            found += _equal(step, "keys", layer, torch.where(inside[None, ..., None], keys, 0))
    return found


def _equal(step: int, name: str, layer: int, tensor: Tensor) -> list[Divergence]:
    """Bits of every rank against those of rank 0."""
    bits = raw(tensor)
    wrong = bits != bits[:1]
    if not bool(wrong.any()):
        return []
    place = torch.nonzero(wrong)[0].tolist()
    message = f"rank {place[0]} parts from rank 0"
    return [of_check(step, "ranks", name, message, count=int(wrong.sum()), layer=layer, where=str(place))]


def finite(step: int, state: State, requests: Sequence[Request]) -> list[Divergence]:
    """Recurrent state and history in the slots that the next step reads."""
    found = []
    for kind, layer, tensor in state.buffers():
        if kind == "kv":
            continue
        for number, request in enumerate(requests):
            if kind == "recurrent":
                part = tensor[:, request.slots[request.accepted - 1]]
            else:
                part = tensor[:, request.slots[0], :, request.accepted - 1 : request.accepted + 2]
            bad = ~torch.isfinite(part)
            if bool(bad.any()):
                message = f"request {number} keeps {int(bad.sum())} numbers that are not finite"
                found.append(of_check(step, "finite", kind, message, count=int(bad.sum()), layer=layer))
    return found
