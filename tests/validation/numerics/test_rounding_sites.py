"""Rounding sites: bit for bit where nothing is noisy, and conditional where something is.

The conditional rounding is compared with real rounding of drawn noisy values.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from validation.numerics.arithmetic import Arithmetic, Exact, Noise, Rounded
from validation.numerics.formats import BF16, E4M3, Format
from validation.numerics.profile import Profile
from validation.numerics.value import Value

SITES = {"bf16": BF16, "e4m3": E4M3, "fp32": None, "maybe": BF16, "rather not": None}
PROFILE = Profile("p", SITES, optional=frozenset({"maybe", "rather not"}))
DRAWS = 100_000


def numbers(count: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=g) * torch.exp2(4 * torch.randn(count, generator=g))


def normal(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def known(ar: Arithmetic, *means: float) -> Value:
    return Value(ar, torch.tensor(means, dtype=torch.float64))


def noisy(ar: Arithmetic, mean: float, sd: float, rate: float = 0.0, jump: float = 0.0) -> Value:
    parts = [torch.tensor([p], dtype=torch.float64) for p in (mean, sd * sd, rate * jump * jump, jump)]
    return Value(ar, *parts) if jump else Value(ar, parts[0], parts[1])


# -- bit for bit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", [Rounded, Noise])
def test_a_known_value_is_rounded_as_torch_casts_it(reading: type) -> None:
    ar, x = reading(PROFILE), numbers(50_000, 1)
    in_bf16 = ar.round(ar.load(x), "bf16")
    assert torch.equal(in_bf16.mean, x.bfloat16().double())
    assert in_bf16.parts() == (None, None, None)
    small = x.clamp(-448, 448)
    assert torch.equal(ar.round(ar.load(small), "e4m3").mean, small.to(torch.float8_e4m3fn).double())
    assert torch.equal(ar.round(ar.load(x), "fp32").mean, x.double())
    assert in_bf16.bits == 8
    assert ar.round(ar.load(x), "e4m3").bits == 4


def test_exact_arithmetic_rounds_nowhere() -> None:
    ar, x = Exact(), numbers(100, 2)
    assert torch.equal(ar.round(ar.load(x), "any site").mean, x.double())
    assert torch.equal(ar.store(ar.load(x), "any site").mean, x.double())


def test_the_last_site_is_left_open_for_the_judge_in_the_noise_reading_only() -> None:
    x = numbers(100, 3)
    assert torch.equal(Rounded(PROFILE).store(Rounded(PROFILE).load(x), "bf16").mean, x.bfloat16().double())
    assert torch.equal(Noise(PROFILE).store(Noise(PROFILE).load(x), "bf16").mean, x.double())


def test_a_site_that_the_profile_does_not_declare_is_an_error() -> None:
    for ar in (Rounded(PROFILE), Noise(PROFILE)):
        with pytest.raises(KeyError, match="profile 'p' does not declare the rounding site 'elsewhere'"):
            ar.round(known(ar, 1.0), "elsewhere")


# -- conditional -----------------------------------------------------------------------------------

# Where in its cell a value lies: distance to the grid point below, in spacings.
PLACES = (0.0, 0.3, 0.45, 0.49, 0.4999, 0.55, 0.9)
STARTS = (1.25, 1.0, 2.0 - 2.0**-7, -1.0 - 2.0**-7)


def spacing(fmt: Format, x: float) -> float:
    return float(fmt.spacing(torch.tensor(x, dtype=torch.float64)))


@pytest.mark.parametrize("relative", [1e-6, 1e-3, 0.02, 0.1, 0.24])
@pytest.mark.parametrize("start", STARTS)
def test_noise_far_below_the_spacing_leaves_a_known_point_and_rare_jumps(
    start: float, relative: float
) -> None:
    ar, seed = Noise(PROFILE), 4
    for place in PLACES:
        mean, sd = start + place * 2.0**-7, relative * 2.0**-7
        found = ar.round(noisy(ar, mean, sd), "bf16")
        step = spacing(BF16, float(found.mean))
        real = BF16.round(mean + sd * normal(DRAWS, seed))
        hint = f"seed {seed}, place {place}"
        assert found.mean == BF16.round(torch.tensor([mean], dtype=torch.float64)), hint
        assert float(found.variance) == 0, hint
        left = int((real != found.mean).sum())
        if found.jump is None or float(found.jump) == 0:
            assert left == 0, hint
            continue
        expected = DRAWS * float(found.jump_variance) / step**2
        assert abs(left - expected) <= 5 * math.sqrt(expected + 1), hint
        square = float(((real - found.mean) ** 2).mean())
        # Below a power of two the step is half as long: there the prediction is on the safe side.
        least = 0.2 if abs(float(found.mean)) in (1.0, 2.0) else 1 - 6 / math.sqrt(expected + 1)
        assert least * float(found.jump_variance) <= square + 6 * step**2 / DRAWS, hint
        assert square <= float(found.jump_variance) + 6 * step**2 * math.sqrt(expected + 1) / DRAWS, hint
        # Near a tie the second neighbour begins one spacing away, beside a power of two three quarters: 3.1
        # sd for the noisiest, 7.5 for the others.
        beyond = int(((real - found.mean).abs() > found.jump).sum())
        assert beyond <= (1e-3 * DRAWS if relative > 0.1 else 0), hint


def test_some_places_do_jump_and_others_do_not() -> None:
    ar = Noise(PROFILE)
    jumps = [ar.round(noisy(ar, 1.25 + place * 2.0**-7, 0.02 * 2.0**-7), "bf16").jump for place in PLACES]
    assert [jump is not None for jump in jumps] == [False, False, True, True, True, True, False]


@pytest.mark.parametrize("relative", [0.26, 0.5, 2.0, 10.0])
def test_noise_of_the_size_of_the_spacing_smears_the_rounding(relative: float) -> None:
    ar, seed, step = Noise(PROFILE), 5, 2.0**-7
    place = torch.rand(DRAWS, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    means = 1.3 + place * step
    found = ar.round(Value(ar, means, torch.full_like(means, (relative * step) ** 2)), "bf16")
    assert torch.equal(found.mean, means), "the mean stays: which point it lands on is not known"
    error = BF16.round(means + relative * step * normal(DRAWS, seed)) - means
    ratio = float((error * error / found.variance).mean())
    assert abs(ratio - 1) < 6 * math.sqrt(2 / DRAWS), f"seeds {seed}, 6"
    assert found.jump is None


def test_both_kinds_side_by_side_keep_their_own_parts() -> None:
    ar, step = Noise(PROFILE), 2.0**-7
    means = torch.tensor([1.25, 1.25 + 0.49 * step, 1.25 + 0.3 * step], dtype=torch.float64)
    sd = step * torch.tensor([1e-3, 0.02, 1.0], dtype=torch.float64)
    found = ar.round(Value(ar, means, sd**2), "bf16")
    assert found.mean.tolist() == [1.25, 1.25, 1.25 + 0.3 * step]
    assert found.variance.tolist() == [0.0, 0.0, step**2 * (1 + 1 / 12)]
    assert found.jump.tolist() == [0.0, step, 0.0]
    assert [v > 0 for v in found.jump_variance.tolist()] == [False, True, False]


@pytest.mark.parametrize("jump", [0.3, 1.0, 3.4])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.48])
def test_jumps_that_come_in_are_not_lost(place: float, jump: float) -> None:
    ar, step, rate, seed = Noise(PROFILE), 2.0**-7, 0.02, 7
    value = noisy(ar, 1.25 + place * step, 0.01 * step, rate, jump * step)
    found = ar.round(value, "bf16")
    g = torch.Generator().manual_seed(seed)
    hit = torch.rand(DRAWS, generator=g) < rate
    sign = 2.0 * (torch.rand(DRAWS, generator=g) < 0.5).double() - 1
    real = BF16.round(value.mean + 0.01 * step * normal(DRAWS, seed) + hit * sign * jump * step)
    square = float(((real - found.mean) ** 2).mean())
    predicted = 0.0 if found.jump_variance is None else float(found.jump_variance)
    assert square <= predicted * (1 + 6 / math.sqrt(DRAWS * rate)), f"seed {seed}"
    assert float((real - found.mean).abs().max()) <= float(found.jump), f"seed {seed}"
    if place + jump > 0.5:
        assert square > 0, "the jump does cross"


def test_a_smeared_value_keeps_the_jumps_that_came_in() -> None:
    ar, step = Noise(PROFILE), 2.0**-7
    found = ar.round(noisy(ar, 1.3, step, rate=0.02, jump=3 * step), "bf16")
    assert float(found.jump) == 3 * step
    assert float(found.jump_variance) == pytest.approx(0.02 * 9 * step**2)


def test_jumps_at_the_end_of_a_saturating_format_are_not_lost() -> None:
    ar = Noise(PROFILE)
    found = ar.round(noisy(ar, 440.0, 1e-3, rate=1e-3, jump=40.0), "e4m3")
    assert float(found.mean) == 448
    assert float(found.jump) >= 32, "down to 416 it may go; above there is nothing"
    assert float(found.jump_variance) >= 1e-3 / 2 * 32**2
    assert math.isfinite(float(found.jump_variance))
    still = ar.round(noisy(ar, 500.0, 1.0), "e4m3")
    assert (float(still.mean), float(still.variance), still.jump) == (448.0, 0.0, None)


def test_what_is_not_finite_stays_where_it_is() -> None:
    ar = Noise(PROFILE)
    means = torch.tensor([math.nan, math.inf, 1.25], dtype=torch.float64)
    found = ar.round(Value(ar, means, torch.full_like(means, 1e-12)), "bf16")
    assert found.mean.isnan().tolist() == [True, False, False]
    assert found.mean.isinf().tolist() == [False, True, False]
    assert float(found.mean[2]) == 1.25


# -- accuracy mode ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("site", "fmt"), [("maybe", BF16), ("rather not", BF16)])
def test_accuracy_mode_allows_rounding_and_not_rounding_at_an_optional_site(site: str, fmt: Format) -> None:
    ar, x = Noise(PROFILE.accuracy()), numbers(20_000, 8).double()
    found = ar.round(Value(ar, x), site)
    assert torch.equal(found.mean, x), "judged against the truth"
    error = fmt.round(x) - x
    assert abs(float((error * error / found.variance).mean()) - 1) < 6 * math.sqrt(0.8 / 20_000)
    assert float((error.abs() / found.variance.sqrt()).max()) <= math.sqrt(3) * (1 + 1e-9)
    before = Value(ar, x, x * x * 1e-8, x * x * 1e-12, x.abs())
    after = ar.round(before, site)
    assert torch.equal(after.variance, before.variance + fmt.spacing(x) ** 2 / 12)
    assert torch.equal(after.jump, before.jump)
    assert torch.equal(after.jump_variance, before.jump_variance)


def test_accuracy_mode_changes_nothing_at_sites_that_are_not_optional() -> None:
    x = numbers(1_000, 9)
    ar = Noise(PROFILE.accuracy())
    assert torch.equal(ar.round(ar.load(x), "bf16").mean, x.bfloat16().double())
    assert torch.equal(ar.round(ar.load(x), "fp32").mean, x.double())
    assert PROFILE.accuracy().name == "p, accuracy"


def test_accuracy_mode_without_noise_keeps_the_truth_at_optional_sites() -> None:
    ar, x = Rounded(PROFILE.accuracy()), numbers(1_000, 10)
    assert torch.equal(ar.round(ar.load(x), "maybe").mean, x.double())
    assert torch.equal(ar.round(ar.load(x), "bf16").mean, x.bfloat16().double())
