"""McNemar, rates, Holm: published examples and exact sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from validation.errors import UserError
from validation.variance import rates
from validation.variance.data import Paired
from validation.variance.mcnemar import clustered_statistic, discordant_for_power, exact_p, mcnemar
from validation.variance.multiplicity import holm


def test_tuberculosis_media_of_armitage_and_berry() -> None:
    """Statistical Methods in Medical Research (1994), p. 127: 12 against 2 discordant, exact P = 0.0129."""
    assert exact_p(12, 2) == pytest.approx(0.0129, abs=5e-5)
    a = np.array([1.0] * 20 + [1.0] * 12 + [0.0] * 2 + [0.0] * 16)[:, None]
    b = np.array([1.0] * 20 + [0.0] * 12 + [1.0] * 2 + [0.0] * 16)[:, None]
    found = mcnemar(Paired(a, b))
    assert found.p_value == pytest.approx(0.0129, abs=5e-5)
    assert found.effect == pytest.approx(-0.2)


def test_clustered_form_with_single_pairs_is_mcnemars() -> None:
    """Approval ratings of Agresti (Categorical Data Analysis, 2002, 10.1): 150 and 86, z^2 = 17.36."""
    lost, won = np.array([1.0] * 150 + [0.0] * 86), np.array([0.0] * 150 + [1.0] * 86)
    assert clustered_statistic(lost, won, np.ones(236)) == pytest.approx(17.36, abs=0.005)


def test_clustered_form_by_hand() -> None:
    """Clusters (lost, won, pairs): (2, 0, 4), (1, 1, 2), (0, 3, 6): [-1/2 + 0 + 1/2]^2 = 0; without the last
    (1/4)/(1/4) = 1."""
    lost, won, n = np.array([2.0, 1, 0]), np.array([0.0, 1, 3]), np.array([4.0, 2, 6])
    assert clustered_statistic(lost, won, n) == 0
    assert clustered_statistic(lost[:2], won[:2], n[:2]) == 1


def test_clustered_mcnemar_is_not_below_the_sign_test_for_few_questions() -> None:
    a, b = np.ones((30, 4)), np.ones((30, 4))
    b[:5, 0] = 0
    found = mcnemar(Paired(a, b))
    assert found.statistic == 5
    assert found.p_value == pytest.approx(2 * 0.5**5)
    assert "only 5 questions" in found.note


def test_graded_scores_are_not_for_mcnemar() -> None:
    assert math.isnan(mcnemar(Paired(np.full((9, 2), 0.5), np.zeros((9, 2)))).p_value)


def test_discordant_pairs_for_power_by_enumeration() -> None:
    n = discordant_for_power(0.8)

    def power(n: int) -> float:
        k = np.arange(n + 1)
        rejected = np.array([stats.binomtest(int(x), n).pvalue <= 0.05 for x in k])
        return float(stats.binom.pmf(k, n, 0.8)[rejected].sum())

    assert power(n) >= 0.8 > power(n - 1)


def test_limits_of_rates() -> None:
    """No event in N: 26 %, 13.9 %, 1.85 %, 3.0e-4; and Clopper and Pearson's interval of 5 in 20."""
    limits = [rates.upper_limit(0, n) for n in (10, 20, 160, 10_000)]
    assert limits == pytest.approx([0.2589, 0.1391, 0.0185, 3.0e-4], rel=3e-3)
    assert rates.clopper_pearson(5, 20) == pytest.approx((0.0866, 0.4910), abs=5e-5)
    assert rates.upper_limit(0, 0) == 1
    n = rates.trials_for_limit(0.01)
    assert rates.upper_limit(0, n) <= 0.01 < rates.upper_limit(0, n - 1)


def test_hazards_by_the_conditional_binomial() -> None:
    found = rates.compare_hazards(4, 1000, 14, 2000)
    k, pmf = np.arange(19), stats.binom.pmf(np.arange(19), 18, 2 / 3)
    assert found.p_value == pytest.approx(pmf[pmf <= pmf[k == 14][0] * (1 + 1e-7)].sum())
    assert found.effect == pytest.approx(1.75)
    assert found.low < 1 < found.high
    assert math.isnan(rates.compare_hazards(0, 10, 0, 10).p_value)
    with pytest.raises(UserError, match="exposure"):
        rates.compare_hazards(0, 0, 1, 10)


def test_detectable_hazard_ratio_has_its_power() -> None:
    r = rates.compare_hazards(40, 10_000, 40, 10_000).mde
    rng = np.random.default_rng(0)
    a, b = rng.poisson(40, 2000), rng.poisson(40 * r, 2000)
    found = [stats.binomtest(int(y), int(x + y)).pvalue <= 0.05 for x, y in zip(a, b, strict=True)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)


def test_shares_fishers_tea_and_newcombes_interval() -> None:
    """Newcombe (1998), Table II: 56/70 - 48/80 by method 10 is 0.0524 to 0.3339."""
    found = rates.compare_shares(48, 80, 56, 70)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert rates.compare_shares(1, 4, 3, 4).p_value == pytest.approx(34 / 70)
    assert rates.compare_shares(0, 9, 0, 9).p_value == 1


def test_holms_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    adjusted = holm([0.03, math.nan, 0.02])
    assert math.isnan(adjusted[1])
    assert [adjusted[0], adjusted[2]] == pytest.approx([0.04, 0.04])
    assert holm([]) == []


def test_holm_keeps_the_family_level() -> None:
    p = np.random.default_rng(0).random((4000, 8))
    assert np.mean([min(holm(list(row))) <= 0.05 for row in p]) == pytest.approx(0.05, abs=0.012)
