"""Determinism of whole decode steps: the same tokens through the same backend give the same bits.

A backend walks forced tokens through a scaled-down subject, and walks them again, and once more with busy
neighbours. It runs a step as it always does: whole, where it has a way of its own (compiled, or as a graph
that is replayed), else operation by operation. After every step a digest of residual stream, logits,
recurrent state, history and keys is taken; the digests of all walks must be equal. A walk in which one bit is
flipped on purpose must be noticed.

The contract (``CONTRACT``) is per backend: another backend, device, or version may add in another order.

What this catches: races, uninitialised memory, results that depend on load. What it cannot catch: what is
wrong in the same way every time; ``lockstep step`` judges that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from validation.stress.neighbours import Neighbours

if TYPE_CHECKING:
    from validation.step.executor import Executor
    from validation.subjects.kimi_k3.operation import Binding, Program

CONTRACT = (
    "same weights, tokens and batches give the same bits of residual stream, logits, recurrent state, "
    "history and keys after every decode step: when walked twice, and under load; per backend, device and "
    "version"
)
REQUESTS = 2
AGAIN = {"run again": False, "under load": True}  # walks after the first, and whether neighbours are busy
CONTROL, FLIPPED = 6, 2  # steps of the walk with a flipped bit, and the step after which it flips


@dataclass
class Repeat:
    """One backend: steps of each walk, which walks parted at which step, and whether the flipped bit was
    seen."""

    backend: str
    device: str
    steps: int
    walks: tuple[str, ...] = tuple(AGAIN)
    parted: list[str] = field(default_factory=list)
    noticed: bool = False


def repeated(backend: str, steps: int, seed: int, device: str = "cpu") -> Repeat:
    """Walk three times, and a few steps with a fault. The provider is loaded already."""
    found = Repeat(backend, device, steps)
    walker = Walker(backend, device, seed, steps + 1)
    first = walker.walked(steps)
    for name, busy in AGAIN.items():
        if (step := first_difference(first, walker.walked(steps, busy))) is not None:
            found.parted.append(f"hashes: {backend} {name} parts from its first run at step {step}")
    few = min(CONTROL, steps)
    found.noticed = first_difference(first[:few], walker.walked(few, flip=FLIPPED)) is not None
    return found


@dataclass(frozen=True)
class Walker:
    """What all walks of a backend share. ``context``: positions that a request has room for."""

    backend: str
    device: str
    seed: int
    context: int

    def walked(self, steps: int, busy: bool = False, flip: int = -1) -> list[str]:
        """Digests after every step of one walk; a bit flips after step ``flip``."""
        from validation.step.executor import fastest
        from validation.step.walk import Hooks, Walk, forced
        from validation.subjects.kimi_k3.config import scaled
        from validation.subjects.kimi_k3.weights import random_weights

        torch.set_num_threads(1)
        config, digests = scaled(2, layers=5, block=2), list[str]()
        one = Walk(
            config, random_weights(config, self.seed, self.device), fastest(self.backend, self.device), None,
            Hooks(), context=self.context, checks=False, device=self.device,
        )  # fmt: skip
        one.executor = _watched(one.executor, digests, flip)
        neighbours = Neighbours(torch.device(self.device))
        for _ in range(REQUESTS):
            one.admit()
        for ids in forced(config, REQUESTS, steps, seed=self.seed):
            with neighbours.while_(busy):
                one.step(ids)
        return digests


def _watched(executor: Executor, digests: list[str], flip: int) -> Executor:
    """The executor, with a digest after each step; a bit of the recurrent state flips after step ``flip``."""
    from validation.step.executor import Executor

    class Watched(Executor):
        def step(self, program: Program, binding: Binding) -> None:
            executor.step(program, binding)
            if len(digests) == flip:
                layer = next(iter(binding.state.recurrent.values()))
                layer.view(torch.int32).flatten()[-1] ^= 1
            digests.append(digest(binding))

    return Watched(executor.name, executor.profile, executor.run)


def digest(binding: Binding) -> str:
    """Sixteen hex digits over everything that a step leaves behind, all ranks and slots."""
    state, scratch, rows = binding.state, binding.scratch, binding.batch.rows
    tensors: list[Any] = [scratch.prefix[:rows], scratch.last[:rows], scratch.logits[:, :rows]]
    for held in (state.recurrent, state.conv, state.kv):
        tensors += [held[layer] for layer in sorted(held)]
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]


def first_difference(one: list[str], other: list[str]) -> int | None:
    """The first step after which two walks differ; None if none does."""
    return next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)
