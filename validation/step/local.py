"""Judge every operation of a running step on its own arguments: the re-synchronised comparison.

Each operation's reference starts from what the executor itself left, so the first operation that is wrong is
the one that is named, and errors of those before it do not count against it. Catches: whatever the contract
of an operation shows at this place of this step, memory that it does not own, and inputs it changed. Cannot
catch: what happens between operations (``continuity``), and errors that stay within the noise of every single
operation and add up (``free_running``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from validation.contracts import contract_named
from validation.contracts.contract import Contract, tensor_specs
from validation.dispatch.launches import recorded
from validation.judge import assess, observe, predict
from validation.numerics.scores import Statistic
from validation.report.schema import SUMS, ratio
from validation.step.executor import Executor
from validation.subjects.kimi_k3.operation import Binding, Operation, Program
from validation.subjects.kimi_k3.state import raw


@dataclass
class Judged:
    """One operation of one step: its statistics by output, the arguments as they were before, the outcome and
    what was predicted (for planting faults and for a capture)."""

    operation: Operation
    statistics: list[tuple[str, Statistic]]
    clean: Any
    outcome: Any
    predicted: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(statistic.failed for _, statistic in self.statistics)

    def worst(self) -> tuple[str, Statistic]:
        """The statistic that says most: one that failed, names elements and is no sum over many, else the
        largest ratio."""

        def telling(pair: tuple[str, Statistic]) -> tuple[bool, bool, bool, float]:
            s = pair[1]
            return s.failed, s.where is not None, s.name not in SUMS, ratio(*s.surplus)

        return max(self.statistics, key=telling)


def judged_step(
    program: Program,
    binding: Binding,
    executor: Executor,
    share: float,
    seen: Callable[[Judged], None] = lambda judged: None,
    stop: bool = False,
) -> list[Judged]:
    """Run a step, judging every operation; returns those that failed. ``share``: of the false-alarm budget,
    for each operation. ``stop``: end at the first failure (the step is then incomplete)."""
    failed = []
    for operation in program:
        judged = judged_operation(operation, operation.arguments(binding), executor, share)
        seen(judged)
        if judged.failed:
            failed.append(judged)
            if stop:
                break
    return failed


def judged_operation(operation: Operation, a: Any, executor: Executor, share: float) -> Judged:
    """Run one operation in place and compare it with its contract."""
    clean = snapshot(a)
    with recorded() as launched:
        executor.run(operation, a)
    judged = compared(operation, clean, a, executor.profile, share)
    if operation.op in executor.launching:
        silent = "no kernel was launched: a fallback ran" if not launched else ""
        judged.statistics.append(("", Statistic("dispatch", float(not launched), 0.0, silent)))
    if judged.failed:
        judged.outcome = snapshot(a)  # its buffers are written again by the operations that follow
    return judged


def compared(operation: Operation, clean: Any, outcome: Any, profile: str, share: float) -> Judged:
    """The judgement of an operation that took ``clean`` to ``outcome``."""
    contract = contract_named(operation.op)
    observed = observe(contract, outcome)
    device = next(iter(observed.values())).device.type
    predicted = predict(contract, profile, device, "profile", contract.adopt(clean, outcome))
    statistics = []
    for output in contract.outputs:
        if output.name in predicted:
            found = assess(contract, output, observed[output.name], predicted, share)
            statistics += [(output.name, statistic) for statistic in found]
    statistics += memory(contract, clean, outcome)
    return Judged(operation, statistics, clean, outcome, predicted)


def snapshot(a: Any) -> Any:
    """A copy of the arguments that the operation will not touch."""
    given = {name: getattr(a, name) for name in tensor_specs(a)}
    return dataclasses.replace(a, **{n: t.clone() for n, t in given.items() if t is not None})


def memory(contract: Contract, clean: Any, outcome: Any) -> list[tuple[str, Statistic]]:
    """Bytes changed outside what the operation may touch: inputs, and parts of state that it does not own."""
    touched = contract.touched(clean)
    found = []
    for name, spec in tensor_specs(clean).items():
        before, after = getattr(clean, name), getattr(outcome, name)
        if before is None or spec.access == "write":
            continue
        changed = differing(before, after)
        kind = "input_changed"
        if spec.access == "update":
            changed, kind = changed & ~touched[name].to(changed.device), "untouched_changed"
        count = int(changed.sum())
        where = changed if count else None
        found.append(
            (name, Statistic(kind, float(count), 0.0, f"{count} elements changed" * bool(count), where))
        )
    return found


def differing(before: Tensor, after: Tensor) -> Tensor:
    """Elements whose bytes differ. bool, of their shape"""
    size = before.element_size()
    changed = raw(before) != raw(after)
    return changed.reshape(*before.shape, size).any(-1) if size > 1 else changed.reshape(before.shape)


MEMORY = ("input_changed", "untouched_changed")


def axes_of(contract: Contract, name: str, statistic: str) -> tuple[str, ...]:
    """Axis words of an output, or of a field whose memory was checked."""
    if statistic in MEMORY:
        return tensor_specs(contract.arguments)[name].axes
    return next(output.axes for output in contract.outputs if output.name == name)


def first_element(mask: Tensor, axes: tuple[str, ...]) -> str:
    """The first marked element in words."""
    place = torch.nonzero(mask)[0].tolist()
    return ", ".join(f"{axis} {index}" for axis, index in zip(axes, place, strict=False))
