"""Whole decode steps are walked again: a backend that repeats itself passes, one that does not is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from validation import providers
from validation.step import executor
from validation.step.executor import Executor, fastest
from validation.stress.repeats import repeated

STEPS = 4


@pytest.fixture(autouse=True)
def _loaded() -> None:
    providers.load(["torch"], [], "cpu")


def test_a_backend_that_repeats_itself_is_bit_equal_and_a_flipped_bit_is_noticed() -> None:
    found = repeated("torch", STEPS, 3)
    assert found.parted == []
    assert found.noticed
    assert (found.backend, found.device, found.steps) == ("torch", "cpu", STEPS)
    assert found.walks == ("run again", "under load")


def test_a_backend_that_adds_in_another_order_the_second_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One bit of one operation's result differs, from the second walk's second step on."""
    walks = [0]

    def unlike(name: str, device: str) -> Executor:
        honest, calls = fastest(name, device), [0]
        walks[0] += 1
        number = walks[0]

        def run(operation: Any, a: Any) -> None:
            honest.run(operation, a)
            calls[0] += operation.op == "logits"
            if operation.op == "logits" and number == 2 and calls[0] == 2:
                a.out[(0,) * a.out.dim()] += 1

        return replace(honest, run=run)

    monkeypatch.setattr(executor, "fastest", unlike)
    found = repeated("torch", STEPS, 3)
    assert found.parted == ["hashes: torch run again parts from its first run at step 1"]


def test_whole_steps_are_walked_as_the_backend_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [0]

    class Whole(Executor):
        def step(self, program: Any, binding: Any) -> None:
            steps[0] += 1
            super().step(program, binding)

    honest = executor.provider("torch")
    whole = Whole(honest.name, honest.profile, honest.run)
    monkeypatch.setitem(executor.WHOLE, "torch", lambda device: whole)
    repeated("torch", STEPS, 3)
    assert steps[0] == 4 * STEPS
