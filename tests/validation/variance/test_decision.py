"""The verdict's rule, case by case."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.variance.decision import (
    Margin,
    around,
    at_most,
    decide,
    decide_all,
    overall,
    ratio_margin,
)
from validation.variance.result import Test

INSIDE, STRADDLING, OUTSIDE = (-0.01, 0.01), (0.01, 0.05), (0.04, 0.06)


def interval(edges: tuple[float, float], p: float = 0.5, name: str = "t", unit: str = "score") -> Test:
    return Test(name, p_value=p, effect=sum(edges) / 2, low=edges[0], high=edges[1], unit=unit, mde=0.02)


@pytest.mark.parametrize(
    ("edges", "p", "verdict", "words"),
    [
        (INSIDE, 0.5, "equivalent", "within the margin:"),
        (INSIDE, 0.001, "equivalent", "though measurable"),
        (STRADDLING, 0.001, "different", "not shown to stay within"),
        (OUTSIDE, 0.001, "different", "beyond the margin"),
        (STRADDLING, 0.2, "undecided", "would find 0.02"),
        ((-0.2, 0.2), math.nan, "undecided", "neither"),
        ((math.nan, math.nan), 0.9, "undecided", "neither"),
    ],
)
def test_one_test(edges: tuple[float, float], p: float, verdict: str, words: str) -> None:
    found = decide("aime25", interval(edges), p, around(0, 0.03))
    assert found.verdict == verdict
    assert words in found.reason


def test_error_and_confounded_come_first() -> None:
    fine = interval(INSIDE)
    assert decide("x", fine, 0.001, around(0, 1), error="server died").verdict == "error"
    assert decide("x", fine, 0.001, around(0, 1), confounded="16 GPUs against 8").verdict == "confounded"


def test_undecided_says_what_it_takes() -> None:
    test = Test("t", low=-1, high=1, repeats_needed=31, note="only 3 questions differ")
    reason = decide("x", test, 0.4, around(0, 0.03)).reason
    assert "needs 31 repeats" in reason
    assert "only 3 questions differ" in reason


def test_margins() -> None:
    assert ratio_margin(1.25).holds(interval((0.9, 1.2)))
    assert not ratio_margin(1.25).holds(interval((0.7, 1.2)))
    assert at_most(0.1).holds(interval((-5, 0.05)))
    with pytest.raises(ValueError, match="empty"):
        Margin(1, 1)


def test_holm_runs_over_differences_and_tost_borrows_its_sibling() -> None:
    rows = [
        ("aime25", interval(INSIDE, 0.03, "equivalence (TOST)"), around(0, 0.03)),
        ("aime25", interval(INSIDE, 0.01, "paired difference"), None),
        ("aime25", interval((0.9, 1.1), 0.6, "variance ratio", "ratio"), None),
    ]
    found = decide_all(rows)
    assert [d.adjusted_p for d in found] == pytest.approx([0.02, 0.02, 0.6])
    assert [d.verdict for d in found] == ["equivalent", "different", "undecided"]
    assert "measurable" in found[0].reason
    assert overall(found)[0] == "pass"  # what TOST shows to be small is not failed by its sibling


def test_a_difference_of_another_quantity_fails() -> None:
    rows = [
        ("aime25", interval(INSIDE, 0.03, "equivalence (TOST)"), around(0, 0.03)),
        ("aime25", interval((2, 4), 0.001, "variance ratio", "ratio"), None),
    ]
    verdict, reasons = overall(decide_all(rows))
    assert verdict == "fail"
    assert "variance ratio" in reasons[0]


def test_overall_is_the_worst() -> None:
    margin = around(0, 0.03)
    good = decide("a", interval(INSIDE), 0.5, margin)
    bad = decide("b", interval(OUTSIDE), 0.001, margin)
    open_ = decide("c", interval(STRADDLING), 0.5, margin)
    broken = decide("d", interval(INSIDE), 0.5, margin, error="down")
    mixed = decide("e", interval(INSIDE), 0.5, margin, confounded="other GPU")
    alarm = decide("f", interval(STRADDLING), 0.5)
    assert overall([good, alarm])[0] == "pass"
    assert overall([good, open_])[0] == "undecided"
    assert overall([good, open_, mixed])[0] == "error"
    assert overall([good, open_, broken])[0] == "error"
    assert overall([good, open_, broken, bad])[0] == "fail"
    assert overall([alarm])[0] == "undecided"
    assert overall([])[0] == "undecided"


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_never_equivalent_unless_the_whole_interval_is_inside(middle: float, half: float, p: float) -> None:
    found = decide("x", interval((middle - half, middle + half)), p, around(0, 0.1))
    assert (found.verdict == "equivalent") == (abs(middle - half) < 0.1 and abs(middle + half) < 0.1)
