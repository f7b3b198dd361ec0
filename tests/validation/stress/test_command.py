"""``lockstep stress`` from the command line: verdicts, bad input, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.processes import PATIENCE, children, eventually, running
from validation.cli import main
from validation.errors import UserError
from validation.stress import memory
from validation.stress.layout import layout
from validation.stress.script import reaches
from validation.sync.kimi_k3 import subject

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_short_run_passes_with_its_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stress", "--exchanges", "30", "--seconds", "300", "--mode", "payloads", "--mode", "canaries"]
    assert main([*words, "--json", "found.json", "--junit", "found.xml"]) == 0
    said = capsys.readouterr().out
    assert "negative controls: 2 of 2 planted faults found" in said
    assert "0 failures: rate below 3/N" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["verdict"] == "pass"
    assert found["details"]["exchanges"] >= 30
    kept = found["details"]["determinism"]
    assert kept["exchanges"]["compared_steps"]["skewed TP8"] >= 1
    assert kept["exchanges"]["compared_steps"]["skewed TP16 DCP"] >= 1
    assert kept["exchanges"]["contract"] in said
    assert kept["decode_steps"]["backends"] == []  # a stage of another mode
    assert {c["provider"] for c in found["controls"]} == {"oproj_not_canonical", "row_too_many"}


def test_a_bound_that_is_out_of_reach_is_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stress", "--reply", "1000", "--seconds", "12", "--mode", "canaries"]
    assert main(words) == 2
    said = capsys.readouterr().out
    assert "exchanges in the time given; about" in said
    assert "s more (--seconds) would do" in said


def test_a_control_that_cannot_fail_makes_the_run_undecided(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from validation.stress import campaign
    from validation.stress.faults import fault_named

    too_short = replace(fault_named("row_too_many"), steps=1)  # it errs in step 1, which is never made
    monkeypatch.setattr(campaign, "controls", lambda modes, every: [too_short])
    assert main(["stress", "--exchanges", "10", "--seconds", "300", "--mode", "canaries"]) == 2
    said = capsys.readouterr().out
    assert "planted fault row_too_many was not found: canaries proves nothing" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "1"], "--ranks 1: 2 to 4 on cpu"),
        (["--ranks", "9"], "--ranks 9: 2 to 4 on cpu"),
        (["--mode", "weather"], "no stress mode 'weather'; there are delays"),
        (["--fault", "bad_luck"], "no planted fault 'bad_luck'; see lockstep stress --list"),
        (["--fault", "stale_epoch", "--json", "f.json"], "--fault prints and writes no document"),
        (["--layers", "DX"], "no layer 'X'"),
        (["--batches", "65"], "--batches 65"),
        (["--layers", ""], "--layers: a step has at least 1 layer"),
        (["--lanes", "113"], "--lanes 113"),
        (["--lanes", "0"], "--lanes 0"),
        (["--reply", "0"], "--reply 0: from 1"),
        (["--reply", "1" + 400 * "0"], "tokens"),
        (["--exchanges", "-5"], "--exchanges -5: from 1"),
        (["--exchanges", "1" + 400 * "0"], "exchanges can be asked for"),
        (["--risk", "nan", "--reply", "5"], "--risk nan"),
        (["--risk", "inf"], "--risk inf"),
        (["--risk", "1e-320", "--reply", "5"], "from 1e-12"),
        (["--risk", "1e-12", "--reply", "5"], "--risk 1e-12: from 1"),
        (["--seconds", "nan"], "'nan' is no number of seconds above 0"),
        (["--seed", "-1"], "--seed"),
        (["--json", "/nowhere/at/all.json"], "cannot write --json"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", *words]) == 3
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="here there is a GPU")
def test_no_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", "--device", "cuda"]) == 3
    assert "no CUDA device here" in capsys.readouterr().err


def test_more_ranks_than_gpus_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCKSTEP_DEVICE", "cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(["stress", "--device", "cuda", "--ranks", "4"]) == 3
    assert "--ranks 4: there are 2 GPUs here, and a rank needs its own" in capsys.readouterr().err


def test_no_symmetric_memory_is_one_line() -> None:
    with pytest.raises(UserError, match=r"no symmetric memory between these GPUs: .*one host"):
        memory.on_gpu(layout(reaches(subject()), 2, 1), 0)


def test_too_much_shared_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, size: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(UserError, match="no shared memory for 2 ranks: No space left"):
        memory.create(2, 1, 1000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "validation", "stress", "--seconds", "100"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stderr is not None
    assert run.stderr.readline().startswith("lockstep: real tensors")
    ranks = children(run.pid)
    assert len(ranks) >= 2
    run.send_signal(number)
    assert run.wait(PATIENCE) == 130
    assert eventually(lambda: not any(running(pid) for pid in ranks))


def test_a_parent_that_is_killed_leaves_no_rank(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "validation", "stress", "--seconds", "100", "--mode", "canaries"]
    command += ["--exchanges", "100000"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert run.stderr is not None
    while "pilot" not in (line := run.stderr.readline()):
        assert line, "ended before its pilot"
    time.sleep(2)  # into a run that takes them longer than this test waits
    ranks = children(run.pid)
    run.kill()
    run.wait()
    assert eventually(lambda: not any(running(pid) for pid in ranks))


def test_the_list_names_every_mode_and_fault(capsys: pytest.CaptureFixture[str]) -> None:
    from validation.stress.faults import FAULTS
    from validation.stress.skew import MODES

    assert main(["stress", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(f"mode {mode}: " in said for mode in MODES)
    assert all(fault.name in said for fault in FAULTS)
    for exchange in subject().exchanges.values():
        assert f"exchange {exchange.name}: " in said or exchange.pattern == "local", exchange.name
    assert "exchange dcp_lse: columns to their owner\n" in said
    assert "exchange framework: not run: a collective of the framework" in said
    assert "on one rank alone, and not run: reduced, x_moe" in said


def test_both_contracts_are_in_the_report() -> None:
    from validation.commands.stress_report import determinism, lines
    from validation.report.schema import Document
    from validation.stress.campaign import CONTRACT, Plan, Results
    from validation.stress.repeats import CONTRACT as STEPS_CONTRACT
    from validation.stress.repeats import Repeat

    plan = Plan("cpu", 2, 1, "DKA", 10, 10.0, ("hashes",))
    results = Results(plan, compared={"skewed TP8": 36})
    results.repeats = [
        Repeat("torch", "cpu", 16, noticed=True),
        Repeat("mine", "cpu", 16, parted=["hashes: mine under load parts from its first run at step 3"]),
    ]
    said = list(lines(results, Document("lockstep stress", "fail", {"device": "cpu"}, [])))
    assert f"contract: {CONTRACT}" in said
    assert f"contract: {STEPS_CONTRACT}" in said
    words = "decode steps by torch, 16 of them: bit-equal, twice and under load; a flipped bit is noticed"
    assert words in said
    assert any("mine under load parts from its first run at step 3; a flipped bit is NOT" in x for x in said)
    assert "mine: a flipped bit went unnoticed" in results.doubts
    torch_steps, mine = determinism(results)["decode_steps"]["backends"]
    assert torch_steps["walks"] == ["run again", "under load"]
    assert (torch_steps["parted"], torch_steps["flipped_bit_noticed"]) == ([], True)
    assert mine["parted"]


@pytest.mark.device
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_exchange_and_find_every_fault(tmp_path: Path) -> None:
    """In a process of its own: the device is chosen before triton is imported."""
    command = [sys.executable, "-m", "validation", "stress", "--device", "cuda", "--exchanges", "20000"]
    command += ["--seconds", "200", "--json", "found.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["details"]["exchanges"] >= 20000
    assert all(control["flagged"] for control in found["controls"])
