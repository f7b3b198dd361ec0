"""Cases under a fake compute-sanitizer: what it reports is a finding of the right case, and everything that
goes wrong with it is a doubt, never a pass."""

import subprocess

import pytest

from tests.validation.sanitize.conftest import CRASHES, QUANTISE, QUANTISE_NAN, RAISES, ROUTE
from validation.sanitize.blame import tool_of, worst
from validation.sanitize.tools import TOOLS


def verdicts(examination):
    return {result.case: result.verdict for result in examination.results}


def test_real_cases_without_report_pass_where_the_planted_fault_was_seen(examine):
    names = tuple(tool.name for tool in TOOLS)
    done = examine({}, cases=[QUANTISE], tools=names, real=True)
    assert {(tool_of(r), r.verdict) for r in done.results} == {(name, "pass") for name in names}
    assert [control["flagged"] for control in done.controls] == [1, 1, 1, 1]
    assert done.results[0].kernels == ["mx_quantize_kernel"]


def test_a_planted_fault_that_goes_unnoticed_leaves_everything_undecided(examine):
    done = examine({"planted": []}, cases=[QUANTISE])
    assert verdicts(done) == {QUANTISE: "undecided"}
    assert "did not report its planted fault" in done.results[0].note
    assert done.controls[0]["flagged"] == 0


def test_a_report_is_a_finding_of_the_case_that_is_reported_alone(examine):
    done = examine({"report": {"memcheck": ["nan", "mx_quantize_kernel"]}})
    assert verdicts(done) == {QUANTISE: "pass", QUANTISE_NAN: "fail", ROUTE: "pass"}
    (finding,) = done.results[1].findings
    assert (finding.op, finding.output, finding.statistic) == (
        "mx_quantize",
        "mx_quantize_kernel",
        "memcheck",
    )
    assert "thread (127,0,0) of block (0,0,0), address 0x7f3c7ec000fc" in finding.where
    assert finding.replay == f"lockstep sanitize --tool memcheck --provider triton --case {QUANTISE_NAN}"


def test_a_kernel_that_one_case_launched_needs_no_second_run(examine, tmp_path):
    done = examine({"report": {"racecheck": ["route", "route_kernel"]}}, tools=("racecheck",))
    assert verdicts(done) == {QUANTISE: "pass", QUANTISE_NAN: "pass", ROUTE: "fail"}
    assert list(tmp_path.glob("*-alone.job")) == []


def test_a_tool_without_an_end_is_killed_with_its_children(examine):
    done = examine({"do": "hang"}, cases=[QUANTISE], limit=3.0)
    assert verdicts(done) == {QUANTISE: "undecided"}
    assert done.results[0].note == "memcheck: no end within 3 s, killed after 0 of 1"
    left = subprocess.run(["pgrep", "-f", "sleep 1000"], capture_output=True, text=True).stdout
    assert left == ""


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("die", "the tool wrote no summary"),
        ("silence", "the tool wrote no summary"),
        ("trouble", "Errors might go undetected"),
    ],
)
def test_a_tool_that_goes_wrong_proves_nothing(examine, do, words):
    done = examine({"do": do}, cases=[QUANTISE])
    assert verdicts(done) == {QUANTISE: "undecided"}
    assert words in done.results[0].note


def test_a_case_that_raises_is_an_error_and_runs_under_no_tool(examine, tmp_path):
    done = examine({}, cases=[RAISES, QUANTISE])
    assert verdicts(done) == {RAISES: "error", QUANTISE: "pass"}
    assert done.results[0].note == "without a tool: raised ValueError"
    assert RAISES not in next(tmp_path.glob("*-memcheck.job")).read_text()


def test_a_case_that_ends_its_process_costs_only_itself(examine):
    done = examine({}, cases=[QUANTISE, QUANTISE_NAN, CRASHES, QUANTISE, ROUTE, ROUTE])
    assert verdicts(done) == {QUANTISE: "pass", QUANTISE_NAN: "pass", CRASHES: "error", ROUTE: "pass"}
    note = next(r.note for r in done.results if r.case == CRASHES)
    assert "ended with exit status 5 after 1 of" in note


def test_the_verdict_is_the_worst_and_none_is_undecided(examine):
    done = examine({"report": {"memcheck": ["nan", "mx_quantize_kernel"]}})
    assert worst(done.results) == "fail"
    assert worst([]) == "undecided"
