"""Forced log-probabilities: crossed statistic, permutations, tails, degenerate arms, speed."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

from validation.errors import UserError
from validation.variance.forced import (
    Forced,
    crossed,
    crossed_table,
    detectable_rms,
    noise_model,
    relabelings,
    tokens_needed,
)
from validation.variance.forced_tests import bias, noise_ratio, nonfinite, tails


def walks(
    seed: int,
    rms: float = 0.0,
    noise: float = 1.0,
    sequences: int = 24,
    tokens: int = 50,
    noisier: float = 1.0,
    shift: float = 0.0,
) -> Forced:
    rng = np.random.default_rng(seed)
    a, b = [], []
    for _ in range(sequences):
        base, extra = rng.normal(-2, 1, tokens), rms * rng.standard_normal(tokens)
        a.append(base + noise * rng.standard_normal((2, tokens)))
        b.append(base + extra + shift + noisier * noise * rng.standard_normal((2, tokens)))
    return Forced(a, b)


def test_crossed_is_the_product_of_distinct_replicates() -> None:
    data = walks(0, 0.5, sequences=3)
    products = []
    for a, b in zip(data.a, data.b, strict=True):
        for i, j in itertools.product(range(2), repeat=2):
            products.append((b[j] - a[i]) * (b[1 - j] - a[1 - i]))
    assert crossed(data).statistic == pytest.approx(np.mean(products))


def test_crossed_is_unbiased_whatever_the_noise_of_either_arm() -> None:
    values = [crossed(walks(s, 0.3, noisier=3.0), rounds=9).statistic for s in range(200)]
    error = np.std(values) / math.sqrt(200)
    assert np.mean(values) == pytest.approx(0.09, abs=4 * error)
    naive = np.mean([np.mean((walks(s, 0.3).b[0][0] - walks(s, 0.3).a[0][0]) ** 2) for s in range(20)])
    assert naive > 1.5  # the plain mean square is all noise


def test_weighted_sum_over_top_k_is_twice_the_kl() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (4000, 6))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    other = logits + 0.05 * rng.standard_normal(logits.shape)
    q = np.exp(other) / np.exp(other).sum(1, keepdims=True)
    kl = (p * np.log(p / q)).sum(1).mean()
    noise = 0.02 * rng.standard_normal((4, 4000, 6))
    data = Forced([np.log(p) + noise[:2]], [np.log(q) + noise[2:]], [p])
    assert crossed(data).statistic == pytest.approx(2 * kl, rel=0.06)


def test_crossed_p_by_full_enumeration() -> None:
    data = walks(2, 0.6, sequences=4, tokens=6)
    labels = list(itertools.combinations(range(4), 2))
    both = [np.concatenate([a, b]) for a, b in zip(data.a, data.b, strict=True)]

    def value(choice: tuple[tuple[int, ...], ...]) -> float:
        total = 0.0
        for x, chosen in zip(both, choice, strict=True):
            a, b = x[list(chosen)], x[[i for i in range(4) if i not in chosen]]
            total += ((b[0] - a[0]) * (b[1] - a[1])).sum() + ((b[1] - a[0]) * (b[0] - a[1])).sum()
        return total

    values = np.array([value(c) for c in itertools.product(labels, repeat=4)])
    assert crossed(data).p_value == pytest.approx(np.mean(values >= values[0] - 1e-9))


def test_relabelings_average_to_nothing() -> None:
    table = crossed_table(walks(3, 1.0).gram, 2, 2)
    assert table.mean(axis=1) == pytest.approx(np.zeros(len(table)), abs=1e-9)
    assert relabelings(2, 3).shape == (10, 5)
    assert relabelings(2, 2)[0].tolist() == [True, True, False, False]


def test_small_statistics_keep_their_p_value() -> None:
    """Differences of 1e-9 nats on log-probabilities of about -2: nothing is lost to rounding."""
    large, small = (crossed(walks(4, 0.5 * s, noise=s), rounds=999) for s in (1.0, 1e-9))
    assert small.p_value == large.p_value == 0.001
    assert small.effect == pytest.approx(large.effect * 1e-9, rel=1e-3)


def test_detectable_rms_has_its_power() -> None:
    mde = float(np.median([crossed(walks(s), rounds=199).mde for s in range(20)]))
    found = [crossed(walks(100 + s, mde), rounds=199, seed=s).p_value <= 0.05 for s in range(300)]
    assert 0.74 < np.mean(found) < 0.90


def test_tokens_needed_inverts_the_detectable_rms() -> None:
    noise = noise_model(walks(5))
    need = tokens_needed(noise, detectable_rms(noise) / 2)
    assert detectable_rms(noise, scale=need / noise.tokens) == pytest.approx(
        detectable_rms(noise) / 2, rel=1e-3
    )
    assert need > noise.tokens


def test_bias_noise_and_tails_name_their_fault() -> None:
    quiet = walks(6)
    assert min(t(quiet, rounds=999).p_value for t in (bias, noise_ratio, tails, crossed)) > 0.05
    assert bias(walks(6, shift=-0.3), rounds=999).p_value == 0.001
    assert bias(walks(6, shift=-0.3)).effect == pytest.approx(-0.3, abs=0.05)
    noisy = noise_ratio(walks(6, noisier=1.5), rounds=999)
    assert noisy.p_value == 0.001
    assert noisy.low < 2.25 < noisy.high
    rare = walks(7)
    spoiled = Forced(rare.a, [np.where(np.arange(50) % 17 == 3, x + 9, x) for x in rare.b])
    found = tails(spoiled, rounds=999)
    assert found.p_value == 0.001
    assert found.statistic > 200  # 3 tokens x 24 sequences x 4 pairs were spoiled
    assert found.effect > 0.04
    assert "largest" in found.note


def test_noise_ratio_is_blind_to_systematic_differences() -> None:
    assert noise_ratio(walks(8, 5.0), rounds=999).p_value > 0.05


def test_a_reference_that_repeats_bit_for_bit() -> None:
    base = [np.tile(np.linspace(-3, -1, 20), (2, 1)) for _ in range(6)]
    same = Forced(base, base)
    for test in (crossed, bias, noise_ratio, nonfinite):
        found = test(same)
        assert found.p_value == 1
    assert "bit for bit" in crossed(same).note
    other = crossed(Forced(base, [x + 1e-3 for x in base]))
    assert other.effect == pytest.approx(1e-3)
    assert other.p_value <= 0.005
    assert "reference and candidate repeat bit for bit" in other.note


def test_nan_is_counted_apart() -> None:
    data = walks(9)
    broken = [x.copy() for x in data.b]
    broken[0][0, 3], broken[1][1, 4] = np.nan, -np.inf
    found = Forced(data.a, broken)
    assert found.tokens.sum() == 24 * 50 - 2
    assert nonfinite(found).note == "0 not finite in the reference, 2 in the candidate"
    assert math.isfinite(crossed(found).statistic)
    empty = Forced([np.full((2, 4), np.nan)], [np.zeros((2, 4))])
    for test in (crossed, bias, noise_ratio, tails):
        assert math.isnan(test(empty).p_value)


def test_one_sequence_cannot_reach_the_level_until_it_is_split() -> None:
    data = walks(10, 2.0, sequences=1, tokens=120)
    assert crossed(data).p_value == pytest.approx(1 / 3)
    assert "force more sequences" in crossed(data).note
    assert crossed(data.split(10)).p_value < 0.001
    assert data.split(50).tokens.tolist() == [50, 50, 20]


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ([], [], "sequences"),
        ([np.zeros((2, 3))], [np.zeros((2, 4))], "different tokens"),
        ([np.zeros((1, 3))], [np.zeros((2, 3))], "at least two"),
    ],
)
def test_bad_walks_are_one_line(a: list, b: list, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Forced(a, b)


def test_a_thousand_relabelings_take_a_second() -> None:
    rng = np.random.default_rng(0)
    a, b = (list(rng.standard_normal((64, 2, 128, 20))) for _ in range(2))
    data = Forced(a, b, [np.full((128, 20), 0.05)] * 64)
    start = time.process_time()
    for test in (crossed, bias, noise_ratio, tails):
        test(data, rounds=1000)
    assert time.process_time() - start < 3
