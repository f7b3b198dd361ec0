"""Tests of the decisions: planted differences are different, equal arms are not, failures are never wrong
answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from judged import (
    REPEATS,
    RERUN,
    TASK,
    comparison,
    everything,
    graded,
    lost,
    paired,
    right,
    samples,
    walked,
    walks,
)

from evals.forced.gather import gather
from evals.forced.walk import replicate_numbers
from evals.graders.outcome import Grade
from evals.judging.compare import FORCED, Parting, decisions, forced_tests, parting_test, task_tests
from evals.judging.judge import judge
from evals.judging.scores import pair
from evals.signals.divergence import Divergence
from validation.variance.decision import Decision, decide_all, overall

ALIKE = right(0.7, 1), right(0.7, 2)


def found(decided: list[Decision], verdict: str) -> list[str]:
    return [f"{d.comparison}: {d.test.name}" for d in decided if d.verdict == verdict]


def test_arms_that_are_alike_pass() -> None:
    judged = everything(*ALIKE)
    assert found(judged.decided, "different") == []
    assert "aime25: equivalence (TOST)" in found(judged.decided, "equivalent")
    assert f"{FORCED}: systematic difference (crossed)" in found(judged.decided, "equivalent")
    assert overall(judged.decided)[0] == "pass"
    assert [c.noticed for c in judged.planted] == [True, True]


def test_a_drop_of_the_score_is_different_and_nothing_else_is() -> None:
    judged = everything(right(0.8, 1), right(0.4, 2))
    different = found(judged.decided, "different")
    assert "aime25: paired difference" in different
    assert "aime25: equivalence (TOST)" in different
    assert not [name for name in different if FORCED in name or "length" in name]
    assert overall(judged.decided)[0] == "fail"


@pytest.mark.parametrize(("margin", "verdict"), [(0.30, "equivalent"), (0.02, "undecided")])
def test_the_margin_decides_what_is_equivalent(margin: float, verdict: str) -> None:
    decided = decide_all(task_tests(paired(*ALIKE), margin, 0.05))
    assert decided[0].test.name.startswith("equivalence")
    assert decided[0].verdict == verdict


def test_a_systematic_error_of_the_walks_is_different() -> None:
    judged = everything(*ALIKE, forced=walked(walks(), shift=0.5))
    assert f"{FORCED}: systematic difference (crossed)" in found(judged.decided, "different")


def test_a_measurable_error_within_the_margin_is_equivalent() -> None:
    """sqrt(2 * 0.005) = 0.1 nats: 0.01 nats over a noise of 0.001 are plain to see, and do not matter."""
    judged = everything(*ALIKE, forced=walked(walks(), shift=0.01))
    (crossed,) = [d for d in judged.decided if "crossed" in d.test.name]
    assert crossed.verdict == "equivalent"
    assert "measurable" in crossed.reason


def test_failures_are_no_wrong_answers_but_an_error() -> None:
    """Twelve right answers that never came: counted as wrong they would be a drop of 30 points."""
    a, b = np.ones((40, REPEATS)), np.ones((40, REPEATS))
    grades, cells = (graded(a), graded(b)), [(i, k) for i in range(12) for k in range(REPEATS)]
    rows = samples("reference", 1), lost(grades[1], samples("candidate", 2), cells)
    both = pair(TASK, grades, rows, REPEATS)
    decided = decisions(comparison(forced=False), [both], None, {})
    assert np.isnan(both.candidate.scores[:12]).all()
    assert (both.candidate.scores[12:] == 1).all()
    assert found(decided, "different") == []
    assert found(decided, "error") == [f"{TASK}: completeness of the replies"]
    verdict, reasons = overall(decided)
    assert verdict == "error"
    assert "48 in the candidate" in reasons[0]
    assert "--resume" in reasons[0]


def test_failures_that_both_arms_share_are_left_out() -> None:
    """A question that does not fit into the context fails in both arms alike."""
    grades = graded(ALIKE[0]), graded(ALIKE[1])
    cells = [(0, k) for k in range(REPEATS)]
    rows = [
        lost(g, samples(arm, i), cells, "context")
        for i, (g, arm) in enumerate(zip(grades, ("r", "c"), strict=True))
    ]
    decided = decisions(comparison(forced=False), [pair(TASK, grades, (rows[0], rows[1]), REPEATS)], None, {})
    assert found(decided, "error") == []
    assert found(decided, "different") == []


def test_an_arm_that_never_stops_is_different_although_it_has_no_score() -> None:
    cut = {key: [Grade(np.nan, "truncated")] * REPEATS for key in graded(ALIKE[1])}
    long = [replace(row, finish="length") for row in samples("candidate", 2, length=60)]
    both = pair(TASK, (graded(ALIKE[0]), cut), (samples("reference", 1), long), REPEATS)
    decided = decisions(comparison(forced=False), [both], None, {})
    assert f"{TASK}: rate of truncated replies" in found(decided, "different")
    assert f"{TASK}: mean length of replies" in found(decided, "different")


def test_without_any_score_nothing_is_decided() -> None:
    """All replies of both arms are cut: undecided, not equal."""
    cut = {key: [Grade(np.nan, "truncated")] * REPEATS for key in graded(ALIKE[1])}
    both = pair(TASK, (cut, cut), (samples("reference", 1), samples("candidate", 2)), REPEATS)
    verdict, reasons = overall(decisions(comparison(forced=False), [both], None, {}))
    assert verdict == "undecided"
    assert "no question has a score in both arms" in reasons[0]


def test_scores_that_are_all_equal_are_judged() -> None:
    judged = everything(np.ones((40, REPEATS)), np.ones((40, REPEATS)))
    assert found(judged.decided, "different") == []
    assert overall(judged.decided)[0] == "pass"


def test_graded_scores_of_the_candidate_only_are_judged() -> None:
    """MRCR scores are shares: the reference may have only 0 and 1 where the candidate has 0.3."""
    half = np.where(right(0.5, 2) == 1, 0.3, 0.0)
    decided = decide_all(task_tests(paired(np.ones((40, REPEATS)), half), 0.05, 0.05))
    assert f"{TASK}: paired difference" in found(decided, "different")


@pytest.mark.parametrize("number", [np.nan, np.inf, 0.5])
def test_impossible_logprobs_in_the_candidate_only_are_different(number: float) -> None:
    rows = samples("candidate", 2)
    rows[3].logprobs[2] = number
    judged = everything(*ALIKE, rows=samples("reference", 1) + rows)
    (name,) = found(judged.decided, "different")
    assert name.endswith("log-probabilities")
    assert overall(judged.decided)[0] == "fail"


def test_missing_logprobs_in_both_arms_are_no_difference() -> None:
    rows = samples("reference", 1) + samples("candidate", 2)
    for row in rows:
        row.logprobs[0] = np.nan
    assert found(everything(*ALIKE, rows=rows).decided, "different") == []


def test_nan_in_one_walk_of_the_candidate_is_different() -> None:
    forced = walked(walks())
    next(row for row in forced if row.replicate == 3).logprobs[5] = np.nan
    judged = everything(*ALIKE, forced=forced)
    assert found(judged.decided, "different") == [f"{FORCED}: non-finite log-probabilities"]


def test_a_walk_that_is_missing_is_an_error_with_its_reason() -> None:
    forced = walked(walks())
    forced[3] = replace(forced[3], failure="timeout", message="no reply within 3 s")
    verdict, reasons = overall(everything(*ALIKE, forced=forced).decided)
    assert verdict == "error"
    assert "no reply within 3 s" in reasons[0]


def test_without_walks_nothing_is_shown() -> None:
    (planned,) = forced_tests(comparison(), None)
    assert planned[1].note == "nothing was walked"
    gathered = gather({}, [], [], (replicate_numbers(0, 2), replicate_numbers(1, 2)))
    assert overall(decide_all(forced_tests(comparison(), gathered)))[0] == "undecided"


def divergence(position: int) -> Divergence:
    return Divergence(position, (1, 2), 0.1)


def test_earlier_parting_than_the_references_own_is_different() -> None:
    own, other = [divergence(-1)] * 30, [divergence(5)] * 30
    assert own[0].diverged is False
    assert other[0].diverged is True
    apart = parting_test(Parting(other, own, (180, 900)), 0.05)
    alike = parting_test(Parting(own, own, (900, 900)), 0.05)
    assert apart.p_value < 1e-6
    assert apart.effect > 1
    assert np.isnan(alike.p_value)
    assert "no event" in alike.note


def test_same_seed_divergence_is_counted_from_the_rows() -> None:
    """The second run repeats the reference; the candidate has other tokens from position 2 on."""
    first = samples("reference", 1)
    again = [replace(row, replicate=RERUN) for row in first if row.repeat == 0]
    other = [replace(row, arm="candidate", token_ids=row.token_ids.copy()) for row in first]
    for row in other:
        row.token_ids[2] += 1
    grades = ({TASK: graded(ALIKE[0])}, {TASK: graded(ALIKE[1])})
    judged = judge(comparison(forced=False), [*first, *again, *other], grades, [], ({}, {}), RERUN)
    counted = judged.details["divergences"][TASK]
    assert counted["candidate"]["diverged"] == counted["candidate"]["replies"] == 160
    assert counted["candidate"]["tokens"] == 3 * 160
    assert counted["itself"]["diverged"] == 0
    assert counted["itself"]["replies"] == 40
    assert f"{TASK}: same-seed divergence against the reference's own" in found(judged.decided, "different")


def test_holm_runs_over_all_tasks_and_walks() -> None:
    """The smallest p-value of a run is multiplied by the number of all tests that have one."""
    tasks = ("aime25", "gpqa_diamond")
    pairs = []
    for number, task in enumerate(tasks):
        rows = [samples(arm, 2 * number + i, task) for i, arm in enumerate(("reference", "candidate"))]
        grades = graded(right(0.8, 1), task), graded(right(0.45 if number else 0.8, 2), task)
        pairs.append(pair(task, grades, (rows[0], rows[1]), REPEATS))
    what = walks()
    forced = walked(what)
    one, two = ([r for r in forced if r.arm == a] for a in ("reference", "candidate"))
    gathered = gather(
        {w.key: w.tokens for w in what}, one, two, (replicate_numbers(0, 2), replicate_numbers(1, 2))
    )
    decided = decisions(comparison(tasks=tasks), pairs, gathered, {})
    tested = [d for d in decided if np.isfinite(d.test.p_value) and not d.test.name.startswith("equivalence")]
    least = min(tested, key=lambda d: d.test.p_value)
    assert least.comparison == "gpqa_diamond"
    assert {d.comparison for d in tested} == {FORCED, *tasks}
    assert least.adjusted_p == pytest.approx(min(1.0, len(tested) * least.test.p_value))
