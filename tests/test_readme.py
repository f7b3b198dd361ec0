"""README stays true: its plug-in is short and passes, and a mistake in it is found; its commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def plugin() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return block


def judged(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    words = [sys.executable, "-m", "validation", "kernels", "--plugin", "mine.py", "--device", "cpu"]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=120)


def test_the_plugin_of_the_readme_has_fewer_than_25_lines() -> None:
    assert len([line for line in plugin().splitlines() if line.strip()]) < 25


def test_the_plugin_of_the_readme_passes(tmp_path: Path) -> None:
    done = judged(tmp_path, plugin())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("+ a.dt_bias", "+ 0 * a.dt_bias", "state"),
        ("(o.square().mean(-1, True) + a.eps)", "(o.square().mean(-1, True) + 1e-6)", "out"),
        ("if slot <= 0:", "if slot < 0:", "slot 0"),
    ],
)
def test_a_mistake_in_it_is_found(tmp_path: Path, right: str, wrong: str, words: str) -> None:
    assert right in plugin()
    done = judged(tmp_path, plugin().replace(right, wrong))
    assert done.returncode == 1, done.stdout + done.stderr
    assert words in done.stdout
    assert "lockstep replay mine/kda_decode" in done.stdout


def test_every_session_and_command_it_names_exists() -> None:
    from validation.cli import COMMANDS

    sessions = set(re.findall(r"nox -s (\w+)", README))
    defined = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    assert sessions
    assert sessions <= defined
    named = set(re.findall(r"lockstep (kernels|replay|qualify|calibrate|\w+(?= --|`))", README))
    assert named <= {command.name for command in COMMANDS}
