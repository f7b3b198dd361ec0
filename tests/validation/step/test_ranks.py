"""Ranks as processes end every step with the same bits, and one flipped bit is named with its step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from validation.cli import main
from validation.step.ranks import Job, run_ranks

ROOT = Path(__file__).parents[3]


def test_two_processes_agree_and_a_flipped_bit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "--ranks", "2", "--steps", "5", "--provider", "torch"]) == 0
    assert "PASS: 2 ranks by torch, 5 steps" in capsys.readouterr().out
    found = run_ranks(Job(2, 5, "torch", fault=(1, 3)))
    assert {d.step for d in found} == {3}
    assert {d.where for d in found} == {"rank 1"}
    assert all(d.message == "rank 1 parts from rank 0" for d in found)


def test_processes_of_torchrun_are_the_ranks() -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "validation"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*words, "step", "--ranks", "2", "--steps", "4"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.count("PASS: 2 ranks by torch, 4 steps") == 1


def test_other_numbers_of_ranks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "--ranks", "3"]) == 3
    assert "--ranks 3: one of 2, 4, 8" in capsys.readouterr().err
