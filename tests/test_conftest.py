"""The tests' own ground: seeds are set, and a run that collects nothing fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


DRAWN: list[torch.Tensor] = []


@pytest.mark.parametrize("attempt", [1, 2])
def test_every_test_starts_from_the_same_seed(attempt: int) -> None:
    DRAWN.append(torch.rand(4))
    assert torch.equal(DRAWN[0], DRAWN[-1])
    assert torch.initial_seed() == int(os.environ.get("LOCKSTEP_TEST_SEED", "0"))


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1


def test_nothing_collected_fails(tmp_path: Path) -> None:
    (tmp_path / "test_empty.py").write_text("def helper(): ...\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    assert "no tests ran" in done.stdout
