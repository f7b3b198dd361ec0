"""What a graph needs around it, without a GPU: memory that it knows by address alone is kept, capture is
preceded by warm-ups that write nothing live, and replays restage in place."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from kernels_under_test.executor.schedule import CudaStreams, Streams
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


class _Stream:
    """Stands for a stream of the device: notes whom it waits for."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.waits: list[_Stream] = []

    def wait_stream(self, other: _Stream) -> None:
        self.waits.append(other)


def test_a_side_stream_is_made_once_and_joined_where_it_was_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has 32 streams and hands them out in turn: those made in vain would come round to the stream
    that captures, and work beside it would then be in it."""
    monkeypatch.setattr(_Stream, "made", 0)
    main, entered = _Stream(), []
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda side: nullcontext(entered.append(side)))
    streams, ran = CudaStreams(), []
    for turn in range(3):
        streams.fork("shared", lambda: ran.append("shared"))
        streams.fork("fetch", lambda: ran.append("fetch"))
        streams.join("shared")
        streams.join("shared")
        assert main.waits == [entered[0]] * (turn + 1)
    assert _Stream.made == 3, "main, shared, fetch"
    assert entered == [streams.sides["shared"], streams.sides["fetch"]] * 3
    assert all(side.waits == [main] * 3 for side in streams.sides.values())
    assert ran == ["shared", "fetch"] * 3
