"""Admissible answers against enumeration: what noise can bring in is allowed, all else is wrong."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from validation.numerics.arithmetic import Noise
from validation.numerics.choices import Choice, codes, gather_choice, half_width, top_k
from validation.numerics.formats import E2M1, E4M3
from validation.numerics.limits import bernstein, log_odds
from validation.numerics.profile import Profile
from validation.numerics.value import Value

AR = Noise(Profile("plain", {}))
SHARE = 1e-6


def scores(means: list[float], widths: list[float]) -> Value:
    """Scores that at ``SHARE`` may lie within ``widths`` of their means."""
    mean, width = (torch.tensor(x, dtype=torch.float64) for x in (means, widths))
    return Value(AR, mean, width**2 / (2 * log_odds(SHARE, len(means))))


@st.composite
def few_scores(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    count = draw(st.integers(1, 6))
    means = draw(st.lists(st.integers(-6, 6), min_size=count, max_size=count))
    widths = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    return means, widths, draw(st.integers(1, count))


@given(few_scores())
def test_an_answer_is_admissible_if_some_noise_gives_it(drawn: tuple[list[int], list[int], int]) -> None:
    """The exact sets of top k over all corners of the noise, ties broken either way."""
    means, widths, k = drawn
    count = len(means)
    answers = set()
    for signs in itertools.product((-1, 1), repeat=count):
        values = [2 * m + s * 2 * w for m, w, s in zip(means, widths, signs, strict=True)]
        kth = sorted(values, reverse=True)[k - 1]
        must = {i for i, v in enumerate(values) if v > kth}
        tied = [i for i, v in enumerate(values) if v == kth]
        answers |= {frozenset(must | set(c)) for c in itertools.combinations(tied, k - len(must))}
    # A trifle wider, so that ends that only just meet do so whatever the rounding of their widths.
    found = top_k(scores([float(m) for m in means], [w + 1e-9 for w in widths]), k, SHARE)
    certain = {i for i in range(count) if all(i in a for a in answers)}
    possible = {i for i in range(count) if any(i in a for a in answers)}
    assert set(found.certain.nonzero().flatten().tolist()) == certain
    assert set(found.admissible.nonzero().flatten().tolist()) == possible
    for answer in answers:
        assert not bool(found.wrong(torch.tensor(sorted(answer))))


ROUTER = scores([5.0, 4.0, 3.0, 2.9, 1.0, -2.0], [0.1] * 6)


def wrong(*ids: int) -> bool:
    return bool(top_k(ROUTER, 3, SHARE).wrong(torch.tensor(ids)))


def test_what_noise_allows_is_right_in_any_order() -> None:
    assert not wrong(0, 1, 2)
    assert not wrong(3, 0, 1)


@pytest.mark.parametrize(
    "ids",
    [
        (0, 2, 3),  # 1 is certain
        (0, 1, 4),  # 4 is out of reach
        (0, 1, 1),  # twice
        (0, 1, 6),  # no such candidate
        (0, 1, -1),
        (0, 1),
        (0, 1, 2, 3),
    ],
)
def test_what_noise_does_not_allow_is_wrong(ids: tuple[int, ...]) -> None:
    assert wrong(*ids)


def test_rows_are_judged_one_by_one() -> None:
    value = Value(AR, ROUTER.mean.repeat(2, 1), ROUTER.variance.repeat(2, 1))
    sets = top_k(value, 3, SHARE)
    assert sets.wrong(torch.tensor([[0, 1, 3], [0, 1, 5]])).tolist() == [False, True]


def test_without_noise_only_ties_are_free() -> None:
    sets = top_k(Value(AR, torch.tensor([1.0, 2.0, 2.0, 3.0], dtype=torch.float64)), 2, SHARE)
    assert sets.certain.tolist() == [False, False, False, True]
    assert sets.admissible.tolist() == [False, True, True, True]


def test_a_score_that_is_no_number_may_go_anywhere_and_moves_no_other() -> None:
    mean = torch.tensor([5.0, float("nan"), 3.0, 1.0], dtype=torch.float64)
    sets = top_k(Value(AR, mean, torch.full_like(mean, 1e-9)), 2, SHARE)
    assert sets.admissible.tolist() == [True, True, True, False]
    assert sets.certain.tolist() == [True, False, False, False]


def test_honest_noise_gives_admissible_answers() -> None:
    seed, rows = 3, 400
    g = torch.Generator().manual_seed(seed)
    means = torch.rand(rows, 64, generator=g, dtype=torch.float64)
    sd = torch.full_like(means, 2e-3)
    noisy = means + sd * torch.randn(rows, 64, generator=g, dtype=torch.float64)
    sets = top_k(Value(AR, means, sd**2), 8, 0.01)
    chosen = noisy.topk(8).indices
    assert int(sets.wrong(chosen).sum()) == 0, f"seed {seed}"
    assert not torch.equal(chosen.sort().values, means.topk(8).indices.sort().values), (
        "some choices do differ"
    )
    assert int(sets.wrong((chosen + 1) % 64).sum()) == rows


@pytest.mark.parametrize(("fmt", "dtype"), [(E4M3, torch.float8_e4m3fn), (E2M1, None)])
def test_codes_lie_between_those_of_the_ends_of_the_noise(fmt: object, dtype: torch.dtype | None) -> None:
    seed = 4
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(5_000, generator=g, dtype=torch.float64)
    sd = 0.002 * means.abs()
    low, high = codes(Value(AR, means, sd**2), fmt, 0.01)
    seen = (means + sd * torch.randn(5_000, generator=g, dtype=torch.float64)).float()
    seen = seen.to(dtype).double() if dtype else fmt.round(seen.double())
    assert bool(((low <= seen) & (seen <= high)).all()), f"seed {seed}"
    assert bool((seen != fmt.round(means)).any())
    assert 0.2 < float((low == high).double().mean()) < 0.99, "where noise cannot reach, one code is left"


def test_known_values_have_one_code() -> None:
    means = torch.tensor([0.3, 0.75, 5.0, 100.0], dtype=torch.float64)
    low, high = codes(Value(AR, means), E2M1, SHARE)
    assert low.tolist() == high.tolist() == [0.5, 1.0, 4.0, 6.0]


def test_half_width_is_bernsteins_limit_with_all_parts() -> None:
    mean = torch.zeros(3, dtype=torch.float64)
    parts = [
        torch.tensor(p, dtype=torch.float64) for p in ([1.0, 2.0, 3.0], [0.0, 0.1, 1.0], [0.0, 1.0, 1.0])
    ]
    expected = bernstein(*parts, log_odds(SHARE, 3))
    assert torch.equal(half_width(Value(AR, mean, *parts), SHARE, 3), expected)
    scalar = Value(AR, mean, torch.tensor(2.0, dtype=torch.float64))
    assert half_width(scalar, SHARE, 3).shape == (3,)


def test_what_follows_takes_the_entries_that_were_chosen() -> None:
    mean = torch.arange(12, dtype=torch.float64).reshape(2, 6)
    value = Value(AR, mean, mean / 10, mean / 100, mean / 1000)
    ids: Tensor = torch.tensor([[5, 0], [2, 2]])
    found = gather_choice(value, ids)
    assert found.mean.tolist() == [[5.0, 0.0], [8.0, 8.0]]
    assert all(torch.equal(p * f, found.mean) for p, f in zip(found.parts(), (10, 100, 1000), strict=True))


def test_twins_are_ties_although_their_scores_are_noisy() -> None:
    """Candidates 1, 2 and 4 have one score, known to 0.1; 0 is above them, 3 is within noise of them."""
    value = scores([5.0, 3.0, 3.0, 2.95, 3.0], [0.1] * 5)
    labels = torch.tensor([0, 1, 1, 2, 1])
    choice = Choice(value, 3, ordered=True, lowest_first=True, twins=labels)

    def refused(*ids: int) -> bool:
        return bool(choice.wrong(torch.tensor(ids), SHARE))

    assert not refused(0, 1, 2)
    assert not refused(0, 1, 3), "noise may put 3 before 2"
    assert refused(0, 1, 4), "2 before 4"
    assert refused(0, 2, 1), "in the right set, in the wrong order"
    assert refused(0, 3, 4)
    assert not bool(Choice(value, 3, ordered=True).wrong(torch.tensor([0, 4, 2]), SHARE)), "no rule for ties"
    assert choice.shape == (3,)
