"""The front's kernels on small integers, whose products and sums are exact in FP32: every bit is known."""

from __future__ import annotations

import pytest
import torch

from kernels_under_test.triton_portable.moe_front import TACTICS, dispatch, front, kernels, moe_front
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.contract import Case
from validation.contracts.moe.front import MoeFrontArguments
from validation.dispatch.launches import recorded
from validation.errors import UserError


def arguments(batch: int, ranks: int, experts: int, columns: int, k: int) -> MoeFrontArguments:
    """Integers in -4..4 between NaN."""
    draw = torch.Generator().manual_seed(batch + ranks + k)

    def integers(*shape: int) -> torch.Tensor:
        return spread(torch.randint(-4, 5, shape, generator=draw).to(torch.bfloat16))

    logits = spread(torch.full((batch, ranks * experts), NAN))
    latent = spread(torch.full((batch, ranks * columns), NAN, dtype=torch.bfloat16))
    router, down = integers(ranks, experts, k), integers(ranks, columns, k)
    return MoeFrontArguments(integers(batch, k), router, down, logits, latent)


def exact(a: MoeFrontArguments) -> tuple[torch.Tensor, torch.Tensor]:
    h = a.h.double()
    logits, latent = (h @ w.double().flatten(0, 1).T for w in (a.router, a.down))
    return logits.float(), latent.to(torch.bfloat16)


@pytest.mark.parametrize(
    "batch", [1, 2, 3, 16, 17, 65]
)  # both sides of each tactic, and two blocks of tokens
@pytest.mark.parametrize(
    ("ranks", "experts", "columns", "k"), [(2, 16, 64, 512), (3, 5, 33, 300), (1, 1, 2, 31), (1, 300, 17, 64)]
)
def test_every_bit_is_right(batch, ranks, experts, columns, k):
    a = arguments(batch, ranks, experts, columns, k)
    moe_front(a)
    logits, latent = exact(a)
    assert same_bits(a.logits, logits)
    assert same_bits(a.latent, latent)


@pytest.mark.parametrize("batch", [2, 6])
def test_one_rank_alone_writes_its_slices_and_nothing_else(batch):
    a = arguments(batch, 3, 5, 7, 100)
    front(a.h, a.router[1], a.down[1], a.logits[:, 5:10], a.latent[:, 7:14])
    logits, latent = exact(a)
    for found, right, width in ((a.logits, logits, 5), (a.latent, latent, 7)):
        assert same_bits(found[:, width : 2 * width], right[:, width : 2 * width])
        assert found[:, :width].isnan().all()
        assert found[:, 2 * width :].isnan().all()
        gaps = found.as_strided((batch, 7), (3 * width + 7, 1), 0)
        assert gaps.isnan().all()


@pytest.mark.parametrize("batch", [1, 5])
def test_zeros_are_positive(batch):
    a = arguments(batch, 2, 3, 4, 64)
    a.h.fill_(-0.0)
    a.router.abs_()
    a.down.abs_()
    moe_front(a)
    for out in (a.logits, a.latent):
        assert (out == 0).all()
        assert not torch.signbit(out).any()


@pytest.mark.parametrize("batch", [1, 9])
def test_equal_calls_give_equal_bits(batch):
    a = arguments(batch, 2, 7, 9, 900)
    a.h.normal_()
    moe_front(a)
    first = a.logits.clone(), a.latent.clone()
    moe_front(a)
    assert same_bits(a.logits, first[0])
    assert same_bits(a.latent, first[1])


def test_what_is_launched_is_what_the_table_says():
    for batch in (2, 3):
        a = arguments(batch, 2, 3, 4, 64)
        case = Case.of("moe_front", "typical", 1, rows=batch, ranks=2, experts=3, latent=4, k=64)
        with recorded() as names:
            moe_front(a)
        assert tuple(names) == kernels(case)
    assert [dispatch(batch, 8).kernel for batch in (1, 2, 3, 64, 500)] == ["stream"] * 2 + ["split_k"] * 3
    assert list(TACTICS) == sorted(TACTICS)
    assert dispatch(1, 1).step > dispatch(1, 8).step


def test_shapes_that_do_not_fit_are_refused_by_name():
    a = arguments(2, 3, 5, 7, 64)
    with pytest.raises(UserError, match=r"logits is \[2, 14\]; with these shards it must be \[2, 15\]"):
        moe_front(MoeFrontArguments(a.h, a.router, a.down, a.logits[:, :14], a.latent))
    with pytest.raises(UserError, match="down is"):
        moe_front(MoeFrontArguments(a.h, a.router, a.down[:2], a.logits, a.latent))
    with pytest.raises(UserError, match="h must be dense along its last axis"):
        moe_front(MoeFrontArguments(a.h[:, ::2], a.router[..., :32], a.down[..., :32], a.logits, a.latent))
