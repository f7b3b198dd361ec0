"""The dense MLP's reference against plain loops, and what its regimes promise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from validation.contracts import dense
from validation.contracts.dense import DenseMlpArguments, build, case, reference, strides
from validation.numerics.arithmetic import Exact, Noise, Rounded
from validation.numerics.formats import BF16

# float64 sums of up to a few hundred terms in another order lose at most 10 of 53 bits.
CLOSE = 2.0**-43


def drawn(regime: str = "typical", ranks: int = 3, rows: int = 3, **shape: int) -> DenseMlpArguments:
    return build(case(regime, 3, ranks, rows, **({"width": 40, "hidden": 24} | shape)))


def situ(g: float, u: float) -> float:
    sigmoid = 1 / (1 + math.exp(-g)) if g > 0 else math.exp(g) / (1 + math.exp(g))
    return 4 * math.tanh(g / 4) * sigmoid * 25 * math.tanh(u / 25)


def gates(a: DenseMlpArguments) -> torch.Tensor:
    """Gate and up before any rounding [rank, row, 2 F], float64."""
    return a.x.double() @ a.gate_up.double().transpose(1, 2)


@pytest.mark.parametrize("regime", ["typical", "outliers", "cancelling_gates", "cancelling"])
def test_the_reference_is_the_plain_loop(regime: str) -> None:
    a = drawn(regime, ranks=2, rows=2)
    found, both = reference(Exact(), a)["out"].mean, gates(a).tolist()
    for row in range(2):
        hidden = [[situ(b[row][f], b[row][24 + f]) for f in range(24)] for b in both]
        for column in range(40):
            terms = [
                h * w
                for rank in range(2)
                for h, w in zip(hidden[rank], a.down[rank, column].tolist(), strict=True)
            ]
            error = abs(float(found[row, column]) - math.fsum(terms))
            assert error <= CLOSE * sum(map(abs, terms))


def test_gate_up_hidden_and_partial_are_each_rounded_to_bf16() -> None:
    a = drawn()
    both = gates(a).bfloat16().double()
    g, u = both[..., :24], both[..., 24:]
    hidden = (4 * torch.tanh(g / 4) * torch.sigmoid(g) * (25 * torch.tanh(u / 25))).bfloat16().double()
    partials = (hidden @ a.down.double().transpose(1, 2)).bfloat16().double()
    found = reference(Rounded(dense.STOCK), a)["out"].mean
    assert torch.equal(found, partials.sum(0).bfloat16().double())


def test_saturated_gates_and_ups_reach_both_bounds() -> None:
    both = gates(drawn("saturated"))
    for part, bound in ((both[..., :24], 4.0), (both[..., 24:], 25.0)):
        bent = bound * torch.tanh(part / bound)
        assert float(bent.max()) > 0.999 * bound
        assert float(bent.min()) < -0.999 * bound
    assert float(both.abs().max()) > 25 / 2 * 89, "exp(2 u / 25) is beyond FP32"


def test_cancelling_gates_are_all_where_the_identity_form_ends() -> None:
    g = gates(drawn("cancelling_gates"))[..., :24]
    assert -23 < float(g.min()) < -18.2, "some are 0 in FP32"
    assert float(g.max()) < -11


def test_the_steps_of_the_identity_form_are_predicted_there() -> None:
    def mean(profile: str) -> Tensor:
        a = drawn("cancelling_gates", ranks=1)
        return reference(Noise(dense.CONTRACT.profiles[profile]), a)["out"].mean

    stock, steps = mean("stock"), mean("specialized")
    error = float((steps - stock).norm() / stock.norm())
    print("relative error of the identity form:", error)
    assert error > 8 * BF16.unit_roundoff, "one form would pass for the other"


def test_a_nan_stays_in_its_row_and_a_row_of_zeros_gives_zeros() -> None:
    found = reference(Exact(), drawn("nan_row"))["out"].mean
    assert found.isnan().any(1).tolist() == found.isnan().all(1).tolist() == [False, True, False]
    zero = reference(Exact(), drawn("zero_row"))["out"].mean
    assert (zero == 0).all(1).tolist() == [False, True, False]


def test_ranks_of_wide_cases_are_beyond_32_bits() -> None:
    a = drawn("wide_offsets")
    for name in ("gate_up", "down"):
        assert strides(a)[name][0] * (len(a.down) - 1) >= 2**31


def test_the_full_tier_has_the_shards_of_both_parallelisms_at_every_batch() -> None:
    found = {(c["hidden"], c["rows"]) for c in dense.cases("full") if c["width"] == 7168}
    for hidden in (4224, 2112):
        assert {(hidden, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)} <= found
