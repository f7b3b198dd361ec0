"""Honest variants of the vanilla step, drawn from the predicted noise: what may come out of a backend that
rounds where its profile says.

Every operation's outputs are drawn from their prediction (``Noise``): the mean, smooth noise of the predicted
deviation, and jumps of the predicted size and probability; then they are stored, and the next operation
starts from there. Discrete choices are made among scores drawn in the same way. An ensemble of such steps is
how far an honest backend may be from the vanilla step after many operations and steps (Monte Carlo
arithmetic; Parker 1997), expert flips included.

Catches: nothing by itself. Cannot represent: correlations between the errors of elements, which the
predictions do not carry either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from validation.contracts import contract_named
from validation.numerics.arithmetic import Noise
from validation.numerics.choices import Choice
from validation.numerics.value import Value
from validation.step.executor import Executor
from validation.step.store import store
from validation.subjects.kimi_k3.operation import Operation

# The discrete or published outputs on which the others of the operation are then drawn.
_MADE_FIRST = {"route": "ids", "shared_expert": "partial"}


def honest(profile: str, seed: int) -> Executor:
    """An executor whose every call is another honest variant."""
    g = torch.Generator().manual_seed(seed)

    def run(operation: Operation, a: Any) -> None:
        contract = contract_named(operation.op)
        noise = Noise(contract.profiles[profile])
        values = contract.reference(noise, a)
        drawn = {name: sample(value, g) for name, value in values.items()}
        store(operation.op, a, drawn)
        first = _MADE_FIRST.get(operation.op)
        if first:
            values = contract.reference(noise, contract.adopt(a, a))
            redrawn = {name: sample(value, g) for name, value in values.items()}
            store(operation.op, a, redrawn | {first: drawn[first]})

    return Executor("honest", profile, run)


def sample(value: Value | Choice, g: Generator) -> Tensor:
    """One draw of a prediction, before its store. float64"""
    if isinstance(value, Choice):
        scores = sample(value.scores, g)
        return scores.topk(value.size, -1).indices.double()
    drawn = value.mean
    if value.variance is not None:
        deviation = value.variance.expand(value.shape).sqrt()
        drawn = drawn + deviation * torch.randn(value.shape, generator=g, dtype=torch.float64)
    if value.jump is not None and value.jump_variance is not None:
        jump = value.jump.expand(value.shape)
        chance = value.jump_variance / (jump * jump).clamp(min=1e-300)
        u = torch.rand(value.shape, generator=g, dtype=torch.float64)
        drawn = drawn + torch.where(u < chance, torch.where(u < chance / 2, jump, -jump), 0.0)
    return drawn
