"""The share of the budget, and the estimate of what is left."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.contracts.contract import Case
from validation.execution.environment import configuration_hash
from validation.execution.plan import BUDGET, Settings, Task, share
from validation.execution.progress import Estimate
from validation.run import replay_line


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_limits_do_not_depend_on_what_was_selected(some: int, others: int) -> None:
    assert share(BUDGET, some) == share(BUDGET, others)


@given(st.integers(1, 10**6))
def test_the_shares_of_a_run_never_exceed_its_budget(cases: int) -> None:
    assert cases * share(BUDGET, cases) <= BUDGET * (1 + 1e-12)


def test_the_configuration_hash_follows_what_decides_the_numbers() -> None:
    plain = configuration_hash(Settings())
    assert plain == configuration_hash(Settings(case_timeout=5.0, plugins=("elsewhere.py",)))
    assert plain != configuration_hash(Settings(seed=1))
    assert plain != configuration_hash(Settings(mode="accuracy"))


def test_the_replay_line_holds_all_it_takes() -> None:
    task = Task("mine", Case.of("kda_decode", "slow", 3, requests=2))
    settings = Settings(device="cuda", plugins=("my file.py",), mode="accuracy")
    assert replay_line(settings, task) == (
        "lockstep replay mine/kda_decode:requests=2:slow:3@cuda --plugin 'my file.py' --mode accuracy"
    )


def test_the_estimate_knows_that_pairs_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    slow, fast = (Task("p", Case.of(op, "r", 0)) for op in ("slow", "fast"))
    estimate = Estimate([slow] * 3 + [fast] * 5)
    assert estimate.remaining() is None
    estimate.add(slow, 10.0)
    estimate.add(fast, 1.0)
    now[0] = 5.5  # eleven seconds of cases in half the time: two workers
    assert estimate.remaining() == pytest.approx((2 * 10 + 4 * 1) / 2)
