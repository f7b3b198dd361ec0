"""The recurrence of one layer over many tokens: right cores pass, what is lost at any token is found, and the
smallest errors that are said to be found are found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from step_case import small
from torch import Tensor

from validation.step import carried, progress
from validation.step.executor import Executor, provider
from validation.step.long_memory import FORGETFUL, FOUND_WITHIN, Memory, compared_at, long_memory
from validation.subjects.kimi_k3.config import scaled
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.weights import random_weights

SHARE = 5e-5


@functools.cache
def _weights(seed: int):  # type: ignore[no-untyped-def]
    return random_weights(small(), seed)


def _run(executor: Executor, tokens: int, seed: int = 0) -> Memory:
    return long_memory(small(), _weights(seed), executor, tokens, SHARE, seed=seed)


def _after(right: Executor, change: Callable[[Tensor, int], Tensor]) -> Executor:
    """The states of both requests, changed behind every call."""
    calls = [0]

    def run(operation: Operation, a: Any) -> None:
        right.run(operation, a)
        calls[0] += 1
        slots = a.slots[:, 0].long()
        a.state[slots] = change(a.state[slots].double(), calls[0]).float()

    return replace(right, run=run)


@functools.cache
def _right(name: str = "torch", seed: int = 0) -> Memory:
    return _run(provider(name), 300, seed)


@pytest.mark.parametrize(("name", "seed"), [("torch", 0), ("inductor", 1)])
def test_right_cores_pass(name: str, seed: int) -> None:
    memory = _right(name, seed)
    assert memory.found == []
    assert [tokens for tokens, _, _ in memory.scores] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert 0 < max(value / limit for _, value, limit in memory.scores) < 1


def test_it_does_not_grow_lenient() -> None:
    """Columns of short half-lives forget the noise of old tokens, and what the exponential may do at every
    token is all that a drift may hide behind."""
    early, late = (next(s for s in _right().sharp if s.tokens == n) for n in (16, 300))
    assert late.once < 4 * early.once < 4e-6
    assert late.drift < early.drift < 2e-7


def test_comparisons_are_at_powers() -> None:
    assert compared_at(300)[-3:] == [128, 256, 300]
    assert {1000, 10_000, 65_536, 100_000} <= set(compared_at(100_000))


@pytest.mark.parametrize("name", list(FORGETFUL))
def test_what_must_be_found_within_64_tokens(name: str) -> None:
    (found,) = _run(FORGETFUL[name](provider("torch")), FOUND_WITHIN).found
    assert (found.op, found.layer, found.output) == ("long_memory", 1, "state")
    assert found.step < FOUND_WITHIN == 64


@pytest.mark.parametrize("kind", ["once", "drift"])
def test_the_smallest_error_that_is_said_to_be_found_is_found(kind: str) -> None:
    """Twice as large it is found; a tenth of it is not."""
    tokens = 128
    right = provider("torch")
    sharp = next(s for s in _right().sharp if s.tokens == tokens)

    def changed(factor: float) -> Executor:
        if kind == "once":
            return _after(right, lambda state, token: state * (1 + factor * sharp.once * (token == tokens)))
        # FP32 has no such small steps: that of 64 tokens at once.
        return _after(right, lambda state, token: state * (1 + 64 * factor * sharp.drift * (token % 64 == 0)))

    assert _run(changed(2), tokens).found
    assert not _run(changed(0.1), tokens).found


def test_a_state_that_is_lost_once_is_found_at_the_next_comparison() -> None:
    def lost(state: Tensor, token: int) -> Tensor:
        return state * torch.tensor([float(token != 200), 1.0])[:, None, None, None]

    (found,) = _run(_after(provider("torch"), lost), 300).found
    assert found.step == 255


def test_noise_that_is_not_carried_would_be_a_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried._Step, "variance", lambda step, part: torch.zeros_like(part))
    monkeypatch.setattr(carried.Carried, "_reach", lambda own: torch.zeros_like(own.mean))
    assert _run(provider("torch"), 128).found


def test_a_rounding_that_flips_at_any_token_is_allowed_for() -> None:
    """With these inputs one did at token 154; noise predicted for some tokens alone missed it."""
    memory = _run(provider("torch"), 256, seed=4)
    assert memory.found == []
    assert memory.scores[-1][1] < memory.scores[-1][2] / 2


def test_a_run_that_is_cut_goes_on_to_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", -1.0)
    kept, seen = tmp_path / "long" / "run.safetensors", []
    tokens, right = 140, provider("inductor")

    def cut(number: int) -> None:
        if number == 130:
            raise KeyboardInterrupt

    whole = _run(right, tokens)
    with pytest.raises(KeyboardInterrupt):
        long_memory(small(), _weights(0), right, tokens, SHARE, kept=kept, advance=cut)
    again = long_memory(small(), _weights(0), right, tokens, SHARE, kept=kept, advance=seen.append)
    assert seen[0] == 129, "the last token that was kept is the last of a block"
    assert (again.scores, again.sharp) == (whole.scores, whole.sharp)
    assert not kept.exists()


def test_a_model_with_one_such_layer_will_do() -> None:
    config = scaled(layers=3, block=2)
    found = long_memory(config, random_weights(config), provider("torch"), 4, SHARE)
    assert not found.found
    assert found.scores
