"""Variances, MMD and energy distance against direct computations and enumerations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from validation.errors import UserError
from validation.variance.data import Paired
from validation.variance.mmd import energy, hamming_blocks, mmd, pad
from validation.variance.spread import (
    between_difference,
    brown_forsythe,
    brown_forsythe_runs,
    components,
    detectable_ratio,
    run_mean_ratio,
    variance_ratio,
)


def drawn(seed: int, questions: int, repeats: int, scale: float = 1.0) -> Paired:
    rng = np.random.default_rng(seed)
    middle = rng.normal(0, 3, (questions, 1))
    a, b = rng.standard_normal((2, questions, repeats))
    return Paired(middle + a, middle + scale * b, span=None)


@pytest.mark.parametrize(
    ("test", "statistic"),
    [
        (variance_ratio, lambda x: np.var(x, axis=1, ddof=1).mean()),
        (between_difference, lambda x: np.var(x.mean(axis=1), ddof=1)),
    ],
)
def test_swaps_are_linear_in_the_signs(test, statistic) -> None:  # type: ignore[no-untyped-def]
    """The claim that makes the tests fast: all 2^12 swaps, each computed from scratch."""
    pairs = drawn(0, 4, 3, 2.0)
    values = []
    for swap in itertools.product((False, True), repeat=12):
        s = np.array(swap).reshape(4, 3)
        values.append(statistic(np.where(s, pairs.a, pairs.b)) - statistic(np.where(s, pairs.b, pairs.a)))
    exact = np.mean(np.abs(values) >= abs(values[0]) - 1e-9)
    assert test(pairs).p_value == pytest.approx(exact)


def test_variance_ratio_finds_a_noisier_arm_and_covers_the_truth() -> None:
    found = variance_ratio(drawn(1, 60, 6, 2.0), margin=1.25, rounds=999)
    assert found.p_value == 0.001
    assert found.low < 4 < found.high
    assert found.repeats_needed > 6
    assert variance_ratio(drawn(1, 60, 6, 1.0), rounds=999).p_value > 0.05


def test_detectable_ratio_solves_its_equation() -> None:
    r = detectable_ratio(0.1)
    assert r - 1 == pytest.approx(2.8016 * 0.1 * math.sqrt((1 + r**2) / 2), rel=1e-4)
    assert math.isnan(detectable_ratio(1.0))


def test_components_recover_what_was_drawn() -> None:
    found = components(drawn(2, 4000, 5).a)
    assert found.within == pytest.approx(1, abs=0.05)
    assert found.between == pytest.approx(9, abs=0.7)
    assert components(np.ones((5, 3))).between == 0


def test_brown_forsythe_is_the_paired_test_of_distances() -> None:
    pairs = drawn(3, 25, 6, 1.5)
    x, y = (np.abs(z - np.median(z, axis=1, keepdims=True)).mean(axis=1) for z in (pairs.a, pairs.b))
    expected = stats.ttest_rel(y, x)
    found = brown_forsythe(pairs)
    assert found.statistic == pytest.approx(expected.statistic**2)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_brown_forsythe_of_runs_is_levene_with_the_median() -> None:
    pairs = drawn(4, 10, 8)
    expected = stats.levene(pairs.a.mean(axis=0), pairs.b.mean(axis=0), center="median")
    assert brown_forsythe_runs(pairs).p_value == pytest.approx(expected.pvalue)


def test_still_arms_and_single_repeats_are_said() -> None:
    still = Paired(np.ones((6, 8)), np.ones((6, 8)))
    for test in (variance_ratio, run_mean_ratio, brown_forsythe, brown_forsythe_runs, energy):
        assert test(still).p_value == 1
        assert test(still).note
        assert math.isnan(test(Paired(np.ones((6, 1)), np.zeros((6, 1)))).p_value)
    one = Paired(np.ones((20, 4)), np.random.default_rng(0).random((20, 4)))
    assert "reference does not vary" in variance_ratio(one).note
    assert variance_ratio(one, rounds=999).p_value <= 0.01


def tokens(seed: int, change: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, (3, 4, 10))
    return a, np.where(rng.random(a.shape) < change, 7, rng.integers(0, 3, a.shape))


def test_mmd_is_gretton_s_unbiased_estimate() -> None:
    a, b = tokens(0, 0.3)
    direct = []
    for x, y in zip(a, b, strict=True):
        h = [
            np.mean(x[i] == x[j]) + np.mean(y[i] == y[j]) - np.mean(x[i] == y[j]) - np.mean(x[j] == y[i])
            for i in range(4)
            for j in range(4)
            if i != j
        ]
        direct.append(np.mean(h))
    assert mmd(a, b).effect == pytest.approx(np.mean(direct))


def test_mmd_p_by_full_enumeration() -> None:
    a, b = tokens(1, 0.5)
    values = []
    for swap in itertools.product((False, True), repeat=12):
        s = np.array(swap).reshape(3, 4, 1)
        h = hamming_blocks(np.where(s, b, a), np.where(s, a, b))
        h[:, range(4), range(4)] = 0
        values.append(h.sum() / 3 / 12)
    assert mmd(a, b).p_value == pytest.approx(np.mean(np.array(values) >= values[0] - 1e-12))


def test_energy_distance_of_one_question_is_scipys() -> None:
    """As a V-statistic, 2 E|a-b| - E|a-a'| - E|b-b'| is the square of scipy's distance; here without the
    diagonal, so the expected values are compared by hand."""
    a, b = np.random.default_rng(0).normal(0, 1, (1, 400)), np.random.default_rng(1).normal(1, 1, (1, 400))
    found = energy(Paired(a, b, span=None), rounds=9)
    both = np.concatenate([a, b], axis=1)[0]
    unit = np.abs(both[:, None] - both).mean()
    assert found.effect * unit == pytest.approx(stats.energy_distance(a[0], b[0]) ** 2 / 1, rel=0.05)


def test_padding_tells_a_reply_that_ends() -> None:
    padded = pad([[[1, 2], [1, 2, 3, 4]]], 3)
    assert padded.tolist() == [[[1, 2, -1], [1, 2, 3]]]
    with pytest.raises(UserError, match="numbers of repeats"):
        pad([[[1]], [[1], [2]]], 3)


def test_run_mean_swaps_are_pitman_and_morgans_correlation() -> None:
    pairs = drawn(5, 3, 4, 3.0)
    total = (pairs.a + pairs.b).sum(axis=0)
    values = []
    for signs in itertools.product((1, -1), repeat=12):
        d = (pairs.differences * np.array(signs).reshape(3, 4)).sum(axis=0)
        values.append(abs(stats.pearsonr(d, total).statistic))
    assert run_mean_ratio(pairs).p_value == pytest.approx(np.mean(np.array(values) >= values[0] - 1e-9))
