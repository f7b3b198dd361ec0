"""Each statistic sees the error that it is for, which the others let pass; honest draws raise nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from validation.numerics.arithmetic import Noise
from validation.numerics.formats import BF16, FORMATS
from validation.numerics.profile import Profile
from validation.numerics.scores import STATISTICS, Question, Statistic, judge
from validation.numerics.value import Value

AR = Noise(Profile("plain", {}))
ROWS, COLUMNS = 16, 256
AXES = ("row", "column")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def question(fmt: str = "bf16", share: float = 1e-3, **options: object) -> Question:
    return Question(AXES, fmt, share, **options)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


class Setting:
    """Predictions [row, column] of unit size with noise ``relative`` spacings wide (of FP32: as FP32 sums
    have, 32 spacings), and what an honest backend would store."""

    def __init__(self, seed: int, fmt: str = "bf16", relative: float = 0.02) -> None:
        self.seed, self.fmt = seed, fmt
        self.means = normal(ROWS, COLUMNS, seed=seed)
        self.spacing = FORMATS[fmt].spacing(self.means)
        self.sd = self.spacing * (32.0 if fmt == "fp32" else relative)
        self.predicted = Value(AR, self.means, self.sd**2)

    def stored(self, error: Tensor) -> Tensor:
        """``error`` in units of the predicted deviation."""
        return (self.means + self.sd * error).float().to(DTYPES[self.fmt])

    def honest(self) -> Tensor:
        return self.stored(normal(ROWS, COLUMNS, seed=self.seed + 1_000_000))


def failures(statistics: list[Statistic]) -> set[str]:
    return {s.name for s in statistics if s.failed}


def named(statistics: list[Statistic], name: str) -> Statistic:
    return next(s for s in statistics if s.name == name)


# -- each statistic sees its own ------------------------------------------------------------------


def one_nan(s: Setting) -> tuple[Tensor, Tensor]:
    y = s.honest()
    y[3, 7] = math.nan
    return y, y.isnan()


def one_element(s: Setting) -> tuple[Tensor, Tensor]:
    y = s.honest()
    at = (5, 100)
    step = 2 * s.spacing[at] if s.fmt == "bf16" else 12 * s.sd[at]
    y[at] = (s.means[at] + step).float()
    mask = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    mask[at] = True
    return y, mask


def near_ties(s: Setting) -> tuple[Tensor, Tensor]:
    """Everything within two deviations of a boundary lands on its other side."""
    grid = BF16.round(s.means)
    low, high = BF16.bracket(grid)
    down, up = BF16.neighbours(grid)
    over, under = high - s.means < 2 * s.sd, s.means - low < 2 * s.sd
    return torch.where(over, up, torch.where(under, down, grid)).bfloat16(), over | under


def too_noisy(s: Setting) -> tuple[Tensor, Tensor]:
    return s.stored(1.3 * normal(ROWS, COLUMNS, seed=77)), torch.ones(ROWS, COLUMNS, dtype=torch.bool)


def shifted(s: Setting) -> tuple[Tensor, Tensor]:
    return s.stored(normal(ROWS, COLUMNS, seed=78) + 0.2), torch.ones(ROWS, COLUMNS, dtype=torch.bool)


def scaled(s: Setting) -> tuple[Tensor, Tensor]:
    error = normal(ROWS, COLUMNS, seed=79) + 0.2 * s.means.sign()
    return s.stored(error), torch.ones(ROWS, COLUMNS, dtype=torch.bool)


PLANTED: list[tuple[str, str, Callable[[Setting], tuple[Tensor, Tensor]]]] = [
    ("nonfinite", "bf16", one_nan),
    ("nonfinite", "fp32", one_nan),
    ("excess", "bf16", one_element),
    ("excess", "fp32", one_element),
    ("flips", "bf16", near_ties),
    ("mean_square", "fp32", too_noisy),
    ("bias", "fp32", shifted),
    ("projection", "fp32", scaled),
]


def test_every_statistic_has_its_planted_error() -> None:
    assert {name for name, _, _ in PLANTED} == set(STATISTICS)


@pytest.mark.parametrize(("name", "fmt", "plant"), PLANTED)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_planted_error_is_seen_by_its_statistic_alone(
    name: str, fmt: str, plant: Callable[[Setting], tuple[Tensor, Tensor]], seed: int
) -> None:
    setting = Setting(seed, fmt)
    observed, mask = plant(setting)
    found = judge(observed, setting.predicted, question(fmt))
    assert failures(found) == {name}, f"seed {seed}"
    assert torch.equal(named(found, name).where, mask)
    assert failures(judge(setting.honest(), setting.predicted, question(fmt))) == set()


def test_fp32_has_no_flips_and_the_others_do() -> None:
    for fmt, expected in (("bf16", set(STATISTICS)), ("fp32", set(STATISTICS) - {"flips"})):
        setting = Setting(1, fmt)
        assert {s.name for s in judge(setting.honest(), setting.predicted, question(fmt))} == expected


def test_a_passing_statistic_marks_no_place() -> None:
    setting = Setting(4)
    assert [s.where for s in judge(setting.honest(), setting.predicted, question())] == [None] * 6


def test_the_worst_element_is_named_with_its_place_and_values() -> None:
    setting = Setting(5)
    observed, _ = one_element(setting)
    detail = named(judge(observed, setting.predicted, question()), "excess").detail
    assert detail.endswith("at row 5, column 100")
    assert f"observed {float(observed[5, 100]):.8g}, expected {float(setting.means[5, 100]):.8g}" in detail


# -- honest draws ----------------------------------------------------------------------------------

SHARE, DRAWS = 0.05, 200
KINDS = {
    "noise far below the spacing": ("bf16", 0.003),
    "noise of a twentieth": ("bf16", 0.05),
    "noise of the spacing": ("bf16", 1.0),
    "fp32": ("fp32", 0.0),
}
SLICES = (("row",), ("row", "column/64"))


def alarms(fmt: str, relative: float, widened: float = 1.0) -> dict[str, int]:
    """In how many of the draws each statistic, and any of them, fails."""
    counts = dict.fromkeys([*STATISTICS, "any"], 0)
    for seed in range(DRAWS):
        setting = Setting(seed, fmt, relative)
        observed = setting.stored(widened * normal(ROWS, COLUMNS, seed=seed + 5_000))
        failed = failures(judge(observed, setting.predicted, question(fmt, SHARE, slices=SLICES)))
        for name in [*failed, *(["any"] if failed else [])]:
            counts[name] += 1
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_honest_draws_raise_fewer_alarms_than_the_share(kind: str) -> None:
    counts = alarms(*KINDS[kind])
    assert counts["any"] <= SHARE * DRAWS, f"seeds 0 to {DRAWS - 1}: {counts}"


@pytest.mark.parametrize("kind", ["noise of the spacing", "fp32"])
def test_noise_a_sixth_wider_than_predicted_raises_alarms(kind: str) -> None:
    counts = alarms(*KINDS[kind], widened=7 / 6)
    assert counts["any"] > 0.9 * DRAWS, counts


def test_fewer_alarms_are_asked_for_by_a_smaller_share() -> None:
    setting = Setting(6, "fp32")
    loose, strict = (
        {s.name: s for s in judge(setting.honest(), setting.predicted, question("fp32", share))}
        for share in (1e-2, 1e-8)
    )
    for name in ("mean_square", "bias", "projection"):
        assert strict[name].limit > loose[name].limit
        assert strict[name].value == loose[name].value
    assert strict["excess"].value < loose["excess"].value, "in units of its limit"
    assert strict["bias"].level == pytest.approx(math.log(2 * 6 / 1e-8))
    assert strict["bias"].share == pytest.approx(1e-8 / 6)


def test_the_mean_square_of_honest_draws_is_one() -> None:
    squares = []
    for seed in range(20):
        setting = Setting(seed, "bf16", 0.5)
        found = named(judge(setting.honest(), setting.predicted, question()), "mean_square")
        squares.append(found.mean_square)
    assert abs(sum(squares) / 20 - 1) < 6 * math.sqrt(2 / (20 * ROWS * COLUMNS)), "seeds 0 to 19"


def test_what_the_store_is_known_to_add_is_no_scale_error():
    """BF16 numbers times 1.0017 all round back to themselves: an error of 0.17 %, on every honest machine."""
    means = normal(ROWS, COLUMNS, seed=3).bfloat16().double() * 1.0017
    predicted = Value(AR, means, (1e-7 * means) ** 2)
    assert failures(judge(means.bfloat16(), predicted, question(slices=(("row",),)))) == set()


@pytest.mark.parametrize("relative", [1e-4, 0.02, 0.2])
def test_a_scale_error_far_below_the_spacing_still_is_one(relative: float):
    setting = Setting(seed=4, relative=relative)
    observed = (setting.means * 1.0005).bfloat16()
    assert named(judge(observed, setting.predicted, question()), "projection").failed
