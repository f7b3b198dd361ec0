"""One operation of a step, and what its arguments are bound to.

Catches: nothing by itself. Cannot represent: concurrency; a program is the order in which results are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from validation.subjects.kimi_k3.batch import Batch
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.state import Scratch, State


@dataclass
class Binding:
    """The tensors of one step: what it reads, keeps and passes on."""

    config: Config
    weights: dict[str, Tensor]
    state: State
    scratch: Scratch
    batch: Batch

    def weight(self, layer: int, name: str) -> Tensor:
        return self.weights[f"layers.{layer}.{name}"]


@dataclass(frozen=True)
class Operation:
    """``op`` names the contract, ``arguments(binding)`` gives its dataclass of views. ``layer`` -1 is in
    front of the layers, ``config.layers`` behind them; ``rank`` -1: all ranks in one call."""

    op: str
    layer: int
    rank: int
    arguments: Callable[[Binding], Any]

    @property
    def name(self) -> str:
        """As reports name it: ``layer 3, kda_decode, rank 1``."""
        return f"layer {self.layer}, {self.op}" + (f", rank {self.rank}" if self.rank >= 0 else "")


Program = list[Operation]
