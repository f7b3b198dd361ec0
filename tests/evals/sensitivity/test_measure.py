"""Rates are counted right, and the measurement alarms where replicates are not exchangeable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.engines.api import Request, Response
from evals.engines.in_process import InProcessEngine, Options
from evals.engines.prefill import SHIFTS, places
from evals.forced.walk import Walk
from evals.sensitivity.measure import Rates, Size, with_fault, with_itself
from evals.sensitivity.planted import catalogue
from evals.sensitivity.prompts import prompts
from evals.sensitivity.walks import REPLY, arrays, prompts_for, replicate, sample


def quiet(tokens: int) -> None:
    """No progress."""


@pytest.mark.parametrize(
    ("alarms", "found", "missed"),
    [
        ({100: 0, 300: 8, 1000: 10}, 300, False),
        ({100: 8, 300: 8, 1000: 8}, 100, False),
        ({100: 10, 300: 7, 1000: 9}, 1000, True),  # found and lost again is not found
        ({100: 10, 300: 10, 1000: 7}, None, True),
    ],
)
def test_found_within_is_where_at_least_four_in_five_find_it_then_and_later(
    alarms: dict[int, int], found: int | None, missed: bool
) -> None:
    rates = Rates("a fault", 10, alarms, within=300)
    assert (rates.found_within, rates.missed(1000)) == (found, missed)


def test_a_promise_is_judged_only_by_a_run_that_is_long_enough() -> None:
    assert not Rates("a fault", 10, {100: 0}, within=300).missed(299)
    assert Rates("a fault", 10, {100: 0}, within=300).missed(300)
    assert not Rates("nothing promised", 10, {100: 0}).missed(3000)


def test_the_upper_limit_is_that_of_the_rule_of_three() -> None:
    assert Rates("", 300, {100: 0}).limit(100) == pytest.approx(0.00994, abs=1e-5)


class Stub:
    """Replies whose roundings are those of the place where a prompt begins, alike in all prompts."""

    def __init__(self, place: Callable[[Request], int]) -> None:
        self.place = place
        self.rounding = np.random.default_rng(0).normal(0, 0.01, SHIFTS)

    def run(self, requests: Sequence[Request], done: Any) -> None:
        for each in requests:
            own = np.random.default_rng([*each.prompt_ids, each.replicate]).normal(0, 0.001, REPLY)
            logprobs = (-1 + self.rounding[self.place(each)] + own).tolist()
            response = Response(
                each.key, each.seed, token_ids=list(each.forced), logprobs=logprobs, finish="length"
            )
            response.top_ids, response.top_logprobs = [[3]] * REPLY, [[x] for x in logprobs]
            done(each, response)


def stub_sets(sets: int, walks: int = 20) -> list[list[Walk]]:
    made = []
    for s in range(sets):
        asked = [Request(f"w/{s}/{i}", 0, prompt_ids=(s, i)) for i in range(walks)]
        made.append([Walk(each, "walk", each.key, 0, tuple(range(REPLY))) for each in asked])
    return made


@pytest.mark.parametrize(
    ("place", "low", "high"),
    [
        (lambda request: places(request.prompt_ids)[request.replicate], 0, 3),
        (
            lambda request: request.replicate,
            12,
            40,
        ),  # one place for all prompts: what they share is taken for a fault
    ],
    ids=["drawn for every prompt", "one for all prompts"],
)
def test_alarms_where_prompts_share_the_roundings_of_a_replicate(
    place: Callable[[Request], int], low: int, high: int
) -> None:
    rates, reference = with_itself(Stub(place), stub_sets(10), Size(300, 10, 4), 0, quiet)  # type: ignore[arg-type]
    assert rates.runs == 40
    assert low <= rates.alarms[300] <= high
    assert [len(each) for each in reference] == [2] * 10


def test_runs_of_one_set_share_no_replicate() -> None:
    asked: list[tuple[str, int]] = []
    engine = Stub(lambda request: asked.append((request.key, request.replicate)) or 0)  # type: ignore[func-returns-value]
    with_itself(engine, stub_sets(2, 7), Size(100, 2, 3), 0, quiet)  # type: ignore[arg-type]
    assert len(asked) == len(set(asked)) == 2 * 7 * 12
    assert Size(100, 2, 3).replicates == 14


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> InProcessEngine:
    return InProcessEngine(tiny_model, Options(dtype="bfloat16", rows=7, lengths=(128,)))


@pytest.fixture(scope="module")
def sets(engine: InProcessEngine) -> list[list[Walk]]:
    return sample(engine, prompts(engine.tokenize, prompts_for(100, 2)), 100, 2, 0, quiet)


def test_sets_hold_the_tokens_asked_for_and_no_prompt_twice(sets: list[list[Walk]]) -> None:
    assert [len(group) for group in sets] == [7, 7]
    asked = [walk.request.prompt_ids for group in sets for walk in group]
    assert len(set(asked)) == 14
    assert all(len(walk.tokens) <= REPLY for group in sets for walk in group)


def test_arrays_cut_at_the_tokens_and_keep_a_walk_whole(
    engine: InProcessEngine, sets: list[list[Walk]]
) -> None:
    rows = [replicate(engine, sets[0], r, quiet) for r in range(4)]
    first = arrays(rows[:2], rows[2:]).first(40)
    assert [x.shape[:2] for x in first.a] == [(2, 15), (2, 15), (2, 10)]
    assert first.a[1][1, 0, 0] == rows[1][1].top_logprobs[1, 0]
    assert first.b[0][0, 3, 0] == rows[2][0].top_logprobs[4, 0]


def test_a_real_fault_is_found_and_the_arm_itself_is_not(
    engine: InProcessEngine, sets: list[list[Walk]]
) -> None:
    size = Size(100, 2, 1)
    rates, reference = with_itself(engine, sets, size, 0, quiet)
    assert (rates.runs, rates.alarms) == (2, {100: 0})
    assert abs(rates.rms) < 0.01
    found = with_fault(engine, catalogue(2)[0], sets, reference, size, 0, quiet)
    assert (found.runs, found.alarms, found.found_within, found.within) == (2, {100: 2}, 100, 100)
    assert found.rms > 0.01
