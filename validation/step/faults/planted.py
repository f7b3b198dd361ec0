"""What a planted fault is, and the ways of planting one.

Catches and cannot catch: nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from validation.step.executor import Executor
from validation.step.walk import Hooks, Walk
from validation.subjects.kimi_k3.batch import Batch
from validation.subjects.kimi_k3.operation import Operation

Change = Callable[[Operation, Any], Any]
KDA = "kda_verify"


@dataclass(frozen=True)
class Planted:
    """``blamed``: operation or check that the first divergence must name. ``scenario``: which walk shows it.
    ``executor(right)`` makes the faulty executor, ``hooks()`` the faulty engine."""

    kind: str
    name: str
    blamed: str
    scenario: str
    executor: Callable[[Executor], Executor] = lambda right: right
    hooks: Callable[[], Hooks] = Hooks


# -- faults of an executor ---------------------------------------------------------------------------------


def instead(op: str, change: Change, layer: int | None = None) -> Callable[[Executor], Executor]:
    """Run ``op`` (in one layer, or in all) on changed arguments that share the right ones' outputs."""

    def wrap(right: Executor) -> Executor:
        def run(operation: Operation, a: Any) -> None:
            here = operation.op == op and layer in (None, operation.layer)
            right.run(operation, change(operation, a) if here else a)

        return replace(right, run=run)

    return wrap


def afterwards(
    op: str, change: Callable[[Any], None], layer: int | None = None
) -> Callable[[Executor], Executor]:
    """Spoil the outcome of ``op``."""

    def wrap(right: Executor) -> Executor:
        def run(operation: Operation, a: Any) -> None:
            right.run(operation, a)
            if operation.op == op and layer in (None, operation.layer):
                change(a)

        return replace(right, run=run)

    return wrap


def frozen(op: str, name: str) -> Callable[[Executor], Executor]:
    """The field as it was when each operation first ran: a value baked in at capture."""

    def wrap(right: Executor) -> Executor:
        first: dict[tuple[str, tuple[int, ...]], Tensor] = {}

        def run(operation: Operation, a: Any) -> None:
            if operation.op == op:
                value = getattr(a, name)
                kept = first.setdefault((operation.name, tuple(value.shape)), value.clone())
                a = replace(a, **{name: kept})
            right.run(operation, a)

        return replace(right, run=run)

    return wrap


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    """The arguments with one field changed."""
    return lambda operation, a: replace(a, **{name: change(getattr(a, name))})


# -- faults of an engine -----------------------------------------------------------------------------------


def at_step(step: int, change: Callable[[Walk], None]) -> Hooks:
    """Something happens ahead of one step."""
    return Hooks(between=lambda walk: change(walk) if walk.number == step else None)


def staged(name: str, change: Callable[[Tensor], Tensor]) -> Hooks:
    """One part of what the step is told is wrong."""

    def stage(batch: Batch) -> Batch:
        told = batch.clone()
        setattr(told, name, change(getattr(told, name)))
        return told

    return Hooks(stage=stage)


def permuted(t: Tensor) -> Tensor:
    """Another order of the requests."""
    return t.flip(0)
