"""The dense MLP's kernels where every bit is known: integers, SiTU's bounds, one hidden column."""

from __future__ import annotations

import math

import pytest
import torch

from kernels_under_test.triton_portable.dense_mlp import TABLE, dense_mlp, hide, kernels, supports
from tests.kernels_under_test.memory import NAN, same_bits, spacing, spread
from validation.contracts.dense import DenseMlpArguments, case
from validation.dispatch.launches import recorded
from validation.errors import UserError

BOTH_BOUNDS = 4.0 * 25.0


def arguments(ranks: int, rows: int, width: int = 40, hidden: int = 24) -> DenseMlpArguments:
    """Gates of -1 to 1 times 1,000: SiTU gives 0, 100 or -100, and small integers sum them exactly."""
    draw = torch.Generator().manual_seed(ranks + rows + width)
    x = torch.zeros(rows, width)
    x[torch.arange(rows), torch.randint(width, (rows,), generator=draw)] = 1000.0
    gate_up = torch.randint(-1, 2, (ranks, 2 * hidden, width), generator=draw)
    down = torch.randint(-1, 2, (ranks, width, hidden), generator=draw)
    down[torch.rand(down.shape, generator=draw) > 8 / hidden] = 0
    out = torch.full((rows, width), NAN)
    tensors = (spread(t.to(torch.bfloat16)) for t in (x, gate_up, down, out))
    return DenseMlpArguments(*tensors)


def bounded(a: DenseMlpArguments) -> torch.Tensor:
    """SiTU where everything is saturated: 100 with the sign of up where the gate is positive, else 0."""
    gate, up = (a.x.double() @ a.gate_up.double().transpose(1, 2)).chunk(2, -1)
    return BOTH_BOUNDS * (gate > 0) * torch.sign(up)


@pytest.mark.parametrize(("ranks", "rows"), [(8, 1), (8, 2), (8, 3), (16, 4), (3, 17), (1, 64)])
def test_saturated_values_are_summed_to_the_bit(ranks: int, rows: int) -> None:
    a = arguments(ranks, rows)
    partials = (bounded(a) @ a.down.double().transpose(1, 2)).bfloat16().double()
    dense_mlp(a)
    assert same_bits(a.out, partials.sum(0).bfloat16())


@pytest.mark.parametrize("rows", [1, 2, 3, 20])
@pytest.mark.parametrize(("width", "hidden"), [(1024, 64), (1030, 65), (3, 5)])  # whole tiles, tails, less
def test_any_width_and_hidden_size_will_do(rows: int, width: int, hidden: int) -> None:
    a = arguments(2, rows, width, hidden)
    found = spread(torch.full((2, rows, hidden), NAN, dtype=torch.bfloat16))
    hide(a.x, a.gate_up, found)
    assert torch.equal(found.double(), bounded(a))


@pytest.mark.parametrize("rows", [2, 3])
def test_situ_is_within_a_bf16_step_of_the_formula_for_gates_of_any_size(rows: int) -> None:
    gates = torch.linspace(-12, 12, 97).bfloat16()
    ups = torch.linspace(-60, 60, 97).bfloat16().flip(0)
    a = arguments(1, rows, 3, 97)
    a.x.copy_(torch.tensor([1.0, 0.0, 0.0]))
    a.gate_up.zero_()
    a.gate_up[0, :, 0] = torch.cat([gates, ups])
    found = torch.empty(1, rows, 97, dtype=torch.bfloat16, device=a.x.device)
    hide(a.x, a.gate_up, found)
    for g, u, h in zip(gates.tolist(), ups.tolist(), found[0, 0].tolist(), strict=True):
        exact = 4 * math.tanh(g / 4) / (1 + math.exp(-g)) * 25 * math.tanh(u / 25)
        assert abs(h - exact) <= float(spacing(torch.tensor(exact, dtype=torch.float64)))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_gate_below_minus_18_gives_zero(rows: int) -> None:
    a = arguments(1, rows, 3, 4)
    a.x.copy_(torch.tensor([1.0, 0.0, 0.0]))
    a.gate_up[0, :4, 0] = torch.tensor([-18.25, -30, -200, -3e38])
    a.gate_up[0, 4:, 0] = 2.0
    found = torch.empty(1, rows, 4, dtype=torch.bfloat16, device=a.x.device)
    hide(a.x, a.gate_up, found)
    assert bool((found == 0).all())


@pytest.mark.parametrize("rows", [1, 5])
def test_equal_calls_give_equal_bits(rows: int) -> None:
    a = arguments(2, rows)
    a.x.copy_(torch.randn(a.x.shape))
    dense_mlp(a)
    first = a.out.clone()
    dense_mlp(a)
    assert same_bits(a.out, first)


@pytest.mark.parametrize("rows", [2, 3, 33])
def test_dispatch_changes_above_two_rows(rows: int) -> None:
    first = ("gate_up_skinny_kernel",) if rows <= 2 else ("gate_up_split_kernel", "dense_situ_kernel")
    second = "partial_skinny_kernel" if rows <= 2 else "partial_dot_kernel"
    expected = (*first, second, "add_ranks_kernel")
    assert kernels(case("typical", 0, 2, rows)) == expected
    assert expected in {route.kernels for route in TABLE}
    with recorded() as launched:
        dense_mlp(arguments(2, rows, 16, 16))
    assert tuple(launched) == expected


@pytest.mark.parametrize(
    ("ranks", "rows", "words"), [(2, 65, "64 rows, not 65"), (17, 1, "16 ranks, not 17")]
)
def test_what_has_no_kernel_is_refused_by_plan_and_launch_alike(ranks: int, rows: int, words: str) -> None:
    reason = supports(case("typical", 0, ranks, rows))
    assert reason is not None
    assert words in reason
    with recorded() as launched, pytest.raises(UserError, match=words):
        dense_mlp(arguments(ranks, rows, 3, 4))
    assert launched == []
