"""The command ``lockstep sync``: exit status, bad input, what it prints and writes."""

import json
from pathlib import Path

import pytest

from validation import cli
from validation.errors import UserError
from validation.sync import faults, verify
from validation.sync.fault import Fault
from validation.sync.setting import Setting

FEW = ["sync", "--ranks", "2", "--batches", "8", "64"]


def test_a_safe_protocol_passes_with_all_planted_faults_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sync.json"
    assert cli.main([*FEW, "--protocol", "tail", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "PASS: 2 of 2 runs proved safe" in printed
    assert f"{len(faults.FAULTS)} of {len(faults.FAULTS)} planted faults found" in printed
    document = json.loads(path.read_text())
    assert document["verdict"] == "pass"
    assert all(control["found"] and control["trace"] for control in document["controls"])


def test_an_unsafe_pattern_fails_with_its_diagram_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sync.json"
    assert cli.main([*FEW, "--protocol", "tail", "--moe-layers", "4", "--json", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "rank 0   rank 1" in printed
    assert "freshness: " in printed
    (first, *_) = json.loads(path.read_text())["cases"]
    (finding,) = first["findings"]
    assert finding["layer"] == "sync"
    assert cli.main(finding["replay"].split()[1:]) == 1


def test_a_planted_fault_that_is_not_found_leaves_the_run_undecided(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = Fault("harmless", "F35", Setting(2, "R", (8,), targets=("ring",)))
    monkeypatch.setattr(faults, "FAULTS", (harmless,))
    assert cli.main([*FEW, "--protocol", "front"]) == 2
    assert "NOT FOUND" in capsys.readouterr().out


def test_a_program_too_large_to_explore_is_walked_and_stays_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "MOST_EVENTS", 10)
    monkeypatch.setattr(verify, "WALKS", 1)
    assert cli.main([*FEW, "--protocol", "front"]) == 2


def test_one_fault_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sync", "--fault", "clears_next_stage"]) == 0
    printed = capsys.readouterr().out
    assert "B123" in printed
    assert "*------->o" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--protocol", "nothing"], "no exchange 'nothing'; there are oproj_one_shot"),
        (["--layers", ""], "at least 1 layer"),
        (["--moe-layers", "0"], "at least 1 layer with experts"),
        (["--moe-layers", "100000"], "100001 layers: at most 256"),
        (["--ranks", "1"], "2 to 16 ranks"),
        (["--layers", "DQ"], "no layer 'Q'"),
        (["--batches", "0"], "1 to 64 rows"),
        (["--fault", "nothing"], "no planted fault 'nothing'"),
        (["--protocol", "small_batch_tp8", "--batches", "64"], "no such step uses small_batch_tp8"),
        (["--json", "/nowhere/x.json"], "cannot write --json"),
    ],
)
def test_bad_input_is_one_line_and_status_3(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sync", *words]) == 3
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_list_names_protocols_sentinels_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sync", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "sentinel 0x80000000, 3 x moe, re-armed by next MoE layer's tail, deferred" in printed
    assert "F35 clears_next_stage B123" in printed


def test_a_full_disk_costs_the_file_and_not_what_was_proved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(text: str, path: Path) -> None:
        raise UserError(f"cannot write {path}: no space left on device")

    monkeypatch.setattr("validation.report.document.save", full)
    words = [*FEW, "--protocol", "oproj_one_shot", "--json", str(tmp_path / "r.json")]
    assert cli.main(words) == 3
    said = capsys.readouterr()
    assert "runs proved safe" in said.out
    assert "no space left on device" in said.err
    assert said.err.strip().count("\n") == 0


def test_what_was_proved_before_an_interrupt_is_shown_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from validation.sync import verify

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "find", interrupted)
    words = [*FEW, "--protocol", "oproj_one_shot", "--json", str(tmp_path / "r.json")]
    assert cli.main(words) == 130
    said = capsys.readouterr()
    assert "UNDECIDED: " in said.out
    assert "runs proved safe" in said.out
    assert said.err.strip().endswith("were not examined")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "undecided"
