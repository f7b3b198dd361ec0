"""Clustered difference, TOST and the floor under the standard error, against scipy and exact computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from validation.errors import UserError
from validation.variance.data import Paired
from validation.variance.difference import (
    estimate,
    naive_difference,
    not_inferior,
    paired_difference,
    within_se,
)
from validation.variance.equivalence import repeats_needed, smallest_margin, tost, tost_power
from validation.variance.intervals import Estimate, detectable, interval

# Student's sleep data (Biometrika 6, 1908): extra hours of sleep under two drugs, ten patients.
SLEEP_A = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_B = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def sleep() -> Paired:
    return Paired(np.array(SLEEP_A)[:, None], np.array(SLEEP_B)[:, None], span=None)


def right_or_wrong(seed: int, questions: int = 40, repeats: int = 5, drop: float = 0.0) -> Paired:
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 1, (questions, 1)) * np.ones(repeats)
    return Paired((rng.random(p.shape) < p) * 1.0, (rng.random(p.shape) < p - drop) * 1.0)


def test_students_sleep_data() -> None:
    found = paired_difference(sleep())
    assert found.statistic == pytest.approx(4.0621, abs=5e-5)  # as published: t = 4.0621, p = 0.002833
    assert found.p_value == pytest.approx(0.002833, abs=5e-7)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


def test_clustered_se_is_liang_zegers_sandwich() -> None:
    pairs = right_or_wrong(0)
    d = pairs.differences
    residual = (d - d.mean()).sum(axis=1)
    n = len(d)
    sandwich = math.sqrt((residual**2).sum() / d.size**2 * n / (n - 1))
    assert estimate(pairs).se == pytest.approx(sandwich)
    t = stats.ttest_1samp(d.mean(axis=1), 0)
    assert paired_difference(pairs).p_value == pytest.approx(t.pvalue)


def test_within_se_is_the_planning_model() -> None:
    rng = np.random.default_rng(1)
    p = np.full((200, 400), 0.3)
    pairs = Paired((rng.random(p.shape) < p) * 1.0, (rng.random(p.shape) < p) * 1.0)
    assert within_se(pairs) == pytest.approx(math.sqrt(2 * 0.21 / p.size), rel=0.02)
    assert math.isnan(within_se(right_or_wrong(0, repeats=1)))


def test_missing_scores_drop_pairs_and_questions() -> None:
    pairs = right_or_wrong(2)
    a, b = pairs.a.copy(), pairs.b.copy()
    a[0, 0], b[3, 2], a[5] = np.nan, np.inf, np.nan
    holed = Paired(a, b)
    assert (holed.questions, holed.dropped) == (39, 7)
    keep = [i for i in range(40) if i != 5]
    d = np.nanmean(np.where(np.isfinite(a) & np.isfinite(b), b, np.nan)[keep] - a[keep], axis=1)
    assert paired_difference(holed).effect == pytest.approx(d.mean())
    assert "7 pairs" in paired_difference(holed).note


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.zeros((3, 2)), np.zeros((4, 2)), "different questions"),
        (np.zeros((3, 0)), np.zeros((3, 0)), "K = 0"),
        (np.zeros(3), np.zeros(3), "axes"),
        ([["x"]], [["y"]], "not numbers"),
        (np.full((2, 2), 7.0), np.zeros((2, 2)), "range"),
    ],
)
def test_bad_scores_are_one_line(a: object, b: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Paired(a, b)  # type: ignore[arg-type]


def test_one_sided_looks_for_a_drop_only() -> None:
    pairs = right_or_wrong(3, drop=0.15)
    two, one = paired_difference(pairs), paired_difference(pairs, sides=1)
    assert one.p_value == pytest.approx(two.p_value / 2)
    assert paired_difference(Paired(pairs.b, pairs.a), sides=1).p_value == pytest.approx(1 - one.p_value)


def test_constant_difference_has_no_t_but_a_sign_test() -> None:
    found = paired_difference(Paired(np.zeros((10, 2)), np.full((10, 2), 0.1)))
    assert found.p_value == pytest.approx(2 * 0.5**10)
    assert "sign test" in found.note


def test_equal_scores_are_p_one_and_never_equivalent_without_evidence() -> None:
    few, many = (Paired(np.ones((n, 1)), np.ones((n, 1))) for n in (30, 3000))
    assert paired_difference(few).p_value == 1
    assert tost(few, 0.03).p_value > 0.05
    assert tost(many, 0.03).p_value < 0.05
    # The floor is close to the exact limit: no event in n has an upper limit of 3/n.
    assert tost(many, 0.03).high == pytest.approx(-math.log(0.05) / 3000, rel=0.15)


def test_tost_is_two_one_sided_t_tests() -> None:
    pairs = Paired(*(np.random.default_rng(4).normal(0, 1, (2, 30, 3))), span=None)
    d = pairs.by_question()
    lower = stats.ttest_1samp(d, -0.4, alternative="greater").pvalue
    upper = stats.ttest_1samp(d, 0.4, alternative="less").pvalue
    found = tost(pairs, 0.4)
    assert found.p_value == pytest.approx(max(lower, upper))
    ci = stats.ttest_1samp(d, 0).confidence_interval(0.90)
    assert (found.low, found.high) == pytest.approx((ci.low, ci.high))
    edge = smallest_margin(pairs)
    assert tost(pairs, edge * 1.001).p_value < 0.05 < tost(pairs, edge * 0.999).p_value


@given(st.integers(0, 10_000), st.floats(0.01, 0.5))
def test_tost_holds_exactly_if_the_interval_lies_inside(seed: int, margin: float) -> None:
    found = tost(right_or_wrong(seed, questions=12, repeats=3), margin)
    assert (found.p_value <= 0.05) == (max(-found.low, found.high) <= margin + 1e-9)


def test_repeats_needed_give_the_power() -> None:
    e = Estimate(0.0, 0.02, math.inf, 10**9)
    k = repeats_needed(e, 4, 0.03)
    se = 0.02 * math.sqrt(4 / k)
    assert tost_power(se, math.inf, 0.03) >= 0.9
    assert tost_power(0.02 * math.sqrt(4 / (k - 1)), math.inf, 0.03) < 0.9


def test_tost_power_by_simulation() -> None:
    d = np.random.default_rng(5).normal(0.1, 1, 200_000)
    inside = np.mean((d > -4 + 1.6449) & (d < 4 - 1.6449))
    assert tost_power(1, math.inf, 4, 0.1) == pytest.approx(inside, abs=0.003)


def test_interval_without_noise_is_wilsons() -> None:
    """A rate of 0 in n: Wilson's upper limit z^2/(n + z^2)."""
    z = stats.norm.ppf(0.975)
    assert interval(Estimate(0.0, 0.0, math.inf, 50))[1] == pytest.approx(z**2 / (50 + z**2), rel=1e-6)
    low, high = interval(Estimate(0.1, 0.0, math.inf, 50))
    wilson = stats.binomtest(5, 50).proportion_ci(method="wilson")
    assert high == pytest.approx(wilson.high, rel=1e-6)
    assert interval(Estimate(1.0, 2.0, 9, 10, None)) == pytest.approx(stats.t.interval(0.95, 9, 1.0, 2.0))
    assert low < 0.1


def test_mde_solves_its_equation() -> None:
    e = Estimate(0, 0.01, math.inf, 500)
    d = detectable(e, sides=1) - 1 / 500  # less the step of one pair
    assert d == pytest.approx(2.4865 * math.sqrt(0.01**2 + d * (1 - d) / 500), rel=1e-4)
    unbounded = Estimate(0, 10.0, math.inf, 500, None)
    assert detectable(unbounded) == pytest.approx(2.8016 * 10, rel=1e-4)


def test_non_inferiority() -> None:
    pairs = right_or_wrong(6)
    assert not_inferior(pairs, 0.5).p_value < 0.001
    assert not_inferior(Paired(pairs.a, 0 * pairs.b), 0.1).p_value > 0.99


def test_naive_standard_error_is_too_small_for_copied_repeats() -> None:
    one = right_or_wrong(7, repeats=1)
    copies = Paired(np.repeat(one.a, 16, axis=1), np.repeat(one.b, 16, axis=1))
    assert paired_difference(copies).p_value == pytest.approx(paired_difference(one).p_value)
    assert naive_difference(copies).p_value < naive_difference(one).p_value
