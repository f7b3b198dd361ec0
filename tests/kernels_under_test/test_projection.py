"""The projection kernels on small integers, whose products and sums are exact in FP32: every bit is known."""

import pytest
import torch

from kernels_under_test.triton_portable.projection import TACTICS, dispatch, projection
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.arguments import ProjectionArguments


def arguments(batch: int, n: int, k: int) -> ProjectionArguments:
    """Integers in -8..8 between NaN."""
    draw = torch.Generator().manual_seed(batch + n + k)
    x = torch.randint(-8, 9, (batch, k), generator=draw).to(torch.bfloat16)
    weight = torch.randint(-8, 9, (n, k), generator=draw).to(torch.bfloat16)
    out = torch.full((batch, n), NAN, dtype=torch.bfloat16)
    return ProjectionArguments(spread(x), spread(weight), spread(out))


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 17, 33, 65])  # both sides of each tactic, and two row blocks
@pytest.mark.parametrize(("n", "k"), [(64, 1024), (65, 1300), (3, 31), (1, 1)])  # whole tiles, tails, less
def test_every_bit_is_right(batch, n, k):
    a = arguments(batch, n, k)
    projection(a)
    exact = (a.x.double() @ a.weight.double().T).to(torch.bfloat16)
    assert same_bits(a.out, exact)


@pytest.mark.parametrize("batch", [2, 16])
def test_gaps_between_output_rows_stay_untouched(batch):
    a = arguments(batch, 65, 40)
    projection(a)
    gaps = a.out.as_strided((batch, 7), (65 + 7, 1), 0)
    assert gaps.isnan().all()


@pytest.mark.parametrize("batch", [1, 4, 40])
def test_equal_calls_give_equal_bits(batch):
    a = arguments(batch, 100, 700)
    a.x.copy_(torch.randn(batch, 700))
    projection(a)
    first = a.out.clone()
    projection(a)
    assert same_bits(a.out, first)


def test_dispatch_is_skinny_to_two_rows_and_split_k_above():
    assert [dispatch(batch).kernel for batch in (1, 2, 3, 64, 500)] == ["skinny"] * 2 + ["split_k"] * 3
    assert all(dispatch(most) is tactic for most, tactic in TACTICS.items())
    assert list(TACTICS) == sorted(TACTICS)
