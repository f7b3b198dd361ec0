"""The rule of three, its exact form, and how many exchanges a reply needs."""

from __future__ import annotations

import pytest
from scipy.stats import poisson

from validation.stress import bound


@pytest.mark.parametrize("failures", [0, 1, 5])
def test_the_limit_is_where_so_few_failures_become_unlikely(failures: int) -> None:
    rate = bound.upper_rate(10_000, failures)
    assert poisson.cdf(failures, rate * 10_000) == pytest.approx(0.05)


def test_without_failures_it_is_three_over_n() -> None:
    assert bound.upper_rate(20_000_000) == pytest.approx(3 / 20_000_000, rel=0.002)
    assert bound.upper_rate(0) == 1.0


def test_a_longer_reply_needs_more_and_the_two_questions_agree() -> None:
    n = bound.needed(100_000, 461, 1.0)
    assert n == pytest.approx(1.38e8, rel=0.01)
    assert bound.reply_vouched_for(n, 461, 1.0) == 100_000
    assert bound.needed(100_000, 461, 0.1) == pytest.approx(10 * n, rel=1e-6)


def test_the_sentence_says_failures() -> None:
    assert "2,000 exchanges, 0 failures: rate below 3/N = 0.0015 at 95 %" in bound.words(2000, 0)
    assert "3 failures" in bound.words(2000, 3)
