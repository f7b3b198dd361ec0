"""Determinism of whole decode steps: the same tokens through the same backend give the same bits.

A backend walks forced tokens through a scaled-down subject, and walks them again, and once more with busy
neighbours. After every step a digest of residual stream, logits, recurrent state, history and keys is taken;
the digests of all walks must be equal. A walk in which one bit is flipped on purpose must be noticed.

The contract is per backend: another backend, device, or version may add in another order.

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

REQUESTS = 2
FLIPPED = 3  # the step from the end at which the control flips a bit


@dataclass
class Repeat:
    """One backend: steps walked, which walks parted at which step, and whether the flipped bit was seen."""

    backend: str
    steps: int
    parted: list[str] = field(default_factory=list)
    noticed: bool = False


def repeated(backend: str, steps: int, seed: int) -> Repeat:
    """Walk three times, and once with a fault. The provider is loaded already."""
    found = Repeat(backend, steps)
    first = walked(backend, steps, seed)
    for name, busy in (("run again", False), ("under load", True)):
        other = walked(backend, steps, seed, busy)
        if (step := first_difference(first, other)) is not None:
            found.parted.append(f"hashes: {backend} {name} parts from its first run at step {step}")
    found.noticed = first_difference(first, walked(backend, steps, seed, flip=steps - FLIPPED)) is not None
    return found


def walked(backend: str, steps: int, seed: int, busy: bool = False, flip: int = -1) -> list[str]:
    """Digests after every step of one walk."""
    from validation.step.executor import provider
    from validation.step.walk import Hooks, Walk, forced
    from validation.subjects.kimi_k3.config import scaled
    from validation.subjects.kimi_k3.weights import random_weights

    torch.set_num_threads(1)
    config, digests = scaled(2, layers=5, block=2), list[str]()
    one = Walk(
        config,
        random_weights(config, seed),
        provider(backend),
        None,
        Hooks(),
        context=steps + 1,
        checks=False,
    )
    one.executor = _watched(one.executor, digests, flip)
    with Neighbours(torch.device("cpu")).while_(busy):
        for _ in range(REQUESTS):
            one.admit()
        for ids in forced(config, REQUESTS, steps, seed=seed):
            one.step(ids)
    return digests


def _watched(executor: Executor, digests: list[str], flip: int) -> Executor:
    """The executor, with a digest after each step; a bit of the recurrent state flips after step ``flip``."""
    from validation.step.executor import Executor

    class Watched(Executor):
        def step(self, program: Program, binding: Binding) -> None:
            super().step(program, binding)
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
        whole.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]


def first_difference(one: list[str], other: list[str]) -> int | None:
    """The first step after which two walks differ; None if none does."""
    return next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)
