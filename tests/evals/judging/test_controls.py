"""Tests of the planted differences: noticed where a run could notice, missed where it could not."""

from __future__ import annotations

import numpy as np
from judged import QUESTIONS, REPEATS, comparison, everything, paired, right, walked, walks

from evals.arms.guard import Comparability
from evals.forced.gather import gather
from evals.forced.walk import replicate_numbers
from evals.judging.controls import controls, noisy_walks, spoiled_scores
from evals.report.document import document


def gathered(number: int, noise: float = 1e-3):  # type: ignore[no-untyped-def]
    what = walks(number)
    rows = walked(what, noise=noise)
    one, two = ([r for r in rows if r.arm == a] for a in ("reference", "candidate"))
    return gather(
        {w.key: w.tokens for w in what}, one, two, (replicate_numbers(0, 2), replicate_numbers(1, 2))
    )


def test_a_run_with_enough_replies_and_tokens_notices_both() -> None:
    planted = controls([paired(right(0.7, 1), right(0.7, 2))], gathered(10), 0.05, 20)
    assert [(c.comparison, c.noticed) for c in planted] == [("forced", True), ("aime25", True)]


def test_two_questions_notice_nothing() -> None:
    a, b = right(0.7, 1), right(0.7, 2)
    a[2:], b[2:] = np.nan, np.nan
    assert not spoiled_scores(paired(a, b), 0.05 / 20, 0).noticed


def test_two_sequences_notice_nothing() -> None:
    """Three ways to relabel each: no p-value below 1/9."""
    few = gathered(2)
    assert few.top
    assert not noisy_walks(few.top, 0.05 / 20, 0).noticed


def test_a_score_of_zero_cannot_drop() -> None:
    control = spoiled_scores(paired(np.zeros((QUESTIONS, REPEATS)), np.zeros((QUESTIONS, REPEATS))), 0.01, 0)
    assert not control.noticed
    assert "easier questions" in control.note


def test_without_scores_no_drop_is_planted() -> None:
    nothing = np.full((QUESTIONS, REPEATS), np.nan)
    assert controls([paired(nothing, nothing)], None, 0.05, 20) == []


def test_a_missed_control_makes_a_pass_undecided() -> None:
    judged = everything(right(0.7, 1), right(0.7, 2))
    words = ("cmd", comparison(), judged.decided)
    assert document(*words, judged.planted, Comparability(), {}, {}, "").verdict == "pass"
    missed = [type(c)(c.comparison, c.planted, False, c.note) for c in judged.planted]
    made = document(*words, missed, Comparability(), {}, {}, "")
    assert made.verdict == "undecided"
    assert "went unnoticed" in made.notes[0]
    assert document(*words, [], Comparability(), {}, {}, "").verdict == "undecided"


def test_the_bar_is_that_of_all_tests_of_the_run() -> None:
    """Three sequences: no p-value below 1/27, enough for one test at 5 %, not for one of twenty."""
    assert [controls([], gathered(3), 0.05, tests)[0].noticed for tests in (1, 20)] == [True, False]
