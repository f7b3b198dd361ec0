"""The o-projection's reference against plain loops, and what its regimes and views promise."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch

from validation.contracts import oproj
from validation.contracts.oproj import case, minus_zeros, not_copied, reference, strides
from validation.contracts.oproj_arguments import OprojArguments
from validation.contracts.oproj_inputs import SPARE_SLOTS, build, takes_two_shots
from validation.numerics.arithmetic import Exact, Rounded

# float64 sums of up to a few thousand terms in another order lose at most 13 of 53 bits.
CLOSE = 2.0**-40


def drawn(regime: str = "typical", ranks: int = 8, rows: int = 3, **shape: int) -> OprojArguments:
    return build(case(regime, 3, ranks, rows, **({"k": 24, "width": 40} | shape)))


def plain(a: OprojArguments, row: int) -> tuple[list[float], list[float]]:
    """Prefix and output of one row by Python's floats, nothing rounded on the way."""
    ranks, width = len(a.y), a.out.shape[1]
    y, w = a.y[:, row].tolist(), a.weight.tolist()
    total = [
        math.fsum(p * q for r in range(ranks) for p, q in zip(y[r], w[r][c], strict=True))
        for c in range(width)
    ]
    old = a.prefix[row].tolist()
    prefix = total if a.merge == "replace" else [p + t for p, t in zip(old, total, strict=True)]
    sources = [*a.blocks[row, : a.blocks_read].tolist(), prefix]
    gammas = zip(a.score_gamma.tolist(), a.score_proj.tolist(), strict=True)
    weight = [p * q for p, q in gammas]

    def mean_square(v: list[float]) -> float:
        return math.fsum(x * x for x in v) / width

    scores = [
        math.fsum(x * q for x, q in zip(v, weight, strict=True)) / math.sqrt(mean_square(v) + a.eps_score)
        for v in sources
    ]
    shares = [math.exp(s - max(scores)) for s in scores]
    mixture = [
        math.fsum(e * v[c] for e, v in zip(shares, sources, strict=True)) / sum(shares) for c in range(width)
    ]
    scale = 1 / math.sqrt(mean_square(mixture) + a.eps)
    return prefix, [m * scale * g for m, g in zip(mixture, a.gamma.tolist(), strict=True)]


@pytest.mark.parametrize("blocks", [0, 1, 5])
@pytest.mark.parametrize("merge", [0, 1])
@pytest.mark.parametrize("regime", ["typical", "small", "outliers"])
def test_the_reference_is_the_plain_loop(regime: str, merge: int, blocks: int) -> None:
    a = drawn(regime, ranks=3, rows=2, merge=merge, blocks=blocks)
    found = reference(Exact(), a)
    for row in range(2):
        for name, expected in zip(("prefix", "out"), plain(a, row), strict=True):
            error = (found[name].mean[row] - torch.tensor(expected, dtype=torch.float64)).abs()
            assert float(error.max()) <= CLOSE * max(map(abs, expected))


def test_partials_sum_and_prefix_are_rounded_to_bf16_one_after_the_other() -> None:
    a = drawn()
    partials = (a.y.double() @ a.weight.double().transpose(1, 2)).float().bfloat16()
    expected = (a.prefix.float() + partials.float().sum(0).bfloat16().float()).bfloat16()
    found = reference(Rounded(oproj.STOCK), a)["prefix"].mean
    assert torch.equal(found, expected.double())


@pytest.mark.parametrize(("ranks", "rows", "size"), [(8, 3, 2), (16, 3, 4), (8, 33, 8), (16, 17, 16)])
def test_the_order_of_the_ranks_is_four_groups_and_above_the_threshold_theirs(
    ranks: int, rows: int, size: int
) -> None:
    a = drawn("cancelling_order", ranks=ranks, rows=rows, merge=1)
    partials = (a.y.float() @ a.weight.float().transpose(1, 2)).unbind(0)

    def chain(parts: list[torch.Tensor]) -> torch.Tensor:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def grouped(size: int) -> torch.Tensor:
        return chain([chain(list(partials[i : i + size])) for i in range(0, ranks, size)]).bfloat16().double()

    found = reference(Rounded(oproj.SPECIALIZED), a)["prefix"].mean
    assert torch.equal(found, grouped(size))
    other = {2: 8, 4: 16, 8: 2, 16: 4}[size]
    share = (grouped(size) != grouped(other)).float().mean()
    assert float(share) > 0.1, "the other order would be seen"


