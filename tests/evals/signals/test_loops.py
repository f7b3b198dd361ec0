"""Loops are found at every period, and only where there is one; a long reply takes milliseconds."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.signals.loops import COVERED, TIMES, Loop, Run, final_loop, novelty, runs, self_overlap

LONGEST = 98_304


def fresh(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 150_000, n).tolist()


def naive_overlap(s: list[int]) -> list[int]:
    out = [0]
    for p in range(1, len(s)):
        n = 0
        while p + n < len(s) and s[n] == s[p + n]:
            n += 1
        out.append(n)
    return out[: len(s)]


@given(st.lists(st.integers(0, 2), max_size=60))
def test_overlaps_are_those_of_the_definition(s: list[int]) -> None:
    assert self_overlap(s) == naive_overlap(s)


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(2, 4), st.integers(4, 12))
def test_the_loop_is_the_shortest_period_that_covers_enough(s: list[int], times: int, covered: int) -> None:
    """Against the definition, over all periods and both places where the loop may end."""
    expected = Loop()
    for p in range(1, len(s)):
        for cut in (0, 1):
            body = s[: len(s) - cut]
            n = min(p, len(body))
            while n < len(body) and body[-1 - n] == body[-1 - n + p]:
                n += 1
            if n > p and n >= max(covered, times * p) and not expected:
                expected = Loop(p, n)
    assert final_loop(s, times, covered) == expected


@pytest.mark.parametrize("period", [1, 2, 3, 17, 100, 1000, 20_000])
@pytest.mark.parametrize("end", [[], [2]])
def test_a_block_said_again_and_again_is_found(period: int, end: list[int]) -> None:
    block, times = fresh(period, 1), max(TIMES, math.ceil(COVERED / period)) + 0.5
    said = (block * (int(times) + 1))[: int(period * times)]
    found = final_loop([*fresh(500), *said, *end])
    assert found.period == period
    assert found.covered == len(said)


def test_no_loop_where_there_is_none() -> None:
    block = fresh(100, 1)
    assert not final_loop(fresh(5000))
    assert not final_loop([*fresh(500), *block, *block]), "said twice"
    assert not final_loop([*fresh(500), *[7] * (COVERED - 1)]), "a ruler"
    assert not final_loop([*block * 5, *fresh(50)]), "left again"
    assert not final_loop([])
    assert not final_loop([1])


def test_a_counter_is_no_loop_but_little_is_new() -> None:
    counting = [token for i in range(300) for token in (*range(20), 1000 + i)]
    assert not final_loop(counting)
    assert novelty(counting) < 0.5 < novelty(fresh(2000))
    assert math.isnan(novelty([1, 2, 3]))
    assert novelty([0] * 3000) == pytest.approx(1 / 2041)


def test_runs() -> None:
    assert runs([]) == Run()
    assert runs([5]) == Run(1, 1, 5)
    assert runs([1, 1, 1, 2, 3, 3]) == Run(3, 2, 3)
    assert runs([9, *[0] * 60, 2]) == Run(60, 60, 0), "one end token may follow"
    assert runs([9, *[0] * 60, 2, 4]) == Run(60, 1, 4)


@pytest.mark.parametrize(
    "tokens",
    [
        fresh(LONGEST),
        [0] * LONGEST,
        [*fresh(1000), *fresh(20_000, 1) * 4, *fresh(20_000, 1)[:17_304]],
        [*([0] * 30 + [1]) * 3170, 0],
        np.random.default_rng(1).integers(0, 2, LONGEST).tolist(),
    ],
    ids=["fresh", "one token", "long period", "short period", "two tokens"],
)
def test_the_longest_reply_takes_no_time_to_speak_of(tokens: list[int]) -> None:
    """Some 30 ms; what compares all with all would take minutes."""
    assert len(tokens) >= LONGEST - 100
    array = np.array(tokens, np.int32)

    def once() -> float:
        start = time.process_time()
        final_loop(array), runs(array), novelty(array)
        return time.process_time() - start

    assert min(once() for _ in range(4)) < 0.5
