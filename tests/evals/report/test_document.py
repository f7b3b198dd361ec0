"""Tests of the results document and its text: verdicts, what confounds, and values that are not there."""

from __future__ import annotations

import io
import math
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from judged import comparison, everything, right
from rich.console import Console

from evals.arms.guard import Comparability, Difference
from evals.judging.controls import Control
from evals.report.document import document
from evals.report.show import as_text, show
from validation.report.document import from_json, to_json
from validation.report.junit import to_junit
from validation.report.schema import Document
from validation.variance.decision import Decision, around, decide
from validation.variance.result import Test, nothing

NOTICED = [Control("aime25", "a drop of 30 points", True)]
EQUAL = decide(
    "aime25", Test("equivalence (TOST)", low=-0.01, high=0.01, unit="score"), math.nan, around(0, 0.05)
)
SEEN = decide("aime25", Test("paired difference", p_value=1e-9, effect=0.009, unit="score"), 1e-8)
APART = decide("forced", Test("systematic difference (crossed)", p_value=1e-9, effect=1.0), 1e-8)
LOST = decide("forced", nothing("completeness of the walks", "gone"), math.nan, error="gone")


def made(decided: list[Decision], comparability: Comparability | None = None, **details: Any) -> Document:
    return document(
        "cmd", comparison(), decided, NOTICED, comparability or Comparability(), {}, details, "the replay"
    )


@pytest.mark.parametrize(
    ("decided", "verdict", "cases"),
    [
        ([EQUAL], "pass", ["pass"]),
        ([EQUAL, SEEN], "pass", ["pass", "pass"]),
        ([EQUAL, APART], "fail", ["pass", "fail"]),
        ([EQUAL, LOST], "error", ["pass", "error"]),
        ([EQUAL, APART, LOST], "fail", ["pass", "fail", "error"]),
        (
            [decide("aime25", nothing("equivalence of scores", "none"), math.nan, around(0, 1))],
            "undecided",
            ["undecided"],
        ),
    ],
)
def test_verdict_of_the_run_and_of_each_case(decided: list[Decision], verdict: str, cases: list[str]) -> None:
    result = made(decided)
    assert result.verdict == verdict
    assert [case.verdict for case in result.cases] == cases
    assert from_json(to_json(result)) == result


def test_what_confounds_outranks_a_difference() -> None:
    other = Difference("device_count", "16", "8", "more devices are faster", "X1")
    result = made([APART], Comparability([other], [], ["a caveat"]))
    assert result.verdict == "error"
    assert result.notes == [
        "confounded: device_count: 16 against 8; more devices are faster [X1]",
        "a caveat",
    ]


def test_a_finding_names_its_test_its_p_value_and_its_replay() -> None:
    (finding,) = made([APART]).findings
    assert (finding.statistic, finding.limit, finding.replay) == (APART.test.name, 1e-8, "the replay")
    assert finding.ratio > 1
    assert "p = 1e-08" in finding.message


def test_nothing_in_the_document_is_lost_in_junit() -> None:
    judged = everything(right(0.8, 1), right(0.4, 2))
    result = document(
        "cmd", comparison(), judged.decided, judged.planted, Comparability(), {}, judged.details, "r"
    )
    root = Xml.fromstring(to_junit(result))
    suites = [s for s in root if " by " in str(s.get("name"))]
    assert sum(len(suite) for suite in suites) == len(judged.decided)
    assert (
        sum(len(suite.findall(".//failure")) for suite in suites)
        == len([c for c in result.cases if c.verdict == "fail"])
        > 0
    )


def test_the_text_says_verdict_tests_scores_and_controls() -> None:
    judged = everything(right(0.8, 1), right(0.4, 2))
    result = document(
        "cmd", comparison(), judged.decided, judged.planted, Comparability(), {}, judged.details, "r"
    )
    text = as_text(result)
    assert "FAIL" in text.splitlines()[-1]
    assert "paired difference" in text
    assert "different" in text
    assert "2 of 2 planted differences noticed" in text
    assert f"{100 * judged.details['scores'][0]['score']:.1f}" in text


def test_a_report_without_values_is_shown() -> None:
    """A server that tells no batch size, an arm without replies."""
    speed = {"arm": "candidate", "task": "aime25", "batch": "unknown", "decode_median": None, "output": 3.0}
    nan = dict.fromkeys(
        ("score", "score_cut_0", "unparsed", "truncated", "failed", "length", "loop"), math.nan
    )
    row = {"task": "aime25", "arm": "candidate", "questions": 2, "repeats": 1, **nan}
    result = made([], speed=[speed], scores=[row])
    assert "unknown" in as_text(result)
    assert "nan" in as_text(result)
    show(made([]), Console(file=io.StringIO()))
    assert from_json(to_json(result)).details["speed"] == [speed]
