"""Busy neighbours: other work on the processors that the exchanges use.

On a GPU, matrix products on another stream take multiprocessors and memory bandwidth while the exchanges
run; on a CPU a thread of this process does.

What this catches: nothing by itself. What it cannot do: take a multiprocessor away for good.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

SIDE, PRODUCTS = 2048, 1000  # on a GPU: some 30 us each
CPU_SIDE, SHARE = 192, 0.1  # on a CPU: of the time


class Neighbours:
    """Work beside the exchanges of one rank. Kept as a class for its stream and matrices."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = None
        self.x: Tensor | None = None

    @contextlib.contextmanager
    def while_(self, busy: bool) -> Iterator[None]:
        """Neighbours during the block, if they are to be busy."""
        if not busy:
            yield
        elif self.device.type == "cuda":
            self._products()
            yield
        else:
            yield from self._thread()

    def _products(self) -> None:
        if self.x is None:
            self.stream = torch.cuda.Stream(self.device)
            self.x = torch.randn(SIDE, SIDE, device=self.device).bfloat16()
        with torch.cuda.stream(self.stream):
            for _ in range(PRODUCTS):
                torch.mm(self.x, self.x)

    def _thread(self) -> Iterator[None]:
        ended = threading.Event()

        def burn() -> None:
            x, rest = torch.ones(CPU_SIDE, CPU_SIDE), random.Random(0)
            while not ended.is_set():
                began = time.monotonic()
                torch.mm(x, x)
                ended.wait((time.monotonic() - began) * (1 / SHARE - 1) * 2 * rest.random())

        thread = threading.Thread(target=burn, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
