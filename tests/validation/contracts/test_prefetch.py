"""The prefetch's plan against the subject's table, written out, and its product against plain sums."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from validation.contracts import prefetch
from validation.contracts.contract import Case
from validation.contracts.prefetch import PrefetchArguments, build, cap_of, planned_bytes
from validation.numerics.arithmetic import Exact, Rounded

SHAPE = {"ranks": 8, "batch": 1, "point": 2, "mla": 0, "weights": 5, "longest": 600, "unit": 20}

# Batches 1 to 9 at each point: "-" nothing is fetched, "all" whole ranges, else the cap in MiB.
TABLE = {
    ("oproj_down", 8, False): "- - all all all all all all -",
    ("oproj_down", 16, True): "- - all all all all all all -",
    ("attention_moe", 8, False): "- - - - all all all all -",
    ("attention_moe", 8, True): "- - - - - - - all -",
    ("attention_moe", 16, False): "- - - - - - - - -",
    ("next_attention", 8, False): "96 96 96 64 64 64 64 32 -",
    ("next_attention", 16, True): "1024 1024 1024 1024 1024 1024 1024 1024 -",
}


def drawn(regime: str = "typical", **shape: int) -> PrefetchArguments:
    return build(Case.of("prefetch", regime, 3, **(SHAPE | shape)))


@pytest.mark.parametrize(("point", "ranks", "mla"), TABLE)
def test_the_points_and_caps_are_the_subjects(point: str, ranks: int, mla: bool) -> None:
    words = {None: "-", 0: "all"}
    caps = [cap_of(point, batch, ranks, mla) for batch in range(1, 10)]
    assert " ".join(words.get(cap, str(cap)) for cap in caps) == TABLE[point, ranks, mla]


def fixed(sizes: list[int], order: list[int], unit: int) -> PrefetchArguments:
    a = drawn(batch=8)  # a cap of 32 units
    return dataclasses.replace(a, sizes=torch.tensor(sizes), order=torch.tensor(order), unit=unit)


@pytest.mark.parametrize(
    ("sizes", "order", "unit", "expected"),
    [
        ([8, 16, 24, 4, 5], [4, 2, 0, 3], 100, [0, 48, 16, 0]),  # 10, 48, 16 and 8 bytes
        ([500, 500, 500, 500, 500], [0, 1, 2], 70, [992, 992, 256]),  # 2,240 bytes in all
        ([100, 500, 7, 8, 9], [1, 0, 3, 4], 32, [992, 32, 0, 0]),  # 1,024 bytes in all
        ([100, 513, 7, 8, 9], [1, 4], 32, [1024, 0]),  # the first range takes all
    ],
)
def test_a_cap_is_spent_in_the_order_of_consumption(
    sizes: list[int], order: list[int], unit: int, expected: list[int]
) -> None:
    assert planned_bytes(fixed(sizes, order, unit)).tolist() == expected


def test_without_a_controller_nothing_is_fetched_and_the_product_is_the_same() -> None:
    a = drawn()
    without = prefetch.reference(Rounded(prefetch.STOCK), a)
    present = prefetch.reference(Rounded(prefetch.SPECIALIZED), a)
    assert not bool(without["planned"].mean.any())
    assert bool(present["planned"].mean.any())
    assert torch.equal(without["out"].mean, present["out"].mean)


@pytest.mark.parametrize("regime", [r.name for r in prefetch.REGIMES[:-1]])
def test_the_product_is_the_plain_sum_of_whole_numbers(regime: str) -> None:
    a = drawn(regime)
    found = prefetch.reference(Exact(), a)["out"].mean.tolist()
    x = a.x.int().tolist()
    for position, number in enumerate(a.order.tolist()):
        weight = a.weights[number, : int(a.sizes[number])].int().tolist()
        assert found[position] == sum(p * q for p, q in zip(x, weight, strict=False))


def test_sums_need_rounding_and_stay_exact_in_fp32() -> None:
    a = build(prefetch.cases("quick")[0])
    sums = prefetch.reference(Exact(), a)["out"].mean
    assert bool((sums != sums.bfloat16().double()).any())
    largest = max(prefetch.cases("full"), key=lambda case: case["longest"])
    # Factors have a mean of 1/2 and mean squares of 8.5 and 5.5: the mean of a sum, and ten deviations.
    n = largest["longest"]
    assert n / 4 + 10 * (8.5 * 5.5 * n) ** 0.5 < 2**24


def test_what_is_not_a_weights_own_is_nan_and_not_read() -> None:
    for regime in ("typical", "tails", "empty", "special_bits"):
        a = drawn(regime)
        for number in range(5):
            beyond = a.weights[number, int(a.sizes[number]) :]
            assert bool(beyond.isnan().all())
            assert number in a.order.tolist() or bool(a.weights[number].isnan().all())
        assert not bool(prefetch.reference(Exact(), a)["out"].mean.isnan().any())


def test_regimes_are_what_they_say() -> None:
    assert drawn("empty").sizes[0::2].tolist() == [0, 0, 0]
    tails = drawn("tails", weights=7, longest=8300).sizes
    assert {8191, 8192, 8193, 7, 8, 9} <= set(tails.tolist())
    bits = drawn("special_bits").weights
    assert bool(((bits == 0) & torch.signbit(bits)).any())
    for regime in ("typical", "capped"):
        assert drawn(regime).order.tolist() != list(range(4))


def test_caps_end_within_ranges() -> None:
    a = drawn("capped")
    planned = planned_bytes(a)
    whole = a.sizes[a.order] * 2 // 16 * 16
    assert 0 < int((planned == whole).sum()) < len(planned)
