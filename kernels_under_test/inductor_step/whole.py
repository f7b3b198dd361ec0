"""A whole step as one call: on a CPU compiled by TorchInductor over the unrolled program, on a GPU the
uncompiled functions in a CUDA graph.

Prepared once for each shape of a batch; state, scratch and staged metadata are inputs, changed in place.
What it cannot show: which operation is wrong (the provider's functions, judged one by one, do).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from validation.step.executor import Executor
from validation.subjects.kimi_k3.operation import Binding, Program

# By default TorchInductor leaves out casts to BF16 between operations that it fuses, where the stock order
# rounds: that is another profile, and a long run tells it apart.
OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"emulate_precision_casts": True}


class Whole(Executor):
    """An executor whose steps are compiled whole; single operations run uncompiled."""

    def step(self, program: Program, binding: Binding) -> None:
        key = len(program), binding.batch.rows, binding.batch.tokens
        if key not in _COMPILED:
            _COMPILED[key] = torch.compile(_body(program), dynamic=False, options=OPTIONS)
        _COMPILED[key](binding)


_COMPILED: dict[tuple[int, int, int], Callable[[Binding], None]] = {}


def _body(program: Program) -> Callable[[Binding], None]:
    from kernels_under_test.inductor_step import OPERATIONS

    calls = [(OPERATIONS[operation.op], operation.arguments) for operation in program]

    def body(binding: Binding) -> None:
        for function, arguments in calls:
            function(arguments(binding))

    return body


def _run(operation: Any, a: Any) -> None:
    from kernels_under_test.inductor_step import OPERATIONS

    OPERATIONS[operation.op](a)


def whole(device: str) -> Executor:
    """The executor ``inductor, whole``, or ``stock, in graphs`` on a GPU, which serves any batch."""
    if device == "cpu":
        return Whole("inductor, whole", "stock", _run)
    from kernels_under_test.executor import schedule, specialised

    design = specialised.Design(arrange=schedule.in_order, serves=lambda kind: kind.tokens)
    return specialised.Whole("stock, in graphs", "stock", _run, design=design)
