"""Permutations, ranks and bootstrap against full enumerations and published data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from validation.variance.bootstrap import bootstrap, expanded
from validation.variance.data import Paired
from validation.variance.distributions import ks_within, pair_swap
from validation.variance.mcnemar import mcnemar
from validation.variance.permutation import flip_test, monte_carlo_p, sign_flip, stratified
from validation.variance.planning import difficulty
from validation.variance.ranks import signed_ranks, wilcoxon

# Darwin's maize, differences in eighths of an inch (Fisher, The Design of Experiments, 1935, section 21).
MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype=float)


def of(d: np.ndarray, span: float | None = None) -> Paired:
    return Paired(np.zeros((len(d), 1)), d[:, None], span=span)


def test_fishers_randomisation_of_darwins_maize() -> None:
    """Fisher counts 863 of 32,768 arrangements with a total of at least 314: 2 x 863 / 32768, two-sided."""
    exact = 2 * 863 / 2**15
    found = sign_flip(of(MAIZE), rounds=200_000)
    assert found.p_value == pytest.approx(exact, abs=4 * math.sqrt(exact / 200_000))
    assert sign_flip(of(-MAIZE), sides=1, rounds=200_000).p_value == pytest.approx(exact / 2, abs=0.002)


def test_few_terms_are_enumerated() -> None:
    d = MAIZE[:9]
    sums = [abs(np.dot(s, d)) for s in itertools.product((1, -1), repeat=9)]
    assert sign_flip(of(d)).p_value == np.mean(np.array(sums) >= abs(d.sum()) - 1e-9)


def test_p_of_tiny_statistics_is_that_of_large_ones() -> None:
    p, _ = flip_test(MAIZE, 999, np.random.default_rng(0))
    tiny, _ = flip_test(MAIZE * 1e-15, 999, np.random.default_rng(0))
    assert tiny == p < 0.1


def test_monte_carlo_p_is_never_zero() -> None:
    assert monte_carlo_p(10.0, np.zeros(99)) == 0.01


def test_wilcoxon_is_scipys_exact_test() -> None:
    found = wilcoxon(of(MAIZE[:12]))
    scipys = stats.wilcoxon(MAIZE[:12], method="exact")
    assert found.p_value == pytest.approx(scipys.pvalue)
    assert min(found.statistic, 78 - found.statistic) == scipys.statistic


def test_pratts_zeros_take_the_lowest_ranks() -> None:
    assert signed_ranks(np.array([0, 0, -2, 1, 0])).tolist() == [0, 0, -5, 4, 0]
    d = np.array([0.0] * 20 + [0.1, 0.2, 0.2, -0.1, 0.5, 0.3])
    ranks = signed_ranks(d)[20:]
    sums = np.array([np.dot(s, np.abs(ranks)) for s in itertools.product((1, -1), repeat=6)])
    assert wilcoxon(of(d)).p_value == np.mean(np.abs(sums) >= abs(ranks.sum()) - 1e-9)
    scipys = stats.wilcoxon(d, zero_method="pratt", method="asymptotic")
    assert wilcoxon(of(d)).p_value == pytest.approx(scipys.pvalue, abs=0.03)


def test_pair_swaps_with_one_repeat_are_mcnemars_exact_test() -> None:
    a = np.array([1.0] * 9 + [0.0] * 3 + [1.0] * 20)[:, None]
    b = np.array([0.0] * 9 + [1.0] * 3 + [1.0] * 20)[:, None]
    assert pair_swap(Paired(a, b)).p_value == pytest.approx(mcnemar(Paired(a, b)).p_value)


def test_stratified_enumerated() -> None:
    rng = np.random.default_rng(1)
    p = np.array([0.99] * 20 + [0.5] * 3)[:, None] * np.ones(3)
    a, b = (rng.random(p.shape) < p) * 1.0, (rng.random(p.shape) < 0.85 * p) * 1.0
    weight = 1 / (1 - (a + b).sum(1) / 6 + 0.125)
    terms = ((b - a) * weight[:, None]).ravel()
    terms = terms[terms != 0]
    assert len(terms) <= 13
    sums = np.array([np.dot(s, terms) for s in itertools.product((1, -1), repeat=len(terms))])
    exact = np.mean(np.abs(sums) >= abs(terms.sum()) - 1e-9)
    assert stratified(Paired(a, b)).p_value == pytest.approx(exact)


def test_stratified_finds_spoiled_replies_that_the_plain_difference_misses() -> None:
    p, found = difficulty("gpqa_diamond")[:, None] * np.ones(8), np.zeros((60, 2))
    rng = np.random.default_rng(3)
    for row in found:
        pairs = Paired((rng.random(p.shape) < p) * 1.0, (rng.random(p.shape) < 0.98 * p) * 1.0)
        row[:] = [t(pairs, sides=1, rounds=199).p_value <= 0.05 for t in (stratified, sign_flip)]
    assert found[:, 0].mean() > 0.85
    assert found[:, 0].mean() > found[:, 1].mean() + 0.1


def test_bootstrap_interval_is_scipys_with_widened_coverage() -> None:
    found = bootstrap(of(MAIZE), rounds=999, seed=3)
    scipys = stats.bootstrap(
        (MAIZE,),
        np.mean,
        n_resamples=999,
        confidence_level=expanded(0.95, 15),
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((scipys.low, scipys.high))
    assert 0.02 < found.p_value < 0.12  # near the t test's 0.0497


def test_expanded_coverage_of_hesterberg() -> None:
    """His table: for n = 10 a nominal tail of 2.5 % needs 0.86 %, for n = 20 1.60 %."""
    assert (1 - expanded(0.95, 10)) / 2 == pytest.approx(0.0086, abs=1e-4)
    assert (1 - expanded(0.95, 20)) / 2 == pytest.approx(0.0159, abs=1e-4)


def test_ks_enumerated_with_one_question() -> None:
    a, b = np.array([[1.0, 4.0, 2.0, 7.0]]), np.array([[5.0, 9.0, 8.0, 6.0]])
    values = []
    for swap in itertools.product((False, True), repeat=4):
        x, y = np.where(swap, b, a), np.where(swap, a, b)
        values.append(stats.ks_2samp(x[0], y[0]).statistic)
    found = ks_within(Paired(a, b, span=None))
    assert found.effect == pytest.approx(values[0])
    assert found.p_value == np.mean(np.array(values) >= values[0] - 1e-9)


@pytest.mark.parametrize("test", [sign_flip, stratified, wilcoxon, bootstrap, pair_swap, ks_within])
def test_equal_scores_give_p_one(test) -> None:  # type: ignore[no-untyped-def]
    found = test(Paired(np.ones((20, 4)), np.ones((20, 4))), rounds=99)
    assert found.p_value == 1
    assert found.note


@pytest.mark.parametrize("test", [sign_flip, stratified, wilcoxon, bootstrap, pair_swap, ks_within, mcnemar])
def test_no_scores_give_no_p_value(test) -> None:  # type: ignore[no-untyped-def]
    found = test(Paired(np.full((5, 3), np.nan), np.ones((5, 3))))
    assert math.isnan(found.p_value)
    assert found.note


def test_the_note_says_when_no_pattern_reaches_the_level() -> None:
    assert "smallest possible p-value" in sign_flip(of(np.array([1.0, 1, 1, 0, 0]))).note
