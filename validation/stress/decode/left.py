"""What every step leaves, as digests on the device: so that a captured step can log them itself.

Of each rank: residual stream, blocks, last hidden rows, logits and the new keys, which all ranks must hold
alike; and its own history and recurrent state, of the slots that the step was told. A digest is the sum of
the words times fixed odd 64-bit weights, modulo 2**64: one changed word always changes it.

What this catches: nothing by itself; digests are compared by ``run``. What it cannot see: slots and pages of
other requests; ``held`` digests all of them, and is for checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from validation.step.executor import Executor
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.state import State, raw

AT_A_TIME = 1 << 22  # words of a digest outside of a step


class Left:
    """The log of the ranks that a process plays. ``clock`` [2]: the second is the step. A class for what it
    gathers while a step is issued, and for weights and owners, which must be there before a capture."""

    def __init__(self, config: Config, ranks: Sequence[int], clock: Tensor, chunk: int) -> None:
        self.config, self.ranks, self.clock, self.chunk = config, ranks, clock, chunk
        self.found: dict[int, dict[str, Tensor]] = {rank: {} for rank in ranks}
        self.names: list[str] = []
        self.log = torch.empty(0)
        self.owners: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def watched(self, one: Executor) -> Executor:
        """``one``, which logs what a step leaves behind its last operation."""

        def run(operation: Operation, a: Any) -> None:
            one.run(operation, a)
            self.see(operation, a)

        return replace(one, run=run)

    def see(self, operation: Operation, a: Any) -> None:
        """Note where an operation leaves something; behind the logits, log it all."""
        layer, rank = operation.layer, operation.rank
        if operation.op == "kda_decode" and rank in self.found:
            slots = a.slots[:, 0].long()
            self.found[rank][f"state of layer {layer}"] = a.state[slots]
            self.found[rank][f"history of layer {layer}"] = a.conv_state[slots]
        elif operation.op == "mla_query" and rank in self.found:
            self.found[rank][f"keys of layer {layer}"] = a.cache.flatten(0, 1)[a.slot.clamp(min=0)]
        elif operation.op == "attn_res" and layer == self.config.layers:
            alike = {"prefix": a.prefix, "blocks": a.blocks[:, : a.blocks_read], "hidden": a.out}
            for rank in self.ranks:
                self.found[rank] |= alike
        elif operation.op == "logits":
            for i, rank in enumerate(self.ranks):
                self._logged(i, self.found[rank] | {"logits": a.out[rank]})
                self.found[rank] = {}

    def _logged(self, i: int, tensors: dict[str, Tensor]) -> None:
        words = [words_of(tensor) for tensor in tensors.values()]
        if not self.names:
            self.names = list(tensors)
            shape = self.chunk, len(self.ranks), len(words)
            self.log = torch.zeros(shape, dtype=torch.int64, device=words[0].device)
        owner, weights = self._owners(tuple(len(w) for w in words), words[0].device)
        sums = torch.zeros_like(self.log[0, 0]).index_add_(0, owner, torch.cat(words).long() * weights)
        self.log[:, i].index_copy_(0, self.clock[1:].long() % self.chunk, sums[None])

    def _owners(self, sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        if sizes not in self.owners:
            owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
            self.owners[sizes] = owner.to(device), odd_weights(0, sum(sizes), device)
        return self.owners[sizes]

    def take(self, first: int, count: int) -> Tensor:
        """The digests of ``count`` steps from ``first`` on, at most a chunk. int64 [step, rank, tensor]"""
        at = torch.arange(first, first + count) % self.chunk
        return self.log.cpu()[at]

    def alike(self) -> Tensor:
        """Which tensors all ranks must hold alike. bool [tensor]"""
        return torch.tensor([not name.startswith(("state", "history")) for name in self.names])


def words_of(tensor: Tensor) -> Tensor:
    """All bytes as int32 words, the last one filled up with zeros. [word]"""
    found = raw(tensor).flatten()
    if lacking := -len(found) % 4:
        found = torch.nn.functional.pad(found, (0, lacking))
    return found.view(torch.int32)


def odd_weights(first: int, count: int, device: torch.device) -> Tensor:
    """Fixed odd 64-bit numbers of the places from ``first`` on (the finalizer of MurmurHash3). [count]"""
    x = torch.arange(first + 1, first + count + 1, device=device) * -0x61C8864680B583EB
    x = (x ^ (x >> 33)) * -0x00AE502812AA7333
    x = (x ^ (x >> 33)) * -0x3B314601E57A13AD
    return (x ^ (x >> 33)) | 1


def digest(tensor: Tensor) -> str:
    """Sixteen hex digits of all bytes of a tensor."""
    words, total = words_of(tensor), 0
    for first in range(0, len(words), AT_A_TIME):
        part = words[first : first + AT_A_TIME].long()
        total += int((part * odd_weights(first, len(part), part.device)).sum())
    return hexadecimal(total)


def held(state: State, rank: int) -> dict[str, str]:
    """Digests of all that a rank holds, whoever's slots and pages they are, by name."""
    names = {"conv": "history", "recurrent": "state", "kv": "keys"}
    return {
        f"{names[kind]} of layer {layer}, all slots": digest(tensor[rank])
        for kind, layer, tensor in state.buffers()
    }


def combined(digests: Tensor) -> list[str]:
    """One digest for each line of digests. [line, digest]"""
    weights = odd_weights(0, digests.shape[1], digests.device)
    return [hexadecimal(value) for value in (digests * weights).sum(1).tolist()]


def hexadecimal(value: int) -> str:
    return f"{value & 0xFFFFFFFFFFFFFFFF:016x}"
