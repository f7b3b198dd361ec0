"""Who is to blame: the publisher that the earliest wait missed, or the rank that is gone."""

from __future__ import annotations

from validation.stress.job import Answer, Job
from validation.stress.layout import layout
from validation.stress.outcome import Death, Outcome, first_difference
from validation.stress.script import reaches
from validation.sync.kimi_k3 import subject

BOXES = layout(reaches(subject()), 3, 1)
JOB = Job("x", "LL", batches=(8,), steps=4)


def hang(step: int, act: int, source: int) -> list[int]:
    return [0, 0, 2, step, act, source, 0, 0, 0, 0, 5, step, act, 0, 0, 0, 0]


def outcome(*answers: Answer, deaths: tuple[Death, ...] = ()) -> Outcome:
    return Outcome(JOB, 3, list(answers), list(deaths))


def test_the_earliest_wait_names_the_culprit_whoever_reports_first() -> None:
    late, early = Answer("done", 1, records=[hang(2, 4, 0)]), Answer("done", 0, records=[hang(2, 1, 2)])
    found = outcome(late, early)
    assert found.blamed(BOXES) == 2
    assert found.failures(BOXES)[0].startswith(
        "hang: rank 0, step 2, layer 0, oproj in OprojConsumer, parity 0: waits for rank 2"
    )


def test_a_rank_that_is_gone_is_to_blame_whatever_the_others_miss() -> None:
    found = outcome(Answer("done", 0, records=[hang(2, 1, 1)]), deaths=(Death(1, -9),))
    assert found.blamed(BOXES) == 1
    place = "rank 0, step 2, layer 0, oproj in OprojConsumer, parity 0"
    assert found.failures(BOXES)[0] == f"rank 1 was killed by SIGKILL; missed first by {place}"


def test_a_killed_rank_goes_before_one_that_failed_because_of_it() -> None:
    found = outcome(deaths=(Death(0, None, "its device is gone"), Death(2, -9)))
    assert found.blamed(BOXES) == 2


def test_parted_hashes_name_the_step() -> None:
    same, other = "00000001" + "00000002", "00000001" + "00000003"
    assert first_difference(same, same) is None
    assert first_difference(same, other) == 1
    found = outcome(Answer("done", 0, hashes=same), Answer("done", 1, hashes=other))
    assert found.failures(BOXES) == ["hashes: rank 1 parts from rank 0 at step 1"]
