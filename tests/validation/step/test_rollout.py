"""The reference's own state beside the executor's: long memory, drift, lower precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from step_case import small

from validation.step.executor import Executor, provider
from validation.step.faults import step_faults
from validation.step.local import judged_operation, snapshot
from validation.step.rollout import Rollout
from validation.step.scenarios import SCENARIOS
from validation.step.walk import Hooks, Walk, forced
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.program import program
from validation.subjects.kimi_k3.weights import random_weights


def _walk(executor: Executor, hooks: Hooks | None = None, drafts: int = 0, **more: object) -> Walk:
    config = small(drafts)
    rollout = Rollout(executor.profile, 1e-8)
    return Walk(config, random_weights(config), executor, 1e-8, hooks or Hooks(), rollout=rollout, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("scenario", "drafts"), [("verify", 2), ("pages", 0), ("preempt", 1)])
def test_stock_stays_within_its_noise(scenario: str, drafts: int) -> None:
    walk = _walk(provider("torch"), drafts=drafts)
    SCENARIOS[scenario](walk)
    assert walk.found == []
    assert walk.rollout is not None
    assert 0.01 < walk.rollout.largest["excess"] < 1


@pytest.mark.parametrize(("name", "at"), [("state_wiped_at_step_5", 5), ("drift_between_steps", 1)])
def test_state_that_changed_between_steps(name: str, at: int) -> None:
    fault = next(f for f in step_faults() if f.name == name)
    walk = _walk(provider("torch"), fault.hooks(), checks=False)
    SCENARIOS["plain"](walk)
    first = walk.first()
    assert first is not None
    assert (first.op, first.step, first.output) == ("rollout", at, "state")


def test_a_state_kept_in_bf16_between_steps_is_found_at_once() -> None:
    def rounds(walk: Walk) -> None:
        for state in walk.state.recurrent.values():
            state.copy_(state.bfloat16().float())

    walk = _walk(provider("torch"), Hooks(between=rounds), checks=False)
    SCENARIOS["plain"](walk)
    first = walk.first()
    assert first is not None
    assert (first.op, first.step) == ("rollout", 1)
    assert first.value > 100 * first.limit


def test_half_of_the_state_is_older_than_the_walk() -> None:
    """With half-lives to 1e5 tokens, what the first token left is still there after 24 steps."""
    walk = _walk(provider("torch"))
    walk.share = None
    walk.admit(), walk.admit()
    tokens = forced(walk.config, 2, 25)
    walk.step(tokens[0])
    slot = walk.requests[0].slots[0]
    first = walk.state.recurrent[1][:, slot].clone()
    for ids in tokens[1:]:
        walk.step(ids)
    kept = (walk.state.recurrent[1][:, slot] * first).sum() / first.square().sum()
    assert kept > 0.2


def test_only_recurrences_are_rolled_out() -> None:
    walk = _walk(provider("torch"))
    walk.admit()
    batch = batch_of(walk.config, walk.requests, [[1]])
    operation = program(walk.config)[0]
    judged = judged_operation(operation, operation.arguments(walk.binding(batch)), walk.executor, 1e-8)
    assert walk.rollout is not None
    assert walk.rollout.judged(operation, judged.clean, judged.outcome) is None
    core = next(o for o in program(walk.config) if o.op == "kda_decode")
    a = core.arguments(walk.binding(batch))
    a.projected.copy_(torch.randn(a.projected.shape))
    clean = snapshot(a)
    walk.executor.run(core, a)
    rolled = walk.rollout.judged(core, clean, a)
    assert rolled is not None
    assert not rolled.failed
    wrong = replace(a, state=a.state * 1.0001)
    assert walk.rollout.judged(core, clean, wrong).failed  # type: ignore[union-attr]
