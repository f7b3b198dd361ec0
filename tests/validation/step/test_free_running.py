"""Limits of free-running paths: honest variants pass, what adds up is found."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from step_case import small

from validation.errors import UserError
from validation.step.executor import Executor, provider
from validation.step.faults import step_faults
from validation.step.free_running import Ensemble, Reading, Step, ensemble, judged, predictive_limit, run
from validation.step.honest import honest, sample
from validation.step.walk import Hooks, Walk, forced
from validation.subjects.kimi_k3.weights import random_weights

SHARE = 5e-5
STEPS = [Step(ids, [1, 1]) for ids in forced(small(), 2, 16, seed=3)]


@functools.cache
def _weights() -> dict[str, torch.Tensor]:
    return random_weights(small(), 3)


def _walk(executor: Executor, hooks: Hooks | None = None) -> Walk:
    return Walk(small(), _weights(), executor, None, hooks or Hooks(), checks=False)


@functools.cache
def _ensemble() -> Ensemble:
    return ensemble(_walk(provider("torch")), STEPS, members=12)


def test_limit_is_passed_as_seldom_as_it_says() -> None:
    """Normal logarithms: the level is kept. Ten times heavier tails: the widening keeps it in check."""
    g = torch.Generator().manual_seed(0)
    alarms, heavy = 0, 0
    for _ in range(2000):
        logs = torch.randn(25, generator=g, dtype=torch.float64)
        alarms += float((2 * logs[0]).exp()) > predictive_limit((2 * logs[1:]).exp(), 0.05)
        rare = torch.where(torch.rand(25, generator=g) < 0.1, 10.0, 1.0) * logs
        heavy += float(rare[0].exp()) > predictive_limit(rare[1:].exp(), 1e-4)
    assert 40 < alarms < 130  # 100 without the widening
    assert heavy < 30


def test_equal_variants_tell_no_spread() -> None:
    assert predictive_limit(torch.tensor([1.0] * 9 + [2.0]), 0.01) == math.inf


def test_stock_passes_and_one_variant_passes_among_the_others() -> None:
    e = _ensemble()
    assert judged(run(_walk(provider("torch")), STEPS), e, SHARE).found == []
    pick = [[2 * m + r for m in range(12) if m != 5 for r in (0, 1)], [10, 11]]
    rest, one = (
        [Reading(r.logits[rows], {k: v[rows] for k, v in r.state.items()}) for r in e.honest] for rows in pick
    )
    assert judged(one, replace(e, honest=rest, members=11), SHARE).found == []


def test_wiped_state_is_found_without_looking_at_single_operations() -> None:
    fault = next(f for f in step_faults() if f.name == "state_wiped_at_step_5")
    faulty = run(_walk(provider("torch"), fault.hooks()), STEPS)
    found = judged(faulty, _ensemble(), SHARE).found
    assert found[0].step <= 7
    assert {d.output for d in found} >= {"KL divergence", "log-probability of the forced token"}


def test_a_top_token_that_noise_does_not_explain() -> None:
    e = _ensemble()
    readings = run(_walk(provider("torch")), STEPS)
    row = readings[9].logits[1, 0]
    row[int(row.argmin())] = float(row.max()) + 1
    (found,) = [d for d in judged(readings, e, SHARE).found if d.output == "top-1"]
    assert (found.step, found.where) == (9, "request 1")


def test_variants_are_spread_as_predicted() -> None:
    """The mean square of many draws of one operation's output is the predicted variance and the store's."""
    from validation.contracts import contract_named
    from validation.numerics.arithmetic import Noise

    contract = contract_named("projection")
    case = next(c for c in contract.cases("quick") if c.regime == "typical")
    value = contract.reference(Noise(contract.profiles["stock"]), contract.build(case))["out"]
    g = torch.Generator().manual_seed(1)
    draws = torch.stack([sample(value, g) - value.mean for _ in range(400)])
    ratio = draws.square().mean(0) / value.variance
    assert abs(float(ratio.mean()) - 1) < 0.05


def test_variants_differ_and_repeat_from_their_seed() -> None:
    a, b, c = (run(_walk(honest("stock", seed)), STEPS[:3])[-1].state["recurrent", 2] for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_too_few_variants_are_refused() -> None:
    with pytest.raises(UserError, match="at least 4"):
        ensemble(_walk(provider("torch")), STEPS, members=3)
