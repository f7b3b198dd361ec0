"""An engine whose steps are prepared batches, captured and replayed as on a GPU, over plain functions.

A capture here remembers the calls; before it the step runs twice, as warm-ups do, mailboxes included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels_under_test.executor import schedule, specialised
from validation.step import executor
from validation.stress.decode import engine


class Graphs(specialised.SpecialisedExecutor):
    """Captures on a CPU."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.on_gpu, self.streams = True, schedule.Streams()

    def _captured(self, run: Callable[[], None]) -> Callable[[], None]:
        for _ in range(specialised.WARM_UPS):
            run()
        return run


def fastest(name: str, device: str = "cpu") -> executor.Executor:
    one = executor.provider(name)
    return specialised.Whole(f"{name}, in graphs", one.profile, one.run)


executor.fastest = fastest
specialised.SpecialisedExecutor = Graphs  # type: ignore[misc]


class Engine(engine.Engine):
    """``validation.stress.decode.engine`` with those executors."""
