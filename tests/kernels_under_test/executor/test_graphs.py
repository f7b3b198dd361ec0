"""What a graph needs around it, without a GPU: memory that it knows by address alone is kept, capture is
preceded by warm-ups that write nothing live, and replays restage in place."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels_under_test.executor.schedule import Streams
from kernels_under_test.executor.specialised import Design, SpecialisedExecutor
from validation.step.executor import provider
from validation.step.walk import forced
from validation.subjects.kimi_k3.batch import STAGED, batch_of
from validation.subjects.kimi_k3.operation import Binding
from validation.subjects.kimi_k3.steps import plain

sys.path.append(str(Path(__file__).parents[2] / "validation" / "walks"))
from step_case import Case, small


class _Table:
    """Stands for a tensor that only a bound call holds."""


TABLES: list[weakref.ref[_Table]] = []
WARMED: list[str] = []


def _fetch(binding: Binding, layer: int) -> Callable[[], None]:
    table = _Table()
    TABLES.append(weakref.ref(table))
    return lambda: WARMED.append(repr(table))


def _graph(self: SpecialisedExecutor, run: Callable[[], None]) -> Callable[[], None]:
    """A graph that was captured behind one warm-up, and holds nothing."""
    run()
    return lambda: None


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> tuple[Case, SpecialisedExecutor]:
    TABLES.clear(), WARMED.clear()
    monkeypatch.setattr(SpecialisedExecutor, "_captured", _graph)
    case = Case(small(), requests=2)
    (ids,) = forced(case.config, 2, 1)
    like = case.binding(batch_of(case.config, case.requests, ids))
    made = SpecialisedExecutor(like, provider("inductor"), Design(fetch=_fetch))
    made.on_gpu, made.streams = True, Streams()
    return case, made


def test_what_only_bound_calls_hold_outlives_the_capture(executor: tuple[Case, SpecialisedExecutor]) -> None:
    case, made = executor
    (ids,) = forced(case.config, 2, 1)
    made.step(batch_of(case.config, case.requests, ids), plain("", 2))
    gc.collect()
    assert len(TABLES) == len(WARMED) == case.config.layers - 1
    assert all(table() is not None for table in TABLES)
    made.prepared.clear()
    gc.collect()
    assert all(table() is None for table in TABLES), "or the test would prove nothing"


def test_warm_ups_write_nothing_that_lives(executor: tuple[Case, SpecialisedExecutor]) -> None:
    case, made = executor
    before = case.state.digest()
    batch = batch_of(case.config, case.requests, forced(case.config, 2, 1)[0])
    made.step(batch, plain("", 2))
    assert case.state.digest() == before
    (one,) = made.prepared.values()
    for name in STAGED:
        assert torch.equal(getattr(one.batch, name), getattr(batch, name)), name
        assert getattr(one.batch, name).data_ptr() != getattr(batch, name).data_ptr()
    assert made.like.scratch.hidden.isnan().all(), "what the warm-ups left is poisoned"
