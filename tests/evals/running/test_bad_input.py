"""Tests of bad input: each ends in one line that names the remedy and exit status 3, before an engine
starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_run import arms_file, fresh, lockstep

from evals.running import session


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine that is opened is too late."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))

    def refuse(*_: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(session, "opened", refuse)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line on stderr; nothing else may look like an error."""
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "0"], "--limit must be at least 1, not 0"),
        (["--limit", "-3"], "--limit must be at least 1, not -3"),
        (["--k", "0"], "--k must be at least 1, not 0"),
        (["--k", "many"], "invalid int value"),
        (["--forced-tokens", "-1"], "--forced-tokens must not be negative"),
        (["--tasks", "mmlu"], "has no task 'mmlu'; it has aime25"),
        (
            ["--data", "/nowhere"],
            "data directory /nowhere does not exist; give 'hub', 'mirrored' or a directory",
        ),
        (["--report-dir", "/dev/null"], "cannot write --report-dir /dev/null"),
        (["--json", "/nowhere/out.json"], "cannot write --json /nowhere/out.json"),
        (["--junit", "/dev/null/x"], "cannot write --junit /dev/null/x"),
    ],
)
def test_options(
    words: list[str], message: str, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lockstep("--report-dir", tmp_path / "r", "--arms", arms_file(tmp_path, tiny_model), *words) == 3
    assert message in said(capsys)


def test_an_unwritable_output_leaves_no_report_folder(tmp_path: Path, tiny_model: Path) -> None:
    reports = tmp_path / "reports"
    lockstep(
        "--arms", arms_file(tmp_path, tiny_model), "--report-dir", reports, "--json", "/nowhere/out.json"
    )
    assert not reports.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("engine_args = {row = 4}", "unknown engine argument 'row'; did you mean 'rows'?"),
        ('engine_args = {backend = "inductorr"}', "backend must be one of eager, inductor, not 'inductorr'"),
        (
            'engine_args = {dtype = "float31"}',
            "dtype must be one of float32, bfloat16, float16, not 'float31'",
        ),
        ('engine_args = {device = "tpu"}', "device must be one of cpu, cuda, not 'tpu'"),
        ('engine_args = {rows = "4"}', "rows must be an integer, not '4'"),
        ("engine_args = {rows = 0}", "rows and lengths must be at least 1"),
        ("engine_args = {lengths = []}", "rows and lengths must be at least 1"),
        ('engine_args = {lengths = ["a"]}', "lengths[0] must be an integer"),
        ('model = "/nowhere/model"', "/nowhere/model holds no model (no config.json)"),
    ],
)
def test_engine_arguments_of_the_candidate_are_checked_before_the_reference_runs(
    arguments: str, message: str, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factor = "model" if arguments.startswith("model") else f"engine_args.{arguments.split('{')[1].split()[0]}"
    arms = arms_file(tmp_path, tiny_model, factor, candidate=arguments)
    assert fresh(arms, tmp_path / "reports")[0] == 3
    line = said(capsys)
    assert message in line
    assert "candidate" in line


def test_one_replicate_shows_no_noise(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = arms_file(tmp_path, tiny_model)
    arms.write_text(arms.read_text().replace("replicates = 2", "replicates = 1"))
    assert lockstep("--arms", arms, "--report-dir", tmp_path / "reports") == 3
    assert "replicates must be at least 2" in said(capsys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no arms file"),
        ("factor = [", "is not valid TOML"),
        ('factor = "none"\nwhat = 1\n', "unknown key 'what'"),
        ('factor = "none"\n', "there is no table [arms.reference]"),
    ],
)
def test_arms_files(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = tmp_path / "bad.toml"
    if text is not None:
        arms.write_text(text)
    assert lockstep("--arms", arms, "--report-dir", tmp_path / "reports") == 3
    assert message in said(capsys)


def data_folder(folder: Path, digest: str) -> Path:
    folder.mkdir()
    row = {"problem": "1 + 1?", "answer": "2"}
    (folder / "aime25-own.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "manifest.json").write_text(json.dumps({"files": {"aime25-own.jsonl": digest}}))
    return folder


def test_data_that_changed(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_folder(tmp_path / "data", "0" * 64)
    assert fresh(arms_file(tmp_path, tiny_model), tmp_path / "reports", "--data", data)[0] == 3
    line = said(capsys)
    assert "has SHA-256" in line
    assert "0000" in line
    assert "download" in line


def test_an_empty_data_folder(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    assert fresh(arms_file(tmp_path, tiny_model), tmp_path / "reports", "--data", tmp_path / "data")[0] == 3
    assert "neither" in (line := said(capsys))
    assert "manifest.json" in line


def test_the_hub_offline(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    assert fresh(arms_file(tmp_path, tiny_model), tmp_path / "reports", "--data", "hub")[0] == 3
    assert "cannot reach the hub" in (line := said(capsys))
    assert "--data mirrored" in line


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lockstep("--resume", tmp_path) == 3
    assert "cannot resume" in (line := said(capsys))
    assert "report folder of a run of evals" in line
    (tmp_path / "selection.json").write_text('{"tasks": 3}')
    assert lockstep("--resume", tmp_path) == 3
    assert "cannot resume" in said(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["--limit", "3"],
        ["--arms", "offline"],
        ["--tasks", "mrcr"],
        ["--k", "2"],
        ["--data", "hub"],
        ["--forced-tokens", "0"],
    ],
)
def test_resume_takes_no_other_selection(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lockstep("--resume", tmp_path, *words) == 3
    assert f"leave out {words[0]}" in said(capsys)
