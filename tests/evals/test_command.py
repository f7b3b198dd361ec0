"""Tests of ``lockstep evals`` as a whole: a run with the tiny model, what it leaves, and its exit status."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from small_run import arms_file, document, fresh, keys, lockstep, rows
from tiny_model import make_tiny_model

from evals.engines.hashing import seed_of
from evals.running.evaluate import RERUN
from evals.running.selection import Selection
from validation.report.junit import to_junit


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[int, Path]:
    """An arm against itself: exit status and folder."""
    base = tmp_path_factory.mktemp("whole")
    return fresh(arms_file(base, tiny_model), base / "reports")


def test_two_questions_are_undecided(whole: tuple[int, Path]) -> None:
    """All replies of the tiny model are cut and two prompts are walked: nothing can be shown, and it is
    said."""
    status, folder = whole
    made = document(folder)
    assert (status, made.verdict) == (2, "undecided")
    assert any("no question has a score in both arms" in note for note in made.notes)
    assert [(c["op"], c["flagged"]) for c in made.controls] == [("forced", False)]


def test_every_request_is_asked_once_in_each_arm_with_one_seed(whole: tuple[int, Path]) -> None:
    found = rows(whole[1])
    reference, candidate = keys(found, "reference"), keys(found, "candidate")
    free = {key for (replicate, key), row in candidate.items() if row.kind == "free" and replicate == 0}
    assert len(free) == 4
    assert {k for r, k in reference if r == 0 and not k.startswith("forced")} == free
    for key in free:
        a, b = reference[0, key], candidate[0, key]
        assert a.seed == b.seed == seed_of(a.task, a.question, a.repeat, 0)
        assert a.prompt_hash == b.prompt_hash != ""
        assert a.question_hash == b.question_hash
        assert (a.token_ids == b.token_ids).all()
        assert a.sampling == b.sampling
    assert len({reference[0, key].seed for key in free}) == 4


def test_walks_and_second_run_are_in_the_store(whole: tuple[int, Path]) -> None:
    found = rows(whole[1])
    reference, candidate = keys(found, "reference"), keys(found, "candidate")
    assert sorted(k for r, k in reference if r == RERUN) == sorted(
        row.key
        for row in found
        if row.arm == "reference" and row.kind == "free" and (row.repeat, row.replicate) == (0, 0)
    )
    assert not [1 for r, _ in candidate if r == RERUN]
    walked = [
        {(r, k) for (r, k), row in arm.items() if row.kind == "forced"} for arm in (reference, candidate)
    ]
    assert {r for r, _ in walked[0]} == {0, 1}
    assert {r for r, _ in walked[1]} == {2, 3}
    assert {k for _, k in walked[0]} == {k for _, k in walked[1]}
    assert len(walked[0]) == 8
    for (_, key), row in [*reference.items(), *candidate.items()]:
        if row.kind == "forced":
            answered = reference[0, key.removeprefix("forced/")]
            assert (row.token_ids == answered.token_ids[:10]).all()
            assert row.prompt_hash == answered.prompt_hash


def test_the_document_holds_tests_scores_speed_and_facts(whole: tuple[int, Path]) -> None:
    details = document(whole[1]).details
    tests = {(row["comparison"], row["name"]) for row in details["tests"]}
    assert ("forced", "systematic difference (crossed)") in tests
    assert (
        "aime25",
        "equivalence of scores",
    ) in tests
    assert [(r["questions"], r["repeats"], r["truncated"], r["score"]) for r in details["scores"]] == [
        (2, 2, 1, None)
    ] * 2
    assert details["forced"]["tokens"] == 4 * 9
    assert details["forced"]["lost"] == {}
    assert details["divergences"]["aime25"]["candidate"] | {"tokens": 0} == {
        "replies": 4, "diverged": 0, "tokens": 0, "largest_margin": None, "median_margin": None,
    }  # fmt: skip
    assert {row["output_tokens"] for row in details["speed"]} == {12}
    for arm in ("reference", "candidate"):
        assert details["arms"][arm]["engine"] == "transformers"
        assert details["arms"][arm]["weights_hash"]


def test_junit_and_text_say_the_same(whole: tuple[int, Path]) -> None:
    made, folder = document(whole[1]), whole[1]
    text = (folder / "junit.xml").read_text()
    assert text == to_junit(made)
    names = [each.get("name") for each in Xml.fromstring(text).iter("testcase")]
    assert all(row["name"] in names for row in made.details["tests"])
    assert len(made.cases) == len(made.details["tests"])
    report = (folder / "report.txt").read_text()
    assert "UNDECIDED" in report
    assert "went unnoticed" not in report.split("UNDECIDED")[1]


def test_a_finished_run_is_judged_again_without_asking(whole: tuple[int, Path], tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(whole[1], folder)
    before = [row.time for row in rows(folder)]
    status = lockstep("--resume", folder, "--json", tmp_path / "out.json", "--junit", tmp_path / "out.xml")
    assert status == 2
    assert [row.time for row in rows(folder)] == before
    assert document(folder).details["tests"] == document(whole[1]).details["tests"]
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "undecided"
    assert (tmp_path / "out.xml").read_text() == (folder / "junit.xml").read_text()


def test_another_arithmetic_fails(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = arms_file(
        tmp_path, tiny_model, "engine_args.dtype", 'engine_args = {dtype = "float32"}',
        'engine_args = {dtype = "bfloat16"}', forced=120, top='implies = ["kv_cache_dtype"]',
        margin=1e-5,
    )  # fmt: skip
    status, folder = fresh(arms, tmp_path / "reports", "--limit", 8, "--k", 1)
    made = document(folder)
    assert (status, made.verdict) == (1, "fail")
    failed = [case for case in made.cases if case.verdict == "fail"]
    assert any(case.op == "forced" and "crossed" in case.case for case in failed)
    assert all(str(folder) in finding.replay for case in failed for finding in case.findings)
    assert any("dtype" in line for line in made.details["declared_differences"])
    assert "FAIL" in capsys.readouterr().out


def test_a_difference_beside_the_factor_stops_before_the_candidate_is_asked(
    tmp_path: Path, tiny_model: Path
) -> None:
    arms = arms_file(
        tmp_path, tiny_model, "engine_args.rows", "engine_args = {rows = 4}", "engine_args = {rows = 2}"
    )
    status, folder = fresh(arms, tmp_path / "reports")
    made = document(folder)
    assert (status, made.verdict) == (3, "error")
    assert made.cases == []
    assert made.details["tests"] == []
    assert any(note.startswith("confounded: max_num_seqs: 4 against 2") for note in made.notes)
    assert {row.arm for row in rows(folder)} == {"reference"}
    assert "max_num_seqs" in (folder / "report.txt").read_text()


def test_other_questions_in_one_arm_are_confounded(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data change under a running comparison."""
    from dataclasses import replace

    load, calls = Selection.load, []

    def changed(self, comparison, task):  # type: ignore[no-untyped-def]
        calls.append(task)
        return load(self, replace(comparison, seed=len(calls) // 3), task)

    monkeypatch.setattr(Selection, "load", changed)
    status, folder = fresh(arms_file(tmp_path, tiny_model), tmp_path / "reports")
    made = document(folder)
    assert len(calls) == 3
    assert (status, made.verdict) == (3, "error")
    assert any("questions" in note and "confounded" in note for note in made.notes)
    assert made.cases == []


def test_prompts_longer_than_the_context_are_no_wrong_answers(tmp_path: Path, tiny_model: Path) -> None:
    status, folder = fresh(arms_file(tmp_path, tiny_model, lengths="64"), tmp_path / "reports")
    made = document(folder)
    assert {row.failure for row in rows(folder)} == {"context"}
    assert (status, made.verdict) == (2, "undecided")
    assert not [c for c in made.cases if c.verdict == "fail"]
    assert [(row["failed"], row["score"], row["unparsed"]) for row in made.details["scores"]] == [
        (1, None, None)
    ] * 2


def test_eager_against_inductor(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", layers=1)
    arms = arms_file(
        tmp_path, model, "engine_args.backend", 'engine_args = {backend = "eager"}',
        'engine_args = {backend = "inductor"}',
    )  # fmt: skip
    status, folder = fresh(arms, tmp_path / "reports", "--k", 1)
    made = document(folder)
    assert made.verdict in ("pass", "undecided")
    assert status in (0, 2)
    assert [made.details["arms"][arm]["backend"] for arm in ("reference", "candidate")] == [
        "eager",
        "inductor",
    ]
    assert any(
        line.startswith("backend: eager against inductor") for line in made.details["declared_differences"]
    )


def test_ready_arms_files_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert lockstep("--list") == 0
    assert "offline" in capsys.readouterr().out
