"""Documents survive JSON, damaged ones are refused, and the report says what a tired person needs."""

from __future__ import annotations

import io
import json
import math
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from validation.errors import UserError
from validation.execution.verdict import verdict
from validation.report.document import from_json, load, to_json
from validation.report.junit import to_junit
from validation.report.schema import SCHEMA, CaseResult, Document, Element, Finding, Score, ratio
from validation.report.terminal import Screen, as_text, show, state
from validation.report.words import duration, finding_words, score_words

text = st.sampled_from(["", "out", "two\nlines", "bell \x07", "<&\"'>", "é∞", "nan"]) | st.text(max_size=4)
number = st.floats(allow_nan=True) | st.integers(-5, 5).map(float)
scores = st.builds(Score, text, text, number, number, text)
findings = st.builds(
    Finding,
    *[text] * 6,
    number,
    number,
    *[text] * 3,
    worst=st.lists(st.builds(Element, text, number, number), max_size=2),
    known=text,
)
results = st.builds(
    CaseResult,
    text,
    text,
    text,
    st.sampled_from(["pass", "fail", "undecided", "error"]),
    st.lists(scores, max_size=2),
    st.lists(findings, max_size=2),
    st.integers(0, 9),
    st.integers(0, 9),
    mean_squares=st.dictionaries(text, number, max_size=2),
    seconds=number,
    note=text,
)
documents = st.builds(
    Document,
    text,
    st.sampled_from(["pass", "fail", "undecided", "error"]),
    st.dictionaries(text, st.integers() | text, max_size=2),
    st.lists(results, max_size=3),
    skipped=st.dictionaries(text, text, max_size=2),
    notes=st.lists(text, max_size=2),
)


@settings(max_examples=25)
@given(documents)
def test_a_document_round_trips_through_standard_json(document: Document) -> None:
    text_ = to_json(document)
    json.loads(text_, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert to_json(from_json(text_)) == text_
    assert repr(from_json(text_)) == repr(document)  # repr, because NaN differs from itself


@settings(max_examples=12)
@given(documents)
def test_any_document_can_be_reported(document: Document) -> None:
    assert as_text(document).strip().splitlines()[-1].startswith(document.verdict.upper())
    Xml.fromstring(to_junit(document))


DAMAGED = [
    ("", "is damaged"),
    ('{"schema": "lockstep.results/1", "cases": [', "is damaged"),
    ("[]", "is not a results document: it names no schema"),
    ('{"schema": "pytest/1"}', "its schema is 'pytest/1', expected 'lockstep.results/1'"),
    (f'{{"schema": "{SCHEMA}"}}', "document lacks the field 'command'"),
]


@pytest.mark.parametrize(("content", "words"), DAMAGED)
def test_a_damaged_or_foreign_document_is_one_line(content: str, words: str) -> None:
    with pytest.raises(UserError, match=r"r\.json") as caught:
        from_json(content, "r.json")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


CHANGES = [
    ("verdict", "maybe", "document.verdict is 'maybe', not one of pass, fail, undecided, error"),
    ("cases", {}, "document.cases is '{}', not a list"),
    ("cases", [7], r"document.cases\[0\] is not an object"),
    ("seconds", "long", "document.seconds is 'long', not a number"),
    ("colour", "red", "document has an unknown field 'colour'"),
]


@pytest.mark.parametrize(("field", "value", "words"), CHANGES)
def test_wrong_types_are_named_with_their_place(field: str, value: object, words: str) -> None:
    data = json.loads(to_json(Document("c", "pass", {}, []))) | {field: value}
    with pytest.raises(UserError, match=words):
        from_json(json.dumps(data))


def test_a_missing_document_is_one_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=r"cannot read .*: no such file or directory"):
        load(tmp_path / "none.json")


def finding(value: float, limit: float, where: str = "head 5, last 8 of 128 rows", **more: str) -> Finding:
    words = {"statistic": "max_excess", "output": "state", "message": "", "known": ""} | more
    at = ("kernels", "kda_decode", "mine", "kda_decode:requests=2:slow:1")
    return Finding(
        *at, words["statistic"], words["output"], value, limit, where, words["message"], "lockstep replay X",
        known=words["known"],
    )  # fmt: skip


def result(verdict_: str = "pass", *found: Finding, planted: int = 2, caught: int = 2, op: str = "kda_decode") -> CaseResult:  # fmt: skip  # noqa: E501
    scores_ = [Score("state", "max_excess", f.value, f.limit) for f in found] or [
        Score("out", "bias", 1.0, 4.0)
    ]
    return CaseResult(op, "mine", "c", verdict_, scores_, list(found), planted, caught)  # type: ignore[arg-type]


def test_the_report_names_the_worst_and_counts_the_rest() -> None:
    cases = [result(), result("fail", finding(9.0, 3.0), finding(3e4, 3.0, "request 2 only"))]
    shown = as_text(
        Document("lockstep kernels", "fail", {}, cases, {"fla": "needs the package fla"}, seconds=200)
    )
    assert shown.splitlines()[1].split() == [
        "kda_decode",
        "mine",
        "2",
        "10,000",
        "state",
        "max_excess",
        "fail",
    ]
    assert "  state: request 2 only: max excess, 10,000 times its limit\n  lockstep replay X\n" in shown
    assert "and 1 further finding; 1 of 2 cases failed" in shown
    assert "skipped fla: needs the package fla" in shown
    assert shown.splitlines()[-1] == "FAIL: 2 cases, 1 failed, in 3 min"