def test_nothing_that_must_not_be_read_matters() -> None:
    a = drawn(merge=1, blocks=3)
    assert bool(a.prefix.isnan().all())
    spoiled = copy.deepcopy(a)
    spoiled.blocks[:, 3:] = float("nan")
    spoiled.mailbox[:] = float("nan")
    spoiled.x_moe[:] = float("nan")
    for name, value in reference(Rounded(oproj.SPECIALIZED), a).items():
        assert torch.equal(value.mean, reference(Rounded(oproj.SPECIALIZED), spoiled)[name].mean)


def test_a_nan_stays_in_its_row() -> None:
    a = drawn("nan_row", rows=5)
    found = reference(Exact(), a)
    for name in ("prefix", "out"):
        assert found[name].mean.isnan().all(1).tolist() == [False, False, True, False, False]
        assert found[name].mean.isnan().any(1).tolist() == [False, False, True, False, False]


def test_partials_of_minus_zero_round_to_it_and_are_not_published() -> None:
    a = drawn("minus_zero", ranks=3, k=64)
    exact = (a.y[:, 0].double() @ a.weight[:, :8].double().transpose(1, 2))[0]
    stored = exact.bfloat16()
    assert bool((exact != 0).all())
    assert bool((stored == 0).all())
    assert 0 < int(torch.signbit(stored).sum()) < stored.numel()


def test_partials_of_opposite_ranks_cancel() -> None:
    a = drawn("cancelling")
    partials = a.y.double() @ a.weight.double().transpose(1, 2)
    assert float((partials.sum(0).abs() / partials.abs().sum(0)).median()) < 0.02


def test_wide_rows_are_beyond_32_bits_and_only_in_their_regime() -> None:
    a = drawn("wide_offsets")
    assert strides(a)["blocks"][0] * (a.rows - 1) >= 2**31
    assert strides(drawn())["blocks"][0] < 2**20


def test_two_shots_begin_above_32_rows_and_with_16_ranks_above_16() -> None:
    assert [takes_two_shots(8, rows) for rows in (1, 32, 33, 64)] == [False, False, True, True]
    assert [takes_two_shots(16, rows) for rows in (1, 16, 17, 64)] == [False, False, True, True]


def test_the_mailbox_view_marks_minus_zero_in_the_rows_of_the_step() -> None:
    a = drawn()
    assert a.mailbox.shape[1] == a.rows + SPARE_SLOTS
    assert int(minus_zeros(a).sum()) == 0
    a.mailbox[2, 1, 3] = -0.0
    a.mailbox[2, 1, 4] = 0.0
    a.mailbox[2, a.rows, 3] = -0.0
    assert minus_zeros(a).nonzero().tolist() == [[2, 1, 3]]


def test_the_view_of_x_moe_marks_every_bit_that_is_not_the_output_without_minus_zero() -> None:
    a = drawn()
    a.out[:] = torch.randn(a.out.shape).bfloat16()
    a.out[0, 0], a.out[0, 1], a.out[0, 2] = -0.0, float("nan"), -0.0
    a = dataclasses.replace(a, x_moe=a.out.clone())
    a.x_moe[0, 2] = 0.0
    a.x_moe[1, 5] += 1
    assert not_copied(a).nonzero().tolist() == [[0, 0], [1, 5]]


def test_the_full_tier_has_both_parallelisms_at_every_batch_and_regime() -> None:
    found = {(c["ranks"], c["k"], c["rows"]) for c in oproj.cases("full") if c["width"] == 7168}
    regimes = {(c["ranks"], c.regime) for c in oproj.cases("full") if c["width"] == 7168}
    for ranks, k in ((8, 1536), (16, 768)):
        assert {(ranks, k, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)} <= found
        assert {(ranks, r.name) for r in oproj.REGIMES} <= regimes
