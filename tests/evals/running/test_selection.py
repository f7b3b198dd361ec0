"""Tests of what a run asks, what it is said to cost, what is shown while it runs, and what a resumed run
recalls."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from judged import comparison

from evals.engines.api import Request, Response
from evals.forced.walk import Walk
from evals.lm import Asked
from evals.running import estimate, recall, selection
from evals.running.progress import Progress
from evals.running.selection import Selection, parts
from evals.store.row import Label
from validation.errors import UserError


def test_the_ready_offline_arms_and_what_changes_them() -> None:
    plain = Selection().comparison()
    assert list(plain.tasks) == ["aime25", "gpqa_diamond", "mrcr"]
    assert plain.forced
    chosen = Selection(tasks=("mrcr", "aime25", "mrcr"), k=2, forced=50).comparison()
    assert list(chosen.tasks) == ["mrcr", "aime25"]
    assert {t.repeats for t in chosen.tasks.values()} == {2}
    assert chosen.forced
    assert chosen.forced.tokens == 50
    assert Selection(forced=0).comparison().forced is None


def test_mrcr_stands_for_its_three_tasks() -> None:
    assert parts("mrcr") == ["mrcr_2needle", "mrcr_4needle", "mrcr_8needle"]
    assert parts("aime25") == ["aime25"]
    with pytest.raises(UserError, match="no task is called 'mmlu'"):
        parts("mmlu")


def test_a_selection_survives_the_disk(tmp_path: Path) -> None:
    chosen = Selection("offline", ("aime25",), 3, 2, "hub", 0)
    selection.save(chosen, tmp_path)
    assert selection.load(tmp_path) == chosen


def test_limit_makes_a_mirrored_set_and_cuts_a_real_one() -> None:
    arms = Selection().comparison()
    (task,) = Selection(limit=3).load(arms, "aime25")
    assert len(list(task.eval_docs)) == 3
    assert Selection(limit=3).limit_of_data is None
    assert Selection(limit=3, data="hub").limit_of_data == 3
    assert estimate.questions(Selection(limit=3), "aime25") == 3
    assert estimate.questions(Selection(limit=3, data="hub"), "mrcr") == 9
    assert estimate.questions(Selection(data="hub"), "gpqa_diamond") == 198


def test_the_estimate_learns_from_a_run(tmp_path: Path) -> None:
    arms, chosen = comparison(), Selection(limit=10)
    first = estimate.lines(arms, chosen, tmp_path)
    assert first[0].startswith("aime25: 10 questions x 4 replies an arm, at most 64 tokens")
    assert "at most 5,920 tokens" in first[-1]
    assert "about" not in first[-1]
    estimate.remember(tmp_path, arms, chosen, 120.0)
    assert "about 2 min" in estimate.lines(arms, chosen, tmp_path)[-1]
    other = replace(arms, seed=1)
    assert "about" not in estimate.lines(other, chosen, tmp_path)[-1]
    (tmp_path / estimate.FILE).write_text("{")
    assert "about" not in estimate.lines(arms, chosen, tmp_path)[-1]


def test_progress_without_a_terminal_is_lines() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.stage("reference: aime25", 3)
    progress.spoke -= 60
    progress.advance(Request("k", 0), Response("k", 0, token_ids=[1, 2], failure="timeout"))
    progress.stage("nothing left", 0)
    first, second = stream.getvalue().splitlines()
    assert first == "lockstep: reference: aime25: 3 replies"
    assert second.startswith("lockstep: reference: aime25: 1 of 3 replies")
    assert ", 1 failed, about" in second


ARM = comparison().reference


def test_the_first_facts_are_those_of_the_first_samples(tmp_path: Path) -> None:
    """A session that stored nothing does not count."""
    assert recall.first_facts(tmp_path, ARM, {"version": 1}, samples=False) == {"version": 1}
    assert recall.first_facts(tmp_path, ARM, {"version": 2}, samples=False) == {"version": 2}
    assert recall.first_facts(tmp_path, ARM, {"version": 3}, samples=True) == {"version": 2}


def asked(key: str) -> Asked:
    return Asked(Request(key, 0, prompt="x"), Label("", "reference", "aime25", key))


def test_the_walks_of_an_earlier_session_stay(tmp_path: Path) -> None:
    """A reply that came late would be chosen now; the tokens walked already are those of the earlier
    choice."""
    both = [asked("a"), asked("b")]
    early = [Walk(both[1].request, "aime25", "b", 0, (1, 2, 3))]
    assert recall.walks_of(tmp_path, both, lambda: early) == early
    assert recall.walks_of(tmp_path, both, lambda: pytest.fail("chosen anew")) == early
    with pytest.raises(UserError, match="b was walked and is not asked any more"):
        recall.walks_of(tmp_path, both[:1], list)


def test_a_damaged_recollection_is_told(tmp_path: Path) -> None:
    (tmp_path / recall.WALKS).write_text(json.dumps([1]))
    with pytest.raises(UserError, match=r"walks.json is damaged .*; start a new run"):
        recall.walks_of(tmp_path, [], list)
