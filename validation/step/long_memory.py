"""One layer's recurrence over up to a hundred thousand tokens, against the reference's own state.

Half-lives are log-uniform over 1 to 1e5 tokens, so what is wrong in a state stays in it. The executor's KDA
core is given random projections, token after token; the reference keeps a state of its own, rounded where
the profile says and in float64 between, and both are compared after 1, 2, 4, 8, ... tokens. Noise is carried
as ``rollout`` does, and not forgotten as the state decays. That of the first tokens is predicted one by one,
then of one in ``NOISE_EVERY``, and taken for those that follow it; where a BF16 rounding may flip is not
known for these, so a flip is allowed for everywhere.

Catches: state that is lost, crossed or scaled at any of the tokens, a bias of 1e-7 a token within the first
few, 1e-6 at once. Cannot catch: after some thousand tokens, what is smaller than the flips that are allowed
for; what the recurrence is given (``local``); slots (two requests stay where they are).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from validation.contracts import contract_named
from validation.contracts.contract import Contract
from validation.contracts.kda import initial_slots
from validation.judge import assess
from validation.numerics.arithmetic import Noise, Rounded
from validation.numerics.value import Value
from validation.step.divergence import Divergence, of_operation
from validation.step.executor import Executor
from validation.step.local import Judged, snapshot
from validation.step.rollout import Rolled, carried
from validation.step.walk import Walk, forced
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.weights import Weights

OP, LAYER, RANK = "kda_decode", 1, 0
REQUESTS = 2
EVERY_ONE, NOISE_EVERY = 64, 32  # first tokens whose noise is predicted, and of the others every which


@dataclass
class Memory:
    """``scores``: (tokens, excess, limit) at each comparison; ``found``: the first that failed."""

    scores: list[tuple[int, float, float]] = field(default_factory=list)
    found: list[Divergence] = field(default_factory=list)
    judged: Judged | None = None


def long_memory(
    config: Config,
    weights: Weights,
    executor: Executor,
    tokens: int,
    share: float,
    *,
    seed: int = 0,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda tokens: None,
) -> Memory:
    """Run ``tokens`` tokens of the first KDA layer behind layer 0, on rank 0. ``share``: of the false-alarm
    budget, for all comparisons."""
    operation, a = _operation(config, weights, executor, device, seed)
    checks = [2**n for n in range(20) if 2**n < tokens] + [tokens]
    reference = _Reference(contract_named(OP), executor.profile, Rolled.of(a.state))
    g = torch.Generator(device).manual_seed(seed)
    result = Memory()
    for number in range(1, tokens + 1):
        drawn = torch.randn(a.projected.shape, generator=g, device=a.projected.device)
        a.projected.copy_(drawn)
        clean = snapshot(a) if number in checks else replace(a, conv_state=a.conv_state.clone())
        executor.run(operation, a)
        reference.advance(clean)
        if number in checks:
            judged = reference.judged(operation, clean, a, share / len(checks))
            statistic = judged.worst()[1]
            result.scores.append((number, *statistic.surplus))
            if judged.failed:
                result.judged = judged
                result.found.append(replace(of_operation(number - 1, judged), op="long_memory"))
                break
        advance(number)
    return result


def spoiled(right: Executor, factor: float) -> Executor:
    """Scales the states that every call has written: a planted fault."""

    def run(operation: Operation, a: Any) -> None:
        right.run(operation, a)
        slots = a.slots[:, 0].long()
        a.state[slots] = (a.state[slots].double() * factor).float()

    return replace(right, run=run)


def _operation(
    config: Config, weights: Weights, executor: Executor, device: str, seed: int
) -> tuple[Operation, Any]:
    """The operation and its arguments, bound to the state of two new requests."""
    walk = Walk(config, weights, executor, None, checks=False, device=device, seed=seed, most=REQUESTS)
    for _ in range(REQUESTS):
        walk.admit()
    (ids,) = forced(config, REQUESTS, 1, seed=seed)
    binding = walk.binding(batch_of(config, walk.requests, ids))
    found = next(o for o in walk.program(1) if (o.op, o.rank) == (OP, RANK) and o.layer >= LAYER)
    return found, found.arguments(binding)


def _anywhere(part: Tensor | None) -> Tensor | None:
    """The largest of a head for all of it: at which token and element a rounding flips is not known."""
    return None if part is None else part.amax((-2, -1), keepdim=True).expand(part.shape)


class _Reference:
    """The reference's own state, and the noise it carries."""

    def __init__(self, contract: Contract, profile: str, rolled: Rolled) -> None:
        self.contract, self.rolled, self.count = contract, rolled, 0
        self.profile = contract.profiles[profile].on(rolled.mean.device.type)
        self.own: list[Tensor | None] = [None, None, None]

    def advance(self, a: Any) -> None:
        """One token from the same inputs."""
        a = replace(a, state=self.rolled.mean)
        noisy = self.count < EVERY_ONE or self.count % NOISE_EVERY == 0
        ar = Noise(self.profile) if noisy else Rounded(self.profile)
        value = self.contract.reference(ar, a)["state"]
        if noisy:
            variance, *jumps = value.parts()
            self.own = [variance, *(_anywhere(part) for part in jumps)]
        own = self.own
        total = carried(Value(value.ar, value.mean, own[0], own[1], own[2]), self.rolled, initial_slots(a))
        slots = a.slots[:, 0].long()
        for part, new in zip(self.rolled.parts(), (total.mean, *total.parts()), strict=True):
            if new is not None:
                part[slots] = new[:, 0]
        self.total, self.count = total, self.count + 1

    def judged(self, operation: Operation, clean: Any, outcome: Any, share: float) -> Judged:
        """The executor's state against this one: excess and what is not finite."""
        output = next(o for o in self.contract.outputs if o.name == "state")
        found = assess(self.contract, output, output.view(outcome), {"state": self.total}, share)
        kept = [("state", s) for s in found if s.name in ("excess", "nonfinite")]
        return Judged(operation, kept, clean, outcome)
