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
    operands
    and not those of the whole layer."""
    return cache(build)


@dataclass(frozen=True)
class Step:
    """One operation on operands of its own. ``moved()``: bytes that it must move; ``side``: it may run beside
    the steps
    that follow, up to the next step with ``join``."""

    name: str
    call: Callable[[], object]
    moved: Callable[[], int]
    uses: str
    side: bool = False
    join: bool = False


class Layer:
    """Steps run in order; those marked ``side`` on a stream of their own, which ``join`` waits for."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self._side = torch.cuda.Stream()

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        forked = False
        for step in self.steps:
            if step.side:
                self._side.wait_stream(main)
                with torch.cuda.stream(self._side):
                    step.call()
                forked = True
                continue
            if step.join and forked:
                main.wait_stream(self._side)
                forked = False
            step.call()
        if forked:
            main.wait_stream(self._side)
