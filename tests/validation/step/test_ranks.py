"""Ranks as processes end every step with the same bits, and one flipped bit is named with its step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


def _started(tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A long walk of two ranks, and the ranks' process ids."""
    words = [sys.executable, "-m", "validation", "step", "--ranks", "2", "--steps", "100000"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(words, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 300
    while time.monotonic() < until:
        ranks = _children(parent.pid)
        if len(ranks) == 2 and len(list(tmp_path.glob("*/store"))) == 1:
            return parent, ranks
        time.sleep(0.1)
    raise AssertionError("no ranks")


def _children(pid: int) -> list[int]:
    """Spawned processes of a process, without the tracker of its resources."""
    words = ["ps", "--ppid", str(pid), "-o", "pid=,args="]
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return sorted(int(line.split()[0]) for line in lines if "spawn_main" in line)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


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
    until = time.monotonic() + 120
    while not all(_gone(pid) for pid in ranks) and time.monotonic() < until:
        time.sleep(0.1)
    assert all(_gone(pid) for pid in ranks)
    if number != signal.SIGKILL or victim == "rank":
        assert not list(tmp_path.glob("*/store"))
