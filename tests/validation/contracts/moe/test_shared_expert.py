"""The shared experts' reference against plain loops, what adopting sent partials does, and the regimes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.moe import shared
from validation.contracts.moe.shared import CONTRACT, SharedExpertArguments, negative_zeros
from validation.numerics.arithmetic import Exact, Noise, Rounded

# float64 sums of at most 300 terms in another order, and libm's tanh and exp, relative to the sum of sizes.
CLOSE = 400 * 2.0**-53


def drawn(
    regime: str, ranks: int = 4, rows: int = 3, hidden: int = 64, width: int = 24
) -> SharedExpertArguments:
    case = Case.of("shared_expert", regime, 3, ranks=ranks, rows=rows, hidden=hidden, width=width)
    return shared.build(case)


def activation(g: float, u: float, beta: float, linear: float) -> float:
    sigmoid = 1 / (1 + math.exp(-g)) if g > -700 else 0.0
    return beta * math.tanh(g / beta) * sigmoid * linear * math.tanh(u / linear)


@pytest.mark.parametrize("regime", ["typical", "saturated", "cancelling", "one_hot"])
def test_the_reference_is_the_plain_loop(regime: str) -> None:
    a = drawn(regime, ranks=2, rows=2, hidden=24, width=8)
    h, found = a.h.double().tolist(), shared.reference(Exact(), a)
    total = [[0.0] * 24 for _ in range(2)]
    for rank in range(2):
        weights, down = a.gate_up[rank].double().tolist(), a.down[rank].double().tolist()
        for i in range(2):
            products = [math.fsum(x * w for x, w in zip(h[i], row, strict=True)) for row in weights]
            pairs = zip(products[:8], products[8:], strict=True)
            hidden = [activation(g, u, a.beta, a.linear_beta) for g, u in pairs]
            for j in range(24):
                terms = [x * w for x, w in zip(hidden, down[j], strict=True)]
                size = sum(map(abs, terms)) + 1e-300
                # An error of the gate moves the activation by at most about as much: slope below 1.1.
                slack = CLOSE * size * 8 * (1 + max(map(abs, products)))
                assert abs(float(found["partial"].mean[rank, i, j]) - math.fsum(terms)) <= slack
                total[i][j] += float(found["partial"].mean[rank, i, j])
    size = found["partial"].mean.abs().sum(0)
    assert bool(((found["out"].mean - torch.tensor(total, dtype=torch.float64)).abs() <= CLOSE * size).all())


def test_values_are_rounded_where_the_specification_says() -> None:
    a = drawn("typical")
    rounded = shared.reference(Rounded(shared.SPECIALIZED), a)
    bf16 = [(a.h.double() @ w.double().T).bfloat16().double() for w in a.gate_up]
    hidden = []
    for both in bf16:
        g, u = both[:, :24], both[:, 24:]
        s = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)
        hidden.append(s.bfloat16().double())
    partial = torch.stack([(s @ d.double().T) for s, d in zip(hidden, a.down, strict=True)]).bfloat16()
    assert torch.equal(rounded["partial"].mean, partial.double())
    total = partial[0].float()
    for part in partial[1:]:
        total = total + part.float()
    assert torch.equal(rounded["out"].mean, total.bfloat16().double())


def test_the_sum_is_judged_on_the_partials_that_were_sent() -> None:
    a = drawn("typical")
    outcome = dataclasses.replace(a, partial=torch.randn(4, 3, 64).bfloat16())
    made = CONTRACT.adopt(a, outcome)
    found = shared.reference(Noise(shared.SPECIALIZED), made)
    assert found["out"].variance is None, "in rank order the sum of known partials is known to the bit"
    assert torch.equal(found["out"].mean.bfloat16(), outcome.partial.float().sum(0).bfloat16())
    assert torch.equal(
        found["partial"].mean, shared.reference(Noise(shared.SPECIALIZED), a)["partial"].mean
    ), "what was sent is itself judged on the truth"


def test_mailboxes_are_longer_than_the_step_and_every_pitch_differs() -> None:
    a = drawn("typical")
    strides = shared.strides(a)
    assert strides["partial"][0] == 64 * strides["partial"][1]
    pitches = [strides[name][-2] for name in ("h", "gate_up", "partial", "out")]
    assert len(set(pitches)) == 4
    assert 2 * shared.strides(drawn("wide_offsets", ranks=3))["gate_up"][0] >= 2**31


def test_saturated_gates_reach_the_ends_of_tanh_and_sigmoid() -> None:
    a = drawn("saturated", hidden=256)
    both = a.h.double() @ a.gate_up[0].double().T
    gate, up = both[:, :24], both[:, 24:]
    assert float(gate.max()) > 20
    assert float(gate.min()) < -20
    assert float(up.abs().max()) > 25


def test_pairs_of_ranks_nearly_cancel_and_others_do_not() -> None:
    def left(regime: str) -> float:
        partial = shared.reference(Exact(), drawn(regime))["partial"].mean
        return float((partial.sum(0).abs() / partial.abs().sum(0)).median())

    assert left("cancelling") < 0.02
    assert left("typical") > 0.2


def test_one_hot_rows_make_gates_and_ups_weights() -> None:
    a = drawn("one_hot")
    hot = a.h.argmax(1)
    assert int((a.h != 0).sum()) == 3
    assert torch.equal(a.h.double() @ a.gate_up[1].double().T, 4 * a.gate_up[1].double()[:, hot].T)


def test_honest_sums_underflow_to_minus_zero_and_that_is_a_finding() -> None:
    a = drawn("negative_zero")
    partial = shared.reference(Exact(), a)["partial"].mean.float().bfloat16()
    assert int(negative_zeros(partial).sum()) > 10
    assert int(negative_zeros(partial + 0.0).sum()) == 0
    assert int(negative_zeros(a.h).sum()) == 32


def test_a_nan_stays_in_its_row() -> None:
    out = shared.reference(Exact(), drawn("nan_row"))["out"].mean
    assert out.isnan().any(1).tolist() == out.isnan().all(1).tolist() == [False, True, False]


def test_the_full_tier_has_both_parallelisms_at_every_batch() -> None:
    shapes = {(c["ranks"], c["width"], c["rows"]) for c in shared.cases("full") if c["hidden"] == 7168}
    for ranks, width in ((8, 768), (16, 384)):
        assert {(ranks, width, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)} <= shapes
