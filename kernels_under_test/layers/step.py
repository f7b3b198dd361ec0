"""A layer as a list of steps, some of them on a side stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def once(build: Callable[[], T]) -> Callable[[], T]:
    """``build`` when it is first asked for, then what it gave: a step that is timed alone draws its own
    operands and not those of the whole layer."""
    return cache(build)


@dataclass(frozen=True)
class Step:
    """One operation on operands of its own. ``moved()``: bytes that it must move. ``stream``: ``main``, or
    the name of a side stream, on which it may run beside the steps that follow, up to the next with that
    ``join``."""

    name: str
    call: Callable[[], object]
    moved: Callable[[], int]
    uses: str
    stream: str = "main"
    join: str = ""


class Layer:
    """Steps run in order; those of a side stream beside the others, until one joins it or the layer ends."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self._sides = {step.stream: torch.cuda.Stream() for step in self.steps if step.stream != "main"}

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        forked: set[str] = set()
        for step in self.steps:
            if step.stream != "main":
                side = self._sides[step.stream]
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    step.call()
                forked.add(step.stream)
                continue
            if step.join in forked:
                main.wait_stream(self._sides[step.join])
                forked.remove(step.join)
            step.call()
        for name in sorted(forked):
            main.wait_stream(self._sides[name])
