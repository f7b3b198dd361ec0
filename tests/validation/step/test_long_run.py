"""Windows of a long run: a right executor passes, wiped and drifting state is found in its first window."""

from __future__ import annotations

import functools

import pytest
from step_case import small

from validation.step import long_run as module
from validation.step.executor import Executor, provider
from validation.step.faults import step_faults
from validation.step.long_run import LongRun, compare, long_run
from validation.step.walk import Hooks
from validation.subjects.kimi_k3.weights import random_weights


@functools.cache
def _weights():  # type: ignore[no-untyped-def]
    return random_weights(small(), 5)


def _run(executor: Executor, steps: int, hooks: Hooks | None = None) -> LongRun:
    return long_run(small(), _weights(), executor, provider("torch"), steps, 5e-5, seed=5, hooks=hooks)


_KEPT: dict[str, dict[str, float]] = {}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of eight steps, new requests every other window, few variants, run once for all tests."""
    measured = module._limits
    for name, value in (("WINDOW", 8), ("RENEWED", 2), ("PAIRS", 12), ("SEEN", 2)):
        monkeypatch.setattr(module, name, value)

    def once(walk, *more):  # type: ignore[no-untyped-def]
        if walk.executor.profile not in _KEPT:
            _KEPT[walk.executor.profile] = measured(walk, *more)
        return _KEPT[walk.executor.profile]

    monkeypatch.setattr(module, "_limits", once)


def test_another_backend_passes_over_windows_and_tenants() -> None:
    run = _run(provider("inductor"), 28)
    assert run.found == []
    assert (run.steps, run.windows) == (28, 4)
    assert 0 < max(run.largest.values()) < 1


def test_wiped_state_is_found_by_its_distances_and_at_its_step() -> None:
    fault = next(f for f in step_faults() if f.name == "state_wiped_at_step_5")
    run = _run(provider("torch"), 8, fault.hooks())
    assert "long_run" in {d.op for d in run.found}
    assert [d.step for d in run.found if d.op == "continuity"] == [5]
    assert run.largest["KL divergence"] > 1


def test_a_distance_beyond_its_limit_is_a_finding() -> None:
    result = LongRun()
    compare(
        result,
        {"recurrent of layer 2": 2.0, "KL divergence": 0.5},
        {"recurrent of layer 2": 1.0, "KL divergence": 1.0},
        9,
    )
    (found,) = result.found
    assert (found.step, found.layer, found.output) == (9, 2, "recurrent")
