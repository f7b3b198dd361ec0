"""The prefetch kernels: which chunks the lanes ask for, that nothing is written, and the product after it."""

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable import prefetch as kernels
from kernels_under_test.triton_portable.prefetch import TABLE, prefetch, supports
from tests.kernels_under_test.memory import NAN, spread
from validation.contracts.contract import Case
from validation.contracts.guarded import bits
from validation.contracts.prefetch import PrefetchArguments
from validation.dispatch.launches import recorded
from validation.errors import UserError


def arguments(sizes=(40, 0, 9000, 7), longest=9000, **options) -> PrefetchArguments:
    """Whole numbers between NaN; ranges in the order 2, 3, 1, 0."""
    draw = torch.Generator().manual_seed(longest)
    weights = torch.randint(-3, 5, (len(sizes), longest), generator=draw).bfloat16()
    for row, size in zip(weights, sizes, strict=True):
        row[size:] = NAN
    weights = spread(weights, gap=8 + -longest % 8)
    place = weights.device
    return PrefetchArguments(
        weights=weights,
        sizes=torch.tensor(sizes, device=place),
        order=torch.tensor([2, 3, 1, 0], device=place),
        x=torch.randint(-3, 4, (longest,), generator=draw).bfloat16().to(place),
        planned=torch.full((4,), -7, device=place),
        out=torch.full((4,), NAN, dtype=torch.bfloat16, device=place),
        **{"batch": 4, "ranks": 16, "unit": 1 << 20} | options,
    )


def test_whole_granules_are_planned_and_the_product_is_exact():
    a = arguments()
    before = bits(a.weights).clone()
    prefetch(a)
    assert a.planned.tolist() == [18000, 0, 0, 80]
    for position, number in enumerate(a.order.tolist()):
        size = int(a.sizes[number])
        total = (a.weights[number, :size].double() * a.x[:size].double()).sum()
        assert float(a.out[position]) == float(total.float().bfloat16())
    assert torch.equal(bits(a.weights), before)


def test_a_cap_stops_in_the_order_of_consumption():
    a = arguments(sizes=(4000, 4000, 4000, 4000), batch=8, ranks=8, unit=500)  # 16,000 bytes in all
    prefetch(a)
    assert a.planned.tolist() == [8000, 8000, 0, 0]
    a = arguments(sizes=(4000, 4000, 4000, 4000), batch=8, ranks=8, unit=501)
    prefetch(a)
    assert a.planned.tolist() == [8000, 8000, 32, 0]


@pytest.mark.skipif(device() == "cuda", reason="only the interpreter (0 of 1 devices otherwise) shows loads")
@pytest.mark.parametrize("lanes", [1, 4, 1024])
def test_every_chunk_is_asked_for_once_and_nothing_beyond_it(lanes, monkeypatch):
    """The first and the last byte of each chunk of 16 KiB, in ranges that leave no lane's turn even."""
    from triton.runtime.interpreter import InterpreterBuilder

    original, asked = InterpreterBuilder.create_masked_load, []

    def load(self, pointers, mask, *rest):
        asked.extend(pointers.data[mask.data].tolist())
        return original(self, pointers, mask, *rest)

    memory = torch.zeros(200_000, dtype=torch.uint8)
    ranges = [(16, 32), (4096, 16384), (30_000, 70_000), (120_000, 16400)]
    expected = []
    for start, size in ranges:
        for offset in range(0, size, 16384):
            first = memory.data_ptr() + start + offset
            expected += [first, first + min(16384, size - offset) - 1]
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", load)
    kernels.l2_prefetch_kernel[(1,)](
        memory,
        torch.tensor(ranges),
        len(ranges),
        WORKERS=lanes,
        SIZE=16384,
        PER_PROGRAM=lanes,
        COMPILED=False,
    )
    base = memory.data_ptr()  # the table is loaded too
    assert sorted(a for a in asked if base <= a < base + len(memory)) == sorted(expected)


@pytest.mark.parametrize(
    ("options", "fetches"),
    [
        ({"point": "oproj_down", "batch": 2}, False),
        ({"point": "oproj_down", "batch": 3}, True),
        ({"point": "attention_moe", "batch": 5, "ranks": 8}, True),
        ({"point": "attention_moe", "batch": 7, "ranks": 8, "mla": True}, False),
        ({"point": "attention_moe", "batch": 8, "ranks": 16}, False),
        ({"batch": 8}, True),
        ({"batch": 9}, False),
    ],
)
def test_the_prefetch_kernel_runs_at_its_points_only(options, fetches):
    a = arguments(sizes=(40, 0, 50, 7), longest=64, **options)
    with recorded() as names:
        prefetch(a)
    assert names == ["l2_prefetch_kernel"] * fetches + ["consumer_kernel"]
    assert bool(a.planned.any()) == fetches
    assert any(tuple(names) == route.kernels for route in TABLE)


def test_without_bytes_to_fetch_no_prefetch_is_launched():
    with recorded() as names:
        prefetch(arguments(sizes=(0, 0, 7, 0), longest=64))
    assert names == ["consumer_kernel"]


def test_weights_off_their_granule_and_other_parallelisms_are_refused():
    a = arguments(longest=64, sizes=(40, 0, 50, 7))
    a.weights = spread(a.weights, gap=7)
    with recorded() as names, pytest.raises(UserError, match="start on 16 bytes"):
        prefetch(a)
    assert names == []
    assert "4 ranks" in supports(Case.of("prefetch", "typical", 0, ranks=4))
    with pytest.raises(UserError, match="4 ranks"):
        prefetch(arguments(ranks=4))
    assert set(kernels.NEXT_ATTENTION) == {8, 16}
