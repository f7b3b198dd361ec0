"""Slices, shared noise, inflation, jumps, known elements, empty tensors and what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from validation.numerics.arithmetic import Noise
from validation.numerics.formats import BF16, FP32
from validation.numerics.profile import Profile
from validation.numerics.scores import Question, Statistic, judge, sharing
from validation.numerics.value import Value

AR = Noise(Profile("plain", {}))
ROWS, COLUMNS = 16, 256
AXES = ("row", "column")
SHARE = 1e-3
INF, NAN = math.inf, math.nan


def normal(*shape: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64)


MEANS = normal(ROWS, COLUMNS, seed=1)
SD = 32 * FP32.spacing(MEANS)  # noise of FP32 sums
SPACING = BF16.spacing(MEANS)


def fp32(error: Tensor, **options: object) -> dict[str, Statistic]:
    """Judgement of FP32 results that are ``error`` deviations off."""
    observed = (MEANS + SD * error).float()
    question = Question(AXES, "fp32", options.pop("share", SHARE), **options)
    return {s.name: s for s in judge(observed, Value(AR, MEANS, SD**2), question)}


def failed(statistics: dict[str, Statistic]) -> set[str]:
    return {name for name, s in statistics.items() if s.failed}


def bf16(observed: list[float] | Tensor, means: list[float] | Tensor, *parts: Tensor | None) -> dict:
    """Judgement of a vector in BF16."""
    y, m = (torch.as_tensor(x, dtype=torch.float64) for x in (observed, means))
    question = Question(("element",), "bf16", SHARE)
    return {s.name: s for s in judge(y.bfloat16(), Value(AR, m, *parts), question)}


# -- slices ----------------------------------------------------------------------------------------

HONEST = normal(ROWS, COLUMNS, seed=2)
ERRORS = {
    "mean_square": 1.6 * HONEST,
    "bias": HONEST + 0.5,
    "projection": HONEST + 0.5 * MEANS.sign(),
}
PLACES = {
    "row": (1.0, (slice(9, 10), slice(None))),
    "column": (4.0, (slice(None), slice(30, 31))),
    "row x column/64": (2.0, (slice(9, 10), slice(64, 128))),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_one_slice_is_seen_in_that_slice_only(name: str, place: str) -> None:
    size, index = PLACES[place]  # 16 and 64 elements show less than 256
    mask = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    mask[index] = True
    error = torch.where(mask, HONEST + size * (ERRORS[name] - HONEST), HONEST)
    assert name not in failed(fp32(error)), "too little for the whole tensor"
    found = fp32(error, slices=(("row",), ("column",), ("row", "column/64")))[name]
    assert found.failed
    assert f"({place})" in found.detail
    assert torch.equal(found.where, mask)


def test_slices_of_honest_results_are_quiet() -> None:
    assert failed(fp32(HONEST, slices=(("row",), ("column",), ("row", "column/64")))) == set()


# -- shared noise ----------------------------------------------------------------------------------


def test_sharing_counts_the_shared_axes_that_a_slice_sums_over() -> None:
    question = Question(("head", "v", "k"), "fp32", SHARE, shared=("v", "k"))
    shape = torch.Size((3, 5, 7))
    assert sharing(question, shape, frozenset()) == 35
    assert sharing(question, shape, {"head"}) == 35
    assert sharing(question, shape, {"head", "v"}) == 7
    assert sharing(question, shape, {"v", "k"}) == 1


@pytest.mark.parametrize("axis", AXES)
def test_noise_that_moves_an_axis_together_raises_alarms_unless_it_is_declared(axis: str) -> None:
    slices, draws, share = (("row",), ("column",)), 60, 0.05
    loud = quiet = 0
    for seed in range(100, 100 + draws):
        common = normal(ROWS, 1, seed=seed) if axis == "column" else normal(1, COLUMNS, seed=seed)
        error = common.expand(ROWS, COLUMNS)
        loud += bool(failed(fp32(error, slices=slices, share=share)))
        quiet += bool(failed(fp32(error, slices=slices, share=share, shared=(axis,))))
    assert quiet <= share * draws, f"seeds 100 to {99 + draws}"
    assert loud == draws


def test_declared_sharing_costs_sensitivity_only_where_it_is_shared() -> None:
    shift = HONEST + 0.3
    assert "bias" in failed(fp32(shift))
    assert "bias" not in failed(fp32(shift, shared=("row", "column")))
    assert "bias" not in failed(fp32(shift, shared=("column",)))


def test_the_error_of_the_store_is_never_shared() -> None:
    """In BF16 with noise far below the spacing sharing changes nothing."""
    predicted = Value(AR, MEANS, (1e-6 * SPACING) ** 2)
    observed = (MEANS * (1 + 2.0**-11)).bfloat16()
    alone, shared = (
        {s.name: s for s in judge(observed, predicted, Question(AXES, "bf16", SHARE, shared=shared))}
        for shared in ((), ("row", "column"))
    )
    assert alone["projection"].failed
    assert shared["projection"].failed
    for name in ("mean_square", "bias", "projection"):
        ratios = [s[name].value / s[name].limit for s in (alone, shared)]
        assert ratios[0] == pytest.approx(ratios[1], rel=1e-6), name


# -- inflation -------------------------------------------------------------------------------------

INFLATED = [
    ("mean_square", 1.3 * HONEST, 1.4, 1.4**2),
    ("bias", HONEST + 0.1, 1.6, 1.6),
    ("projection", HONEST + 0.08 * MEANS.sign(), 1.6, 1.6),
]


@pytest.mark.parametrize(("name", "error", "factor", "widening"), INFLATED)
def test_a_calibrated_factor_widens_its_statistic_alone(
    name: str, error: Tensor, factor: float, widening: float
) -> None:
    plain, inflated = fp32(error), fp32(error, inflation={name: factor})
    assert failed(plain) == {name}
    assert failed(inflated) == set()
    assert inflated[name].limit == pytest.approx(plain[name].limit * widening)
    for other in set(plain) - {name}:
        assert (inflated[other].value, inflated[other].limit) == (plain[other].value, plain[other].limit)


def test_a_calibrated_factor_widens_excess_and_flips() -> None:
    means = torch.full((400,), 1.25 + 0.49 * 2.0**-7, dtype=torch.float64)
    sd = torch.full_like(means, 0.004 * 2.0**-7)
    values = {}
    for factor in (1.0, 2.0):
        question = Question(("element",), "bf16", SHARE, inflation={"excess": factor, "flips": factor})
        observed = torch.full((400,), 1.25 + 2.0**-6).bfloat16()
        values[factor] = {s.name: s for s in judge(observed, Value(AR, means, sd**2), question)}
    assert values[2.0]["excess"].value == pytest.approx(values[1.0]["excess"].value / 2)
    assert values[2.0]["flips"].limit > 5 * values[1.0]["flips"].limit


# -- jumps -----------------------------------------------------------------------------------------


def jumping(steps: float, probability: float) -> dict[str, Statistic]:
    """100 elements, the tenth of which may jump by a spacing and is ``steps`` spacings off."""
    means = torch.full((100,), 1.25, dtype=torch.float64)
    jump, jump_variance = torch.zeros_like(means), torch.zeros_like(means)
    jump[10], jump_variance[10] = 2.0**-7, probability * 2.0**-14
    observed = means.clone()
    observed[10] += steps * 2.0**-7
    return bf16(observed, means, torch.full_like(means, 1e-12), jump_variance, jump)


def test_a_predicted_jump_is_no_finding() -> None:
    assert failed(jumping(1, 1e-3)) == set()
    assert failed(jumping(2, 1e-3)) == set(), "from next to the boundary"


def test_more_than_a_predicted_jump_is_a_finding() -> None:
    found = jumping(6, 1e-3)
    assert "excess" in failed(found)
    assert found["excess"].where.nonzero().tolist() == [[10]]


def test_a_jump_that_was_not_predicted_is_a_finding() -> None:
    assert "excess" in failed(jumping(1, 0.0))


def test_jumps_too_rare_for_the_share_do_not_widen_a_limit() -> None:
    negligible = SHARE / 6 / (8 * 100)
    assert "excess" in failed(jumping(1, 0.5 * negligible))
    assert "excess" not in failed(jumping(1, 2 * negligible))


def test_elements_that_may_jump_are_left_out_of_the_sums() -> None:
    quiet, jumped = jumping(0, 1e-3), jumping(1, 1e-3)
    assert jumped["mean_square"].mean_square == quiet["mean_square"].mean_square
    assert jumped["bias"].value == quiet["bias"].value


# -- known, empty, not finite ----------------------------------------------------------------------


def test_exactly_known_elements_allow_no_other_value() -> None:
    known = [1.0, -2.5, 0.0, 1e30]
    assert failed(bf16(known, known)) == set()
    for at in range(4):
        observed = torch.tensor(known, dtype=torch.float64)
        observed[at] = float(BF16.neighbours(observed[at : at + 1])[1])
        found = bf16(observed, known)
        assert failed(found) == {"excess"}
        assert found["excess"].where.nonzero().tolist() == [[at]]
    assert bf16(known, known)["mean_square"].mean_square is None


def test_either_side_of_an_exact_tie_is_right() -> None:
    tie = 1.25 + 2.0**-8
    assert failed(bf16([1.25, 1.25 + 2.0**-7], [tie, tie])) == set()
    assert failed(bf16([1.25 - 2.0**-7], [tie])) == {"excess"}


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("fmt", ["bf16", "fp32"])
def test_an_empty_output_raises_nothing(shape: tuple[int, int], fmt: str) -> None:
    nothing = torch.zeros(shape, dtype=torch.bfloat16 if fmt == "bf16" else torch.float32)
    means = nothing.double()
    question = Question(AXES, fmt, SHARE, slices=(("row",),))
    for parts in ((), (means,), (means, means, means)):
        found = judge(nothing, Value(AR, means, *parts), question)
        assert {s.name: s.value for s in found if s.failed} == {}


def test_not_finite_must_stand_where_the_reference_has_it() -> None:
    means = [NAN, INF, -INF, 1.0, 2.0, 3.0]
    noise = torch.full((6,), 1e-12, dtype=torch.float64)
    assert failed(bf16(means, means, noise)) == set()
    for observed in (
        [1.0, INF, -INF, 1.0, 2.0, 3.0],
        [NAN, NAN, -INF, 1.0, 2.0, 3.0],
        [NAN, INF, INF, 1.0, 2.0, 3.0],
        [NAN, 3e38, -INF, 1.0, 2.0, 3.0],
        [NAN, INF, -INF, NAN, 2.0, 3.0],
        [NAN, INF, -INF, 1.0, INF, 3.0],
    ):
        found = bf16(observed, means, noise)
        assert failed(found) == {"nonfinite"}
        assert found["nonfinite"].value == 1


def test_the_words_tell_extra_from_lost() -> None:
    found = bf16([NAN, INF, 1.0], [1.0, 2.0, NAN], torch.full((3,), 1e-12, dtype=torch.float64))
    words = "2 not finite where the reference is, 1 finite, or another kind, where it is not"
    assert found["nonfinite"].detail == words


def test_an_element_beside_a_nan_is_still_judged() -> None:
    noise = torch.full((2,), 1e-12, dtype=torch.float64)
    assert failed(bf16([NAN, 1.5], [NAN, 1.0], noise)) == {"excess", "mean_square", "bias", "projection"}


@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_is_free_to_happen_only_within_noise_of_the_edge(sign: int) -> None:
    edge = BF16.maximum + 2.0**119
    noise = torch.tensor([(edge * 2.0**-22) ** 2], dtype=torch.float64)
    for mean in (edge * (1 - 2.0**-21), edge * (1 + 2.0**-21)):
        for right in (INF, BF16.maximum):
            assert failed(bf16([sign * right], [sign * mean], noise)) == set()
        assert failed(bf16([-sign * INF], [sign * mean], noise)) == {"nonfinite"}
    for mean, wrong in ((1e39, BF16.maximum), (1e39, 0.0), (3e38, INF), (1e39, -INF)):
        assert "nonfinite" in failed(bf16([sign * wrong], [sign * mean], noise))
