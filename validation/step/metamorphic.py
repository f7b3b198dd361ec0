"""Equal in every bit: the same walk on other slots and pages.

Which slot and page a request has must not matter. Catches: a slot used as an index of something else, offsets
that depend on neighbours, state read from a place nobody owns. Cannot catch: what is wrong in the same way
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from validation.step.divergence import Divergence, of_check
from validation.step.walk import Walk


def logits_of(walk: Walk, scenario: Callable[[Walk], None]) -> list[Tensor]:
    """Logits of every step of a walk."""
    found: list[Tensor] = []
    inner = walk.step

    def step(*given: object, **more: object) -> Tensor:
        found.append(inner(*given, **more))  # type: ignore[arg-type]
        return found[-1]

    walk.step = step  # type: ignore[method-assign]
    scenario(walk)
    return found


def renumbered(make: Callable[[int], Walk], scenario: Callable[[Walk], None]) -> list[Divergence]:
    """Walk twice with slots and pages numbered by two seeds (``make(numbering)``): the logits must be
    equal."""
    runs = [logits_of(make(numbering), scenario) for numbering in (0, 1)]
    found = []
    for step, (one, other) in enumerate(zip(*runs, strict=True)):
        wrong = (one != other) & ~(one.isnan() & other.isnan())
        if bool(wrong.any()):
            place = torch.nonzero(wrong)[0].tolist()
            message = f"{int(wrong.sum())} logits depend on the numbers of slots and pages"
            found.append(
                of_check(
                    step, "renumbered", "logits", message, count=int(wrong.sum()), where=f"row {place[0]}"
                )
            )
    return found
