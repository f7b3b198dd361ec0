"""A prompt, or a chunk of one, in one pass: every operation takes all its tokens at once, as rows of one
request.

Keys of all tokens are stored before any of them attends, and each sees those up to its own; the recurrence
runs token after token within its layer. Catches: nothing by itself. Cannot represent: kernels that compute
the recurrence of a chunk in closed form (an executor may replace the calls of a layer by one; it is judged
by the state and the rows that they leave).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from validation.errors import UserError
from validation.subjects.kimi_k3.batch import Batch, batch_of
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding, Operation, Program
from validation.subjects.kimi_k3.program import program
from validation.subjects.kimi_k3.requests import Request


def prompt_batch(config: Config, request: Request, ids: list[int], capacity: int = 0) -> Batch:
    """The next tokens of a request's prompt as rows: row t has one key more than row t - 1, in the same
    pages. UserError where the state is not in the first slot (behind a verify step)."""
    if request.accepted != 1:
        raise UserError(
            f"a prompt goes on from the first slot; this request's state is in {request.accepted}"
        )
    rows = [replace(request, length=request.length + t) for t in range(len(ids))]
    return batch_of(config, rows, [[token] for token in ids], capacity=capacity)


def prompt_program(config: Config, rows: int) -> Program:
    """The plain step, with one call of the recurrence for each row."""
    found: Program = []
    for operation in program(config):
        if operation.op == "kda_decode":
            o = operation
            found += [Operation(o.op, o.layer, o.rank, _of_row(o, row)) for row in range(rows)]
        else:
            found.append(operation)
    return found


def _of_row(operation: Operation, row: int) -> Callable[[Binding], Any]:
    one = slice(row, row + 1)

    def arguments(b: Binding) -> Any:
        a = operation.arguments(b)
        parts = {name: getattr(a, name)[one] for name in ("projected", "slots", "accepted", "out")}
        return replace(a, **parts)

    return arguments
