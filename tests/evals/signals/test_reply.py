"""Signals of replies and their arrays; divergence with its margin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evals.engines.api import Request, Response
from evals.signals.divergence import Divergence, first_divergence
from evals.signals.logprobs import Odd, odd_logprobs
from evals.signals.reply import NAMES, divergences, grid, rates, signals_of
from evals.store.row import Label, Row, row_of

NAN, INF = float("nan"), float("inf")


def reply(
    tokens: list[int], question: str = "0", repeat: int = 0, arm: str = "reference", **more: Any
) -> Row:
    key = f"toy/{question}/{repeat}"
    more = {"logprobs": [-1.0] * len(tokens), "finish": "stop"} | more
    answer = Response(key, 1, token_ids=tokens, **more)
    return row_of(Label("run", arm, "toy", question, repeat=repeat), Request(key, 1), answer, time=0.0)


def test_a_plain_reply_shows_nothing() -> None:
    found = signals_of(reply(list(range(100)), accepted=[3, 1]))
    assert (found.length, found.truncated, found.loop, found.stuck) == (100, 0, 0, 0)
    assert (found.missing, found.infinite, found.positive) == (0, 0, 0)
    assert (found.mean_logprob, found.acceptance_length, found.longest_run) == (-1, 3, 1)


def test_nan_that_became_token_0_is_seen_as_one_token_for_ever() -> None:
    """Report B169: every token after the first bad one is number 0."""
    found = signals_of(reply([*range(1, 30), *[0] * 200], finish="length"))
    assert (found.stuck, found.stuck_token, found.loop, found.loop_period, found.truncated) == (1, 0, 1, 1, 1)
    assert found.loop_covered == 200


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ([-1.0, -2.0], Odd()),
        ([-1.0], Odd(missing=1)),
        ([], Odd(missing=2)),
        ([NAN, -1.0], Odd(missing=1)),
        ([-INF, INF], Odd(infinite=2)),
        ([0.1, -1.0], Odd(positive=1)),
        ([2.0**-17, 0.0], Odd()),  # rounding of a log-softmax in FP32
    ],
)
def test_impossible_log_probabilities_are_counted(logprobs: list[float], expected: Odd) -> None:
    assert odd_logprobs(logprobs, 2) == expected
    assert expected.any == (expected != Odd())


def test_arrays_have_nan_where_there_is_no_reply() -> None:
    failed = row_of(
        Label("run", "a", "toy", "b", repeat=0),
        Request("toy/b/0", 1),
        Response("toy/b/0", 1, failure="timeout"),
    )
    arrays = grid([reply([1, 2], "a", 1), failed], ["a", "b"], 2)
    assert {*arrays} == {*NAMES}
    assert np.array_equal(arrays["length"], [[NAN, 2], [NAN, NAN]], equal_nan=True)
    with pytest.raises(ValueError, match="toy/a/1 is none of the 2 questions x 1 repeats"):
        grid([reply([1], "a", 1)], ["a", "b"], 1)
    with pytest.raises(ValueError, match="no reply"):
        signals_of(failed)


def test_rates_are_shares_of_replies() -> None:
    arrays = grid([reply([1, 2], "a", 0, logprobs=[NAN, NAN]), reply([1, 2, 3, 4], "a", 1)], ["a", "b"], 2)
    found = rates(arrays)
    assert (found["replies"], found["length"], found["missing"]) == (2, 3, 0.5)
    assert math.isnan(found["acceptance_length"])


def test_equal_replies_do_not_diverge() -> None:
    assert first_divergence(reply([1, 2]), reply([1, 2])) == Divergence()
    assert not first_divergence(reply([]), reply([])).diverged


def test_the_margin_is_the_reference_s_between_the_two_candidates() -> None:
    top = {"top_ids": [[1, 9], [2, 3]], "top_logprobs": [[-0.1, -4.0], [-0.7, -0.9]]}
    a = reply([1, 2], logprobs=[-0.1, -0.7], **top)
    b = reply([1, 3], logprobs=[-0.1, -0.6])
    found = first_divergence(a, b)
    assert (found.position, found.tokens, found.exact) == (1, (2, 3), True)
    assert found.margin == pytest.approx(0.2)


def test_the_candidate_s_candidates_serve_if_only_it_tells() -> None:
    b = reply([3], logprobs=[-0.5], top_ids=[[3, 2]], top_logprobs=[[-0.5, -1.5]])
    found = first_divergence(reply([2], logprobs=[-0.7]), b)
    assert (found.margin, found.exact) == (pytest.approx(-1.0), True)


def test_without_candidates_each_arm_s_own_value_stands_in() -> None:
    found = first_divergence(reply([1, 2], logprobs=[-0.1, -0.7]), reply([1, 3], logprobs=[-0.1, -0.6]))
    assert (found.margin, found.exact) == (pytest.approx(-0.1), False)
    bare = first_divergence(reply([1], logprobs=[]), reply([2], logprobs=[]))
    assert bare.position == 0
    assert math.isnan(bare.margin)


def test_one_reply_that_goes_on_diverges_at_the_other_s_end() -> None:
    found = first_divergence(reply([1, 2, 3]), reply([1, 2]))
    assert (found.position, found.tokens) == (2, (3, -1))
    assert math.isnan(found.margin)


def test_only_replies_of_both_arms_are_paired() -> None:
    a = [reply([1, 2], "a"), reply([1, 2], "b")]
    found = divergences(a, [reply([1, 3], "a", arm="candidate")])
    assert {key: each.position for key, each in found.items()} == {"toy/a/0": 1}
    with pytest.raises(ValueError, match="not the same request"):
        first_divergence(a[0], a[1])
