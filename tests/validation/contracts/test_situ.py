"""SiTU: its value, the two forms' errors against FP32 computations, and the slope that carries noise."""

from __future__ import annotations

import math

import pytest
import torch

from validation.contracts.situ import BETA, LINEAR_BETA, gate_half, situ
from validation.numerics.arithmetic import Exact, Noise
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

GATES = torch.linspace(-20, 20, 4001).bfloat16()
UPS = GATES.flip(0) * 3


def profile(**algebra: str) -> Profile:
    return Profile("p", {"h": BF16}, algebra=algebra)


def exponential_tanh(x: torch.Tensor) -> torch.Tensor:
    size = 1 - 2 / (torch.exp(2 * x.abs()) + 1)
    return torch.copysign(size, x)


def test_the_value_is_the_formula() -> None:
    ar = Exact()
    found = situ(ar, ar.load(GATES), ar.load(UPS)).mean
    for at in (0, 700, 2000, 3500, 4000):
        g, u = float(GATES[at]), float(UPS[at])
        expected = BETA * math.tanh(g / BETA) / (1 + math.exp(-g)) * LINEAR_BETA * math.tanh(u / LINEAR_BETA)
        assert float(found[at]) == pytest.approx(expected, rel=2.0**-40)


FORMS = {
    "direct": (profile(), lambda g: BETA * torch.tanh(g / BETA) * torch.sigmoid(g)),
    "half_tanh": (
        profile(situ="half_tanh"),
        lambda g: torch.tanh(g * (1 / BETA)) * ((torch.tanh(g * 0.5) + 1) * (0.5 * BETA)),
    ),
    "exponential": (
        profile(tanh="exponential"),
        lambda g: exponential_tanh(g * (1 / BETA)) * (torch.sigmoid(g) * BETA),
    ),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_the_predicted_noise_covers_an_fp32_computation(form: str) -> None:
    declared, compute = FORMS[form]
    ar = Noise(declared)
    value = gate_half(ar, ar.load(GATES))
    assert value.variance is not None
    score = (compute(GATES.float()).double() - value.mean) / value.variance.sqrt().clamp(min=1e-300)
    assert 0.05 < float(score.square().mean()) < 1.5
    assert float(score.abs().max()) < 8


def test_the_noise_of_a_gate_is_carried_by_the_slope_of_the_whole() -> None:
    ar, step = Noise(profile()), 1e-4
    g = torch.linspace(-6, 6, 101, dtype=torch.float64)
    noisy = Value(ar, g, torch.full_like(g, 1e-12))
    carried = gate_half(ar, noisy).variance
    exact = Exact()
    low, high = (gate_half(exact, Value(exact, g + d)).mean for d in (-step, step))
    slope = (high - low) / (2 * step)
    own = gate_half(ar, Value(ar, g)).variance
    assert carried is not None
    assert own is not None
    error = (carried - own - slope**2 * 1e-12).abs()
    assert bool((error <= 1e-3 * slope**2 * 1e-12 + 1e-18).all())
