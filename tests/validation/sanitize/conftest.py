"""Examinations under a fake compute-sanitizer, of a fake program or of real cases in Triton's interpreter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from validation.contracts.contract import Case
from validation.sanitize.examine import Examination
from validation.sanitize.tools import TOOLS
from validation.sanitize.watched import PROGRAM, Watch

ROOT = Path(__file__).parents[3]
QUANTISE = "mx_quantize:rows=1,width=32,rule=1:typical:40"
QUANTISE_NAN = "mx_quantize:rows=3,width=96,rule=0:nan:12"
ROUTE = "route:rows=2,experts=16:typical:54"
RAISES = "route:rows=2,experts=16:typical:1"
CRASHES = "route:rows=2,experts=16:typical:2"
FAKE_PROGRAM = (sys.executable, str(Path(__file__).with_name("fake_program.py")))


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """The executable."""
    script = tmp_path / "compute-sanitizer"
    source = Path(__file__).with_name("fake_sanitizer.py").read_text(encoding="utf-8")
    script.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def examine(fake, tmp_path, monkeypatch):
    """A function: what the fake is told, and the cases -> the finished examination."""

    def run(told: dict, cases=(QUANTISE, QUANTISE_NAN, ROUTE), tools=("memcheck",), limit=60.0, real=False):
        monkeypatch.setenv("FAKE_ROOT", str(ROOT))
        monkeypatch.setenv("FAKE_SANITIZER", json.dumps({"planted": list(tools)} | told))
        chosen = [tool for tool in TOOLS if tool.name in tools]
        watch = Watch(fake, tmp_path, limit, "cpu", PROGRAM if real else FAKE_PROGRAM)
        examination = Examination("triton", [], [Case.parse(c) for c in cases], chosen, watch, 2)
        examination.run(lambda: None)
        return examination

    return run
