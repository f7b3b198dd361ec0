"""Ranks as processes end every step with the same bits, and one flipped bit is named with its step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import children, eventually, running
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


def _started(tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A long walk of two ranks, and the ranks' process ids (without the tracker of their resources)."""
    words = [sys.executable, "-m", "validation", "step", "--ranks", "2", "--steps", "100000"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(words, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def walking() -> bool:
        return len(children(parent.pid, "spawn_main")) == 2 and len(list(tmp_path.glob("*/store"))) == 1

    if not eventually(walking, 300):
        parent.kill()
        raise AssertionError("no ranks")
    return parent, children(parent.pid, "spawn_main")


@pytest.mark.stress
@pytest.mark.parametrize(
    ("victim", "number", "status"),
    [("rank", signal.SIGKILL, 3), ("parent", signal.SIGTERM, 130), ("parent", signal.SIGKILL, -9)],
)
def test_no_rank_outlives_a_walk_that_is_ended(
    victim: str, number: signal.Signals, status: int, tmp_path: Path
) -> None:
    parent, ranks = _started(tmp_path)
    os.kill(ranks[1] if victim == "rank" else parent.pid, number)
    said = parent.communicate(timeout=300)[1]
    assert parent.returncode == status
    if victim == "rank":
        assert "lockstep: rank 1 ended before its walk: process 1 terminated with signal SIGKILL" in said
        assert "mistake in Lockstep" not in said
    assert eventually(lambda: not any(running(pid) for pid in ranks))
    if number != signal.SIGKILL or victim == "rank":
        assert not list(tmp_path.glob("*/store"))
