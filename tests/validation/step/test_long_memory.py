"""The recurrence of one layer over many tokens: right cores pass, what is lost at any token is found."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from step_case import small

from validation.step import progress
from validation.step.executor import Executor, provider
from validation.step.long_memory import Memory, long_memory, spoiled
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.weights import random_weights


@functools.cache
def _weights():  # type: ignore[no-untyped-def]
    return random_weights(small())


def _run(executor: Executor, tokens: int) -> Memory:
    return long_memory(small(), _weights(), executor, tokens, 5e-5)


@pytest.mark.parametrize("name", ["torch", "inductor"])
def test_right_cores_pass(name: str) -> None:
    memory = _run(provider(name), 300)
    assert memory.found == []
    assert [tokens for tokens, _, _ in memory.scores] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert 0 < max(value / limit for _, value, limit in memory.scores) < 1


@pytest.mark.parametrize(("factor", "tokens"), [(1 - 1e-6, 8), (0.999, 2)])
def test_a_state_that_loses_a_little_is_found_at_once(factor: float, tokens: int) -> None:
    (found,) = _run(spoiled(provider("torch"), factor), tokens).found
    assert (found.op, found.layer, found.output) == ("long_memory", 1, "state")


def test_a_state_that_is_lost_once_is_found_at_the_next_comparison() -> None:
    right, calls = provider("torch"), [0]

    def run(operation: Operation, a: Any) -> None:
        right.run(operation, a)
        calls[0] += 1
        if calls[0] == 200:
            a.state[a.slots[0, 0]] = 0

    (found,) = _run(replace(right, run=run), 300).found
    assert found.step == 255


def test_a_rounding_that_flips_at_any_token_is_allowed_for() -> None:
    """At token 154 one does, four times as large as any that had been predicted before."""
    memory = long_memory(small(), _weights(), provider("torch"), 256, 5e-5, seed=4)
    assert memory.found == []
    assert memory.scores[-1][1] < memory.scores[-1][2] / 2


def test_a_run_that_is_cut_goes_on_to_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", -1.0)
    kept, seen = tmp_path / "long" / "run.safetensors", []

    def cut(number: int) -> None:
        if number == 45:
            raise KeyboardInterrupt

    whole = _run(provider("inductor"), 70)
    with pytest.raises(KeyboardInterrupt):
        long_memory(small(), _weights(), provider("inductor"), 70, 5e-5, kept=kept, advance=cut)
    again = long_memory(small(), _weights(), provider("inductor"), 70, 5e-5, kept=kept, advance=seen.append)
    assert seen[0] == 45, "the last token that was kept is 44"
    assert [n for n, _, _ in again.scores] == [n for n, _, _ in whole.scores]
    assert again.scores[-1][1] == pytest.approx(whole.scores[-1][1])
    assert not kept.exists()
