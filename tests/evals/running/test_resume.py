"""Tests of interruptions: a kill, Ctrl-C, a server that goes away, a damaged part. Nothing is lost or asked
twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_run import (
    ROOT,
    arms_file,
    command_line,
    document,
    environment,
    fresh,
    keys,
    lockstep,
    rows,
    server_arms,
)

from evals.running.progress import Progress

FREE, RERUNS, WALKS = 4, 2, 8


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A run that nobody interrupted."""
    base = tmp_path_factory.mktemp("whole")
    return fresh(arms_file(base, tiny_model), base / "reports")[1]


def same_as(folder: Path, whole: Path) -> None:
    """Every sample once, the same tokens, the same tests and verdict as the run that nobody interrupted."""
    for arm, count in (("reference", FREE + RERUNS + 2 * WALKS // 2), ("candidate", FREE + 2 * WALKS // 2)):
        found, expected = keys(rows(folder), arm), keys(rows(whole), arm)
        assert found.keys() == expected.keys()
        assert len(found) == count
        assert all((found[k].token_ids == expected[k].token_ids).all() for k in found)
    assert document(folder).verdict == document(whole).verdict
    assert document(folder).details["tests"] == document(whole).details["tests"]


@pytest.mark.parametrize(("number", "at"), [(signal.SIGINT, 3), (signal.SIGTERM, 17)])
def test_a_signal_ends_with_130_and_the_line_that_resumes(
    number: signal.Signals, at: int, whole: Path, tmp_path: Path, tiny_model: Path, capsys:
    pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After reply ``at`` of 26: among the reference's answers, and among the candidate's walks."""
    advance, seen = Progress.advance, []

    def counted(self, request, response):  # type: ignore[no-untyped-def]
        advance(self, request, response)
        seen.append(request.key)
        if len(seen) == at:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", counted)
        status, folder = fresh(arms_file(tmp_path, tiny_model), tmp_path / "reports")
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert (status, line) == (130, f"lockstep: interrupted; go on with: lockstep evals --resume {folder}")
    assert len(rows(folder)) == at
    assert not (folder / "results.json").exists()
    again: list[str] = []
    monkeypatch.setattr(Progress, "advance", lambda self, request, response: again.append(request.key))
    assert lockstep("--resume", folder) == 2
    assert len(again) == 26 - at
    same_as(folder, whole)


def test_a_kill_in_the_middle(
    whole: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of a process that runs; the arms file is named relative to a folder in which --resume is not
    called."""
    arms_file(tmp_path, tiny_model)
    words = command_line("--arms", "small.toml", "--limit", 2, "--report-dir", "reports")
    client = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while (
        sum(len(path.read_bytes().splitlines()) for path in tmp_path.glob("reports/*/samples/journal-*")) < 5
    ):
        assert client.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.005)
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    (folder,) = (tmp_path / "reports").iterdir()
    assert 5 <= len(rows(folder)) < 26
    monkeypatch.chdir(ROOT)
    assert lockstep("--resume", folder) == 2
    same_as(folder, whole)


def copied(whole: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    return folder


def test_a_part_cut_short_is_set_aside_and_asked_again(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(whole, tmp_path)
    (part,) = (folder / "samples").glob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:1000])
    assert lockstep("--resume", folder) == 2
    assert "damaged part set aside" in capsys.readouterr().err
    assert list((folder / "samples").glob("*.damaged"))
    same_as(folder, whole)


def test_other_arms_are_refused_and_the_samples_kept(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Progress, "advance", lambda *_: signal.raise_signal(signal.SIGINT))
    arms = arms_file(tmp_path, tiny_model)
    status, folder = fresh(arms, tmp_path / "reports")
    assert status == 130
    assert len(rows(folder)) == 1
    arms.write_text(arms.read_text().replace("max_tokens = 12", "max_tokens = 13"))
    capsys.readouterr()
    assert lockstep("--resume", folder) == 3
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "made with another configuration" in line
    assert "max_tokens" in line
    assert len(rows(folder)) == 1


def marked(tmp_path: Path, crash: int) -> str:
    return f'MARK = "{tmp_path}/crashed"\nCRASH = "{crash}"'


@pytest.mark.parametrize(("crash", "arm"), [(7, "reference"), (13, "reference")])
def test_a_server_that_dies_is_named_and_resume_completes(
    crash: int, arm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL of the server: among the answers (4 requests of the probe come first), and among the walks."""
    status, folder = fresh(server_arms(tmp_path, common=marked(tmp_path, crash)), tmp_path / "reports")
    lines = capsys.readouterr().err.strip().splitlines()
    assert status == 3
    assert not [line for line in lines if "Traceback" in line]
    assert lines[-1].startswith(f"lockstep: {arm}: the server ended: killed by signal 9")
    assert lines[-1].endswith(f"go on with --resume {folder}")
    assert "the toy engine has died" in lines[-1]
    before = {(row.arm, row.replicate, row.key): row.time for row in rows(folder)}
    assert before
    assert all(row.ok for row in rows(folder))
    assert lockstep("--resume", folder) in (0, 2)
    found = rows(folder)
    assert {
        (row.arm, row.replicate, row.key) for row in found if row.time in before.values()
    } == before.keys()
    assert len(keys(found, "reference")) == FREE + RERUNS + WALKS
    assert len(keys(found, "candidate")) == FREE + WALKS
    assert document(folder).details["forced"]["lost"] == {}


def test_a_server_that_does_not_start_shows_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The candidate's: the reference's samples stay."""
    arms = server_arms(
        tmp_path,
        factor="environment.TOY",
        reference='environment = {TOY = "x=1"}',
        candidate='environment = {TOY = "die=7"}',
    )
    status, folder = fresh(arms, tmp_path / "reports")
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 3
    assert "candidate" in line
    assert "did not start: exit status 7" in line
    assert "ValueError: no such toy" in line
    assert str(folder / "candidate.log") in line
    assert "--resume" in line
    assert len(keys(rows(folder), "reference")) == FREE + RERUNS + WALKS


def test_a_server_whose_model_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = fresh(server_arms(tmp_path, '"switch_after=6"'), tmp_path / "reports")
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 3
    assert "the server's model changed from toy" in line
    assert "to other" in line


def test_a_server_without_the_plug_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, folder = fresh(server_arms(tmp_path, '"plugin=0"'), tmp_path / "reports")
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 3
    assert "pip install --no-deps evals/forced/vllm_plugin" in line
    assert line.startswith("lockstep: reference: the server does not force tokens")
    assert rows(folder) == []


def test_a_server_that_ignores_seeds_is_seen(tmp_path: Path) -> None:
    _, folder = fresh(server_arms(tmp_path, '"honest=0"'), tmp_path / "reports")
    assert [document(folder).details["arms"][arm]["seed"] for arm in ("reference", "candidate")] == [
        "ignored"
    ] * 2


def test_an_engine_that_changed_between_two_sessions_is_confounded(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of a package after --resume: one arm's samples come from two configurations."""
    from evals.engines import in_process

    folder, facts = copied(whole, tmp_path), in_process.InProcessEngine.facts
    monkeypatch.setattr(
        in_process.InProcessEngine, "facts", lambda self: {**facts(self), "version_torch": "9"}
    )
    assert lockstep("--resume", folder) == 3
    assert any(
        "version_torch" in note and "changed during the run" in note for note in document(folder).notes
    )
