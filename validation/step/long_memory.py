"""One layer's recurrence over up to a hundred thousand tokens, against the reference's own state.

Half-lives are log-uniform over 1 to 1e5 tokens, so what is wrong in a state stays in it. The executor's KDA
core is given random projections, token after token; the reference keeps a state of its own, rounded where
the profile says and in float64 between, and both are compared after 1, 2, 4, 8, ... tokens. Noise is carried
as ``rollout`` does, and not forgotten as the state decays. That of every token is predicted, of ``TOGETHER``
tokens in one call: each is a request of its own there, with the state and history that it found.

Catches: state that is lost, crossed or scaled at any of the tokens, a bias of 1e-7 a token within the first
few, 1e-6 at once. Cannot catch: after some thousand tokens, what is smaller than the flips of roundings that
there were; what the recurrence is given (``local``); slots (two requests stay where they are).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from validation.contracts import contract_named
from validation.contracts.contract import Contract
from validation.contracts.kda import initial_slots
from validation.judge import assess
from validation.numerics.arithmetic import Noise, Rounded
from validation.numerics.value import Value
from validation.step import progress
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
TOGETHER = 32  # tokens whose noise is predicted in one call


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
    kept: Path | None = None,
) -> Memory:
    """Run ``tokens`` tokens of the first KDA layer behind layer 0, on rank 0. ``share``: of the false-alarm
    budget, for all comparisons. ``kept``: a file in which progress is kept, and from which it goes on."""
    operation, a = _operation(config, weights, executor, device, seed)
    checks = [2**n for n in range(20) if 2**n < tokens] + [tokens]
    reference = _Reference(contract_named(OP), executor.profile, Rolled.of(a.state))
    g = torch.Generator(device).manual_seed(seed)
    result = Memory()
    first = _resumed(kept, a, reference, g, result) if kept else 0
    for number in range(first + 1, tokens + 1):
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
        if kept and number < tokens and progress.due(kept):
            _keep(kept, a, reference, g, result, number)
    if kept and not result.found:
        kept.unlink(missing_ok=True)
    return result


def _keep(kept: Path, a: Any, reference: _Reference, g: torch.Generator, result: Memory, number: int) -> None:
    """Write what a run needs to go on behind token ``number``."""
    reference.carry()
    parts = dict(zip(PARTS, reference.rolled.parts(), strict=True))
    tensors = parts | {"conv_state": a.conv_state, "state": a.state, "generator": g.get_state()}
    progress.write(kept, tensors, {"number": number, "scores": result.scores})


def _resumed(kept: Path, a: Any, reference: _Reference, g: torch.Generator, result: Memory) -> int:
    """Take up a run; the token that it was at, 0 where nothing was kept."""
    if not kept.exists():
        return 0
    tensors, facts = progress.read(kept)
    for name, part in zip(PARTS, reference.rolled.parts(), strict=True):
        part.copy_(tensors[name])
    a.conv_state.copy_(tensors["conv_state"])
    a.state.copy_(tensors["state"])
    g.set_state(tensors["generator"])
    result.scores = [(int(n), value, limit) for n, value, limit in facts["scores"]]
    return int(facts["number"])


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


PARTS = ("mean", "variance", "jump_variance", "jump")


class _Reference:
    """The reference's own state, and the noise it carries. ``waiting``: projections, history and state that
    tokens found whose noise has not been carried yet."""

    def __init__(self, contract: Contract, profile: str, rolled: Rolled) -> None:
        self.contract, self.rolled = contract, rolled
        self.profile = contract.profiles[profile].on(rolled.mean.device.type)
        self.noise = Noise(self.profile)
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []

    def advance(self, a: Any) -> None:
        """One token from the same inputs."""
        self.like, self.slots = a, initial_slots(a)
        mean = self.rolled.mean
        self.waiting.append((a.projected.clone(), a.conv_state[self.slots], mean[self.slots]))
        value = self.contract.reference(Rounded(self.profile), replace(a, state=mean))["state"]
        mean[self.slots] = value.mean[:, 0]
        if len(self.waiting) == TOGETHER:
            self.carry()

    def carry(self) -> None:
        """Predict the noise of the tokens that wait, and carry it token after token."""
        if not self.waiting:
            return
        requests = len(self.slots)
        projected, history, state = (torch.cat(part) for part in zip(*self.waiting, strict=True))
        numbers = torch.arange(1, len(projected) + 1, dtype=torch.int32, device=projected.device)
        many = replace(
            self.like, projected=projected, slots=numbers[:, None], accepted=torch.ones_like(numbers),
            conv_state=torch.cat([history[:1], history]), state=torch.cat([state[:1], state]),  # 0: nobody's
            out=self.like.out.new_empty(len(projected), self.like.out.shape[1]),
        )  # fmt: skip
        value = self.contract.reference(self.noise, many)["state"]
        found = [None if part is None else part.expand(value.shape) for part in value.parts()]
        for first in range(0, len(projected), requests):
            own = [None if part is None else part[first : first + requests] for part in found]
            one = Value(self.noise, value.mean[first : first + requests], own[0], own[1], own[2])
            total = carried(one, self.rolled, self.slots)
            for part, new in zip(self.rolled.parts()[1:], total.parts(), strict=True):
                assert new is not None
                part[self.slots] = new[:, 0]
        self.waiting = []

    def judged(self, operation: Operation, clean: Any, outcome: Any, share: float) -> Judged:
        """The executor's state against this one: excess and what is not finite."""
        self.carry()
        mean, variance, jump_variance, jump = (part[self.slots][:, None] for part in self.rolled.parts())
        total = Value(self.noise, mean, variance, jump_variance, jump)
        output = next(o for o in self.contract.outputs if o.name == "state")
        found = assess(self.contract, output, output.view(outcome), {"state": total}, share)
        kept = [("state", s) for s in found if s.name in ("excess", "nonfinite")]
        return Judged(operation, kept, clean, outcome)
