"""Recurrent state rolled out by the reference from the executor's own inputs: what adds up in a layer.

The reference keeps a state of its own in float64, advanced by the projections that the executor computed, so
nothing but the recurrence can part. Its predicted noise is carried along: a step multiplies the state by
decays of at most 1 and takes away a projection, so carried variance does not grow; it is taken as the largest
along the key axis. Half-lives of 1e5 tokens are seen as they are.

Catches: drift, wiped or crossed state and states kept in a lower precision, within a step or a few; long
memory that single steps cannot show. Cannot catch: wrong inputs of the recurrence (``local``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from validation.contracts import contract_named
from validation.contracts.kda import initial_slots, live_writes
from validation.judge import assess
from validation.numerics.arithmetic import Noise
from validation.numerics.scores import Statistic
from validation.numerics.value import Value
from validation.step.local import Judged
from validation.subjects.kimi_k3.operation import Operation


@dataclass
class Rolled:
    """The reference's state of one layer on one rank [slot, head, v, k] float64, and the noise it carries."""

    mean: Tensor
    variance: Tensor
    jump_variance: Tensor
    jump: Tensor

    @classmethod
    def of(cls, state: Tensor) -> Rolled:
        """The executor's own state, taken as it is: from here on both go their ways."""
        return cls(state.double(), *(torch.zeros_like(state, dtype=torch.float64) for _ in range(3)))

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.mean, self.variance, self.jump_variance, self.jump


@dataclass
class Rollout:
    """By (layer, rank). ``share``: of the false-alarm budget, for each operation."""

    profile: str
    share: float
    states: dict[tuple[int, int], Rolled] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)

    def reset(self, slots: list[int]) -> None:
        """New tenants start from zero."""
        for rolled in self.states.values():
            for part in rolled.parts():
                part[slots] = 0

    def forget(self) -> None:
        """Steps went by that were not judged: start again from the executor's state."""
        self.states = {}

    def move(self, old: list[int], new: list[int]) -> None:
        """A request's state was saved and comes back on other slots."""
        for rolled in self.states.values():
            for part in rolled.parts():
                part[new] = part[old].clone()

    def judged(self, operation: Operation, clean: Any, outcome: Any) -> Judged | None:
        """Advance the reference by one operation of the executor; its state judged against the executor's.
        None for operations that keep no recurrent state."""
        if operation.op not in ("kda_decode", "kda_verify"):
            return None
        contract = contract_named(operation.op)
        key = operation.layer, operation.rank
        rolled = self.states.setdefault(key, Rolled.of(clean.state))
        a = replace(clean, state=rolled.mean)
        value = contract.reference(Noise(contract.profiles[self.profile]), a)["state"]
        total = carried(value, rolled, initial_slots(a).clamp(min=0))
        output = next(o for o in contract.outputs if o.name == "state")
        # Errors carried from step to step are no longer independent: excess alone is judged.
        observed = output.view(outcome)
        found = [
            s
            for s in assess(contract, output, observed, {"state": total}, self.share)
            if s.name in ("excess", "nonfinite")
        ]
        self._keep(rolled, a, total)
        self._largest(found)
        return Judged(operation, [("state", s) for s in found], clean, outcome)

    def _keep(self, rolled: Rolled, a: Any, total: Value) -> None:
        writes = live_writes(a)
        slots = a.slots[writes].long()
        values = (total.mean, *total.parts())
        for part, new in zip(rolled.parts(), values, strict=True):
            if new is not None:
                part[slots] = new[writes]

    def _largest(self, found: list[Statistic]) -> None:
        for s in found:
            self.largest[s.name] = max(self.largest.get(s.name, 0.0), s.value)


def carried(value: Value, rolled: Rolled, slots: Tensor) -> Value:
    """The prediction of a step with the noise that its initial state carried."""

    def of_initial(part: Tensor) -> Tensor:
        return part[slots].amax(-1, keepdim=True)[:, None].expand(value.shape)

    def own(part: Tensor | None) -> Tensor:
        return torch.zeros_like(value.mean) if part is None else part.expand(value.shape)

    variance, jump_variance, jump = value.parts()
    return Value(
        value.ar,
        value.mean,
        own(variance) + of_initial(rolled.variance),
        own(jump_variance) + of_initial(rolled.jump_variance),
        torch.maximum(own(jump), of_initial(rolled.jump)),
    )