def test_of_a_walk_the_report_names_what_went_wrong_first() -> None:
    found = [finding(2.0, 1.0, "at first"), finding(9.0, 1.0, "later")]
    for one in found:
        one.layer = "step"
    shown = as_text(Document("lockstep step", "fail", {}, [result("fail", *found)], {}))
    assert "at first" in shown
    assert "later" not in shown


def printed(document: Document, width: int) -> str:
    """The report in a terminal of that width."""
    stream = io.StringIO()
    show(document, Console(file=stream, width=width, color_system=None, highlight=False))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80])
def test_a_huge_score_cuts_no_name_in_a_narrow_terminal(width: int) -> None:
    huge = result("fail", finding(1.8e40, 1.0), op="embedding_lookup")
    huge.provider = "triton_portable"
    shown = printed(Document("c", "fail", {}, [huge]), width)
    (row,) = (line for line in shown.splitlines() if line.startswith("embedding_lookup  triton_portable  "))
    assert {"1.8e+40", "fail"} <= set(row.split())
    assert "\u2026" not in shown
    assert "max excess, 1.8e+40 times its limit" in shown


@pytest.mark.parametrize(
    ("number", "words"), [(12.0, "12"), (1e6, "1,000,000"), (2e6, "2.0e+06"), (1.8e40, "1.8e+40")]
)
def test_numbers_in_tables_are_short(number: float, words: str) -> None:
    assert score_words(Score("out", "excess", number, 1.0)) == words
    assert score_words(Score("out", "bits", number, 0.0)) == f"{words} / 0"


@pytest.mark.parametrize(("columns", "width"), [("", 110), ("72", 72), ("odd", 110)])
def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert Screen(file=io.StringIO()).width == width


def test_a_long_replay_line_is_not_wrapped() -> None:
    long = finding(9.0, 3.0)
    long.replay = "lockstep replay " + "x" * 300
    assert long.replay in as_text(Document("c", "fail", {}, [result("fail", long)]))


def test_findings_in_words() -> None:
    assert (
        finding_words(finding(3.9, 3.0))
        == "state: head 5, last 8 of 128 rows: max excess, 1.3 times its limit"
    )
    crash = finding(1.0, 0.0, statistic="crash", output="", message="the process died: SIGSEGV")
    assert finding_words(crash) == "crash: the process died: SIGSEGV"
    exact = finding(4.0, 0.0, statistic="bits", message="4 of 9 elements differ")
    assert finding_words(exact) == "state: head 5, last 8 of 128 rows: bits (4 of 9 elements differ)"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.25, "0.2 s"), (42, "42 s"), (200, "3 min"), (7200, "2.0 h")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_no_number_is_beyond_every_limit() -> None:
    assert ratio(math.nan, 1.0) == ratio(1.0, 0.0) == math.inf
    assert ratio(0.0, 0.0) == 0.0


KNOWN = finding(9.0, 3.0, known="https://x/1")
VERDICTS = [
    ([result()], "pass", ""),
    ([result(), result("fail", finding(9.0, 3.0))], "fail", ""),
    ([result(), result("fail", KNOWN)], "pass", ""),
    ([result("fail", KNOWN, finding(9.0, 3.0))], "fail", ""),
    ([result("fail")], "fail", ""),
    ([result("error"), result("fail", finding(9.0, 3.0))], "fail", ""),
    ([result(), result("error")], "error", "1 case could not be judged"),
    ([result(), result("undecided", planted=0, caught=0)], "pass", ""),
    ([result("undecided")], "undecided", "kda_decode by mine: nothing decisive"),
    ([result(), result("undecided", op="kda_verify")], "undecided", "kda_verify by mine: nothing decisive"),
    ([result(caught=1)], "undecided", "1 planted fault of 2 went unnoticed"),
    ([result(planted=0, caught=0)], "undecided", "no fault was planted"),
    ([], "undecided", "no case ran"),
]


@pytest.mark.parametrize(("cases", "expected", "reason"), VERDICTS)
def test_the_verdict_follows_from_the_cases(cases: list[CaseResult], expected: str, reason: str) -> None:
    decided, reasons = verdict(cases)
    assert decided == expected
    assert reason in "; ".join(reasons)


def test_a_crash_of_a_negative_control_is_no_flag() -> None:
    from validation.execution.verdict import judge_controls

    crash = finding(1.0, 0.0, statistic="crash", output="")
    (control,) = judge_controls([result("fail", crash)])
    assert not control["flagged"]
    assert verdict([result()], [control])[0] == "undecided"


STATES = [
    (["pass", "undecided"], "pass"),
    (["undecided"], "undecided"),
    (["pass", "error"], "error"),
    (["error", "fail"], "fail"),
]


@pytest.mark.parametrize(("verdicts", "shown"), STATES)
def test_the_state_of_a_pair(verdicts: list[str], shown: str) -> None:
    assert state([result(v) for v in verdicts]) == shown
