"""The same step twice from the same state: as the executor runs whole steps, and operation by operation.

Both run the same kernels on the same numbers, so every byte of state and scratch must be equal. Catches: a
number baked in at capture, metadata that is not restaged, a missing wait for a side stream, memory of a graph
that is used twice, a padding row that writes into live state. Cannot catch: what both ways do wrong alike
(``local``); a race that this run did not lose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from validation.step.divergence import Divergence, of_check
from validation.step.executor import Executor, eagerly
from validation.step.local import first_element
from validation.step.watch import bits
from validation.subjects.kimi_k3.operation import Binding, Program
from validation.subjects.kimi_k3.state import State

AXES = {"conv": "rank slot channel column", "recurrent": "rank slot head v k", "kv": "rank page place byte"}


@dataclass
class Left:
    """What a step left: its state, and its scratch by name."""

    state: State
    scratch: dict[str, Tensor]

    @classmethod
    def by(cls, run: Callable[[], None], b: Binding, before: State) -> Left:
        """Run from ``before`` with poisoned scratch; copies of all it leaves."""
        b.state.copy_(before)
        b.scratch.poison()
        run()
        return cls(b.state.clone(), {name: t.clone() for name, t in b.scratch.tensors().items()})


def twice(step: int, program: Program, b: Binding, executor: Executor) -> list[Divergence]:
    """One step of ``executor`` in both ways; the state is left as its own way left it. Empty if all bytes
    agree."""
    before = b.state.clone()
    separately = Left.by(lambda: eagerly(executor, program, b), b, before)
    whole = Left.by(lambda: executor.step(program, b), b, before)
    return parted(step, separately, whole)


def parted(step: int, right: Left, mine: Left) -> list[Divergence]:
    """The first layer's state that differs, and then the first of the scratch tensors that does."""
    for (kind, layer, a), (_, _, b) in zip(right.state.buffers(), mine.state.buffers(), strict=True):
        if found := _differing(step, kind, layer, a, b, tuple(AXES[kind].split())):
            return [found]
    for name, tensor in right.scratch.items():
        axes = ("rank", "row", "column", "") if tensor.dim() > 2 else ("row", "column")
        if found := _differing(step, name, -1, tensor, mine.scratch[name], axes):
            return [found]
    return []


def _differing(
    step: int, what: str, layer: int, right: Tensor, mine: Tensor, axes: tuple[str, ...]
) -> Divergence | None:
    changed = bits(right) != bits(mine)
    if not bool(changed.any()):
        return None
    count, place = int(changed.sum()), first_element(changed, axes)
    message = f"{count} elements of {what} are not those of the same operations run one by one"
    return of_check(step, "replay", what, message, count=count, layer=layer, where=place)


def first_operation(
    program: Program, b: Binding, executor: Executor, before: State
) -> tuple[int, Divergence] | None:
    """Bisection over the operations in the order of issue: how many are run when the two ways first part, and
    how. None if whole steps agree."""
    order = executor.order(program)

    def look(count: int) -> list[Divergence]:
        right = Left.by(lambda: eagerly(executor, order[:count], b), b, before)
        mine = Left.by(lambda: executor.upto(program, b, count), b, before)
        return parted(0, right, mine)

    low, high, last = 0, len(order), look(len(order))
    if not last:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = look(middle)
        low, high = (low, middle) if found else (middle, high)
        last = found or last
    torch.cuda.synchronize() if b.batch.ids.is_cuda else None
    return high, last[0]
