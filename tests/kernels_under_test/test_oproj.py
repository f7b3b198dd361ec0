"""The o-projection's kernels on small integers: partials, sum and new prefix are known to the bit."""

from __future__ import annotations

import pytest
import torch

from kernels_under_test.triton_portable.oproj import (
    TABLE,
    consume,
    fused,
    kernels,
    oproj,
    summed,
    supports,
)
from kernels_under_test.triton_portable.rank_partials import add_ranks, produce
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.oproj import case
from validation.contracts.oproj_arguments import OprojArguments
from validation.contracts.oproj_inputs import takes_two_shots
from validation.dispatch.launches import recorded
from validation.errors import UserError


def arguments(ranks: int, rows: int, k: int = 40, width: int = 72, merge: str = "add") -> OprojArguments:
    """Integers small enough that every partial, sum and prefix is a BF16 value, between NaN."""
    draw = torch.Generator().manual_seed(ranks + rows + k + width)

    def integers(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(-most, most + 1, shape, generator=draw).to(torch.bfloat16)

    y = torch.zeros(ranks, rows, k, dtype=torch.bfloat16)
    y[..., :: max(1, k // 3)] = integers(1, *y[..., :: max(1, k // 3)].shape)
    y[..., -1] = 1
    real = torch.randn(4, width, generator=draw).bfloat16()
    return OprojArguments(
        y=spread(y),
        weight=spread(integers(1, ranks, width, k)),
        prefix=spread(integers(50, rows, width)),
        blocks=spread(torch.randn(rows, 8, width, generator=draw).bfloat16()),
        score_gamma=spread(real[0]),
        score_proj=spread(real[1]),
        gamma=spread(real[2]),
        mailbox=spread(torch.full((ranks, rows + 1, width), NAN, dtype=torch.bfloat16)),
        x_moe=spread(torch.full((rows, width), NAN, dtype=torch.bfloat16)),
        out=spread(torch.full((rows, width), NAN, dtype=torch.bfloat16)),
        blocks_read=3,
        merge=merge,  # type: ignore[arg-type]
        two_shot=takes_two_shots(ranks, rows),
        write_x_moe=True,
    )


def partials(a: OprojArguments) -> torch.Tensor:
    return a.y.double() @ a.weight.double().transpose(1, 2)


SHAPES = [(8, 1), (8, 2), (8, 3), (8, 33), (16, 1), (16, 2), (16, 17), (3, 2), (1, 4)]


@pytest.mark.parametrize(("ranks", "rows"), SHAPES)
@pytest.mark.parametrize("merge", ["add", "replace"])
def test_partials_and_prefix_are_right_to_the_bit(ranks: int, rows: int, merge: str) -> None:
    a = arguments(ranks, rows, merge=merge)
    expected = partials(a)
    total = expected.sum(0) + (a.prefix.double() if merge == "add" else 0)
    if merge == "replace":
        a.prefix.fill_(NAN)  # must not be read
    oproj(a)
    assert same_bits(a.mailbox[:, :rows], expected.bfloat16())
    assert bool(a.mailbox[:, rows:].isnan().all())
    assert same_bits(a.prefix, total.bfloat16())
    assert same_bits(a.x_moe, a.out)
    assert bool(a.out.isfinite().all())


@pytest.mark.parametrize("rows", [1, 2, 3, 17])
@pytest.mark.parametrize(("k", "width"), [(64, 1024), (65, 1030), (3, 5)])  # whole tiles, tails, less
def test_any_width_and_k_will_do(rows: int, k: int, width: int) -> None:
    a = arguments(2, rows, k, width)
    mailbox = spread(torch.full((2, rows, width), NAN, dtype=torch.bfloat16))
    produce(a.y, a.weight, mailbox)
    assert same_bits(mailbox, partials(a).bfloat16())


@pytest.mark.parametrize(("ranks", "rows", "two_shot"), [(16, 1, False), (8, 2, False), (8, 5, True)])
def test_equal_calls_give_equal_bits(ranks: int, rows: int, two_shot: bool) -> None:
    a = arguments(ranks, rows)
    a.two_shot = two_shot
    a.y.copy_(torch.randn(a.y.shape))
    before = a.prefix.clone()
    oproj(a)
    first = a.out.clone()
    a.prefix.copy_(before)
    oproj(a)
    assert same_bits(a.out, first)


def test_one_rank_at_a_time_is_all_ranks_at_once() -> None:
    whole, parts = arguments(8, 2), arguments(8, 2)
    oproj(whole)
    mailbox = parts.mailbox[:, :2]
    for r in range(8):
        produce(parts.y[r : r + 1], parts.weight[r : r + 1], mailbox[r : r + 1])
    consume(mailbox, parts)
    assert same_bits(parts.out, whole.out)


def test_the_fused_kernel_takes_the_other_ranks_from_the_mailbox() -> None:
    whole, parts = arguments(16, 1), arguments(16, 1)
    oproj(whole)
    mailbox = parts.mailbox[:, :1]
    produce(parts.y, parts.weight, mailbox)
    mailbox[5].fill_(NAN)
    fused(parts.y[5:6], parts.weight[5:6], mailbox, parts, first_rank=5)
    assert same_bits(parts.out, whole.out)


def test_the_last_rank_to_end_sums_what_lies_in_the_mailbox_onto_the_prefix() -> None:
    whole, parts = arguments(8, 2), arguments(8, 2)
    oproj(whole)
    mailbox = parts.mailbox[:, :2]
    produce(parts.y, parts.weight, mailbox)
    mailbox[3].fill_(NAN)
    summed(parts.y[3:4], parts.weight[3:4], mailbox, parts, first_rank=3)
    assert same_bits(parts.prefix, whole.prefix)
    consume(mailbox, parts, summed=True)
    assert same_bits(parts.out, whole.out)


def test_zeros_below_zero_are_published_as_zero() -> None:
    a = arguments(2, 2)
    a.y.fill_(-(2.0**-72))
    a.weight.fill_(2.0**-72)
    mailbox = a.mailbox[:, :2]
    produce(a.y, a.weight, mailbox)
    assert bool((mailbox == 0).all())
    assert not bool(torch.signbit(mailbox).any())


def test_owners_add_in_rank_order() -> None:
    big = 2.0**25
    mailbox = torch.tensor([big, 1.0, 1.0, -big, 1.0]).bfloat16().view(5, 1, 1).expand(5, 3, 40)
    out = spread(torch.full((3, 40), NAN, dtype=torch.bfloat16))
    add_ranks(mailbox.contiguous(), out)
    assert bool((out == 1).all()), "each 1 beside 2**25 is lost"


@pytest.mark.parametrize(
    ("ranks", "rows", "expected"),
    [
        (8, 2, ("oproj_summed_kernel", "oproj_consumer_kernel")),
        (8, 3, ("partial_dot_kernel", "oproj_consumer_kernel")),
        (8, 32, ("partial_dot_kernel", "oproj_consumer_kernel")),
        (8, 33, ("partial_dot_kernel", "add_ranks_kernel", "oproj_consumer_kernel")),
        (16, 1, ("oproj_fused_kernel",)),
        (16, 2, ("oproj_summed_kernel", "oproj_consumer_kernel")),
        (16, 16, ("partial_dot_kernel", "oproj_consumer_kernel")),
        (16, 17, ("partial_dot_kernel", "add_ranks_kernel", "oproj_consumer_kernel")),
    ],
)
def test_dispatch_changes_at_its_thresholds(ranks: int, rows: int, expected: tuple[str, ...]) -> None:
    assert kernels(case("typical", 0, ranks, rows)) == expected
    assert expected in {route.kernels for route in TABLE}
    with recorded() as launched:
        oproj(arguments(ranks, rows, width=16))
    assert tuple(launched) == expected


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"rows": 65}, "64 rows, not 65"),
        ({"ranks": 17}, "16 ranks, not 17"),
        ({"width": 8193}, "8192 columns, not 8193"),
    ],
)
def test_what_has_no_kernel_is_refused_by_plan_and_launch_alike(shape: dict[str, int], words: str) -> None:
    size = {"ranks": 2, "rows": 1, "width": 16} | shape
    reason = supports(case("typical", 0, size["ranks"], size["rows"], width=size["width"]))
    assert reason is not None
    assert words in reason
    with recorded() as launched, pytest.raises(UserError, match=words):
        oproj(arguments(size["ranks"], size["rows"], k=3, width=size["width"]))
    assert launched == []


def test_a_one_shot_sum_above_the_two_shot_threshold_is_refused() -> None:
    a = arguments(16, 17, k=3, width=16)
    a.two_shot = False
    with pytest.raises(UserError, match="17 rows"):
        oproj(a)
