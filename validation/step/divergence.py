"""One place where a step is wrong: step, layer, operation, output, element.

Catches: nothing by itself. Cannot say: why; the capture of the operation lets that be looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from validation.contracts import contract_named
from validation.report.where import describe
from validation.step.local import Judged, axes_of, first_element


@dataclass(frozen=True)
class Divergence:
    """``op`` is a contract's name, or a check of the step (``continuity``, ``staging``, ``admission``,
    ``ranks``, ``finite``, ``free_running``, ``dispatch``). ``element`` is the first wrong one in words,
    ``where`` how the wrong ones are distributed."""

    step: int
    layer: int
    op: str
    rank: int
    output: str
    statistic: str
    value: float
    limit: float
    element: str
    where: str
    message: str

    def words(self) -> str:
        """``step 5, layer 3, kda_decode, rank 1: state``"""
        parts = [f"step {self.step}"]
        parts += [f"layer {self.layer}"] if self.layer >= 0 else []
        parts += [self.op] + ([f"rank {self.rank}"] if self.rank >= 0 else [])
        return f"{', '.join(parts)}: {self.output} {self.statistic}"


def of_operation(step: int, judged: Judged) -> Divergence:
    """What the judgement of an operation found worst."""
    output, statistic = judged.worst()
    operation = judged.operation
    contract = contract_named(operation.op)
    element, where = "", ""
    if statistic.where is not None:
        axes = axes_of(contract, output, statistic.name)
        mask = statistic.where
        element = first_element(mask, axes)
        where = describe(mask.cpu(), axes)
    value, limit = statistic.surplus
    return Divergence(
        step,
        operation.layer,
        operation.op,
        operation.rank,
        output,
        statistic.name,
        value,
        limit,
        element,
        where,
        statistic.detail,
    )


def of_check(
    step: int, check: str, output: str, message: str, *, count: int, layer: int = -1, where: str = ""
) -> Divergence:
    """A check of the step between operations; none is allowed."""
    return Divergence(step, layer, check, -1, output, "bits", float(count), 0.0, where, where, message)
