"""The executor itself: built once, batches prepared on first use, replayed with new slots and lengths.

A prepared batch owns staged metadata at fixed addresses and the bound arguments of every operation, as a CUDA
graph does; ``replay`` restages in place and runs them again. What is not served falls back to the vanilla
forward on the same state.

What it cannot show: launches that overlap, side streams and prefetch (a GPU's business).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_under_test.executor.plan import plan
from validation.step.executor import Executor, vanilla
from validation.subjects.kimi_k3.batch import Batch
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding, Operation
from validation.subjects.kimi_k3.program import program
from validation.subjects.kimi_k3.state import Scratch, State
from validation.subjects.kimi_k3.steps import StepKind
from validation.subjects.kimi_k3.weights import Weights


@dataclass
class Captured:
    """One prepared batch: metadata at fixed addresses, and the operations bound to it."""

    batch: Batch
    calls: list[tuple[Operation, Any]]


class SpecialisedExecutor:
    """Whole steps over a provider's kernels. ``log`` says of every step whether it was served."""

    def __init__(self, config: Config, weights: Weights, state: State, kernels: Executor) -> None:
        self.config, self.weights, self.state = config, weights, state
        self.kernels, self.stock = kernels, vanilla(kernels.profile)
        self.scratch = Scratch(config)
        self.captured: dict[tuple[int, int], Captured] = {}
        self.log: list[str] = []

    def step(self, batch: Batch, kind: StepKind) -> None:
        """One step: replayed where ``plan`` serves it, else by the vanilla forward; logits and auxiliary rows
        are left in ``scratch``."""
        q = plan(kind)
        if q is None or q != batch.tokens or kind.rows != batch.rows:
            self.log.append("fallback")
            steps = program(self.config, batch.tokens)
            self.stock.step(steps, Binding(self.config, self.weights, self.state, self.scratch, batch))
            return
        self.log.append("specialised")
        key = batch.rows, q
        if key not in self.captured:
            self.captured[key] = self._capture(batch)
        self.captured[key].batch.copy_(batch)
        for operation, arguments in self.captured[key].calls:
            self.kernels.run(operation, arguments)

    def _capture(self, batch: Batch) -> Captured:
        """Bind every operation to metadata at addresses that stay."""
        own = batch.clone()
        binding = Binding(self.config, self.weights, self.state, self.scratch, own)
        calls = [
            (operation, operation.arguments(binding)) for operation in program(self.config, batch.tokens)
        ]
        return Captured(own, calls)
