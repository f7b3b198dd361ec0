"""``lockstep sanitize``: without a GPU an error in one line, never a pass; what it would do can be listed."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from tests.validation.sanitize.conftest import QUANTISE, QUANTISE_NAN, ROUTE
from validation.cli import main
from validation.commands import sanitize
from validation.commands.sanitized import show
from validation.report.document import from_json, to_json
from validation.report.junit import to_junit
from validation.report.terminal import as_text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_an_error_in_one_line(capsys):
    assert main(["sanitize"]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs a GPU" in said
    assert "nothing was checked" in said


def test_without_the_tool_it_is_an_error_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sanitize, "_need_gpu", lambda: None)
    assert main(["sanitize", "--sanitizer", str(tmp_path / "absent")]) == 3
    assert "no executable file" in capsys.readouterr().err


def test_the_list_says_what_no_tool_sees_and_which_cases_run(capsys):
    assert main(["sanitize", "--list", "--op", "route"]) == 0
    said = capsys.readouterr().out
    assert said.count("cannot see:") == 4
    assert "races in global memory" in said
    assert ROUTE in said


def test_it_prints_reports_doubts_and_the_planted_faults(examine, monkeypatch):
    monkeypatch.setattr("validation.execution.environment.device_name", lambda device: "a GPU")
    tools = ["memcheck", "racecheck"]
    told = {"report": {"memcheck": ["nan", "mx_quantize_kernel"]}, "planted": ["memcheck"]}
    done = examine(told, cases=[QUANTISE, QUANTISE_NAN], tools=tools)
    document = sanitize._document("lockstep sanitize", done, False)
    assert document.verdict == "fail"
    text = io.StringIO()
    show(document, Console(file=text, width=110), "", tools)
    said = text.getvalue()
    assert "mx_quantize      2  fail      undecided" in said
    assert "mx_quantize_kernel: thread (127,0,0) of block (0,0,0), address 0x7f3c7ec000fc" in said
    assert "--tool memcheck --provider triton --case" in said
    assert "planted fault for racecheck: MISSED" in said
    assert "FAIL: 2 cases under 2 tools" in said
    assert from_json(to_json(document)).cases == document.cases
    for report in (to_junit(document), as_text(document)):
        assert "mx_quantize_kernel" in report


def test_an_interrupted_run_is_no_pass(monkeypatch):
    monkeypatch.setattr("validation.execution.environment.device_name", lambda device: "a GPU")
    passed = SimpleNamespace(verdict="pass", findings=[])
    done = SimpleNamespace(cases=[], results=[passed], controls=[], provider="triton")
    assert sanitize._document("lockstep sanitize", done, True).verdict == "undecided"
    assert sanitize._document("lockstep sanitize", done, False).verdict == "pass"
