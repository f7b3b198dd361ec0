"""The sharded latent attention reference against attention over the whole sequence, and its regimes."""

from __future__ import annotations

import copy

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.mla import attention, dcp
from validation.contracts.mla.attention_arguments import MlaAttentionArguments
from validation.contracts.mla.dcp_arguments import MlaDcpArguments, owned
from validation.contracts.mla.dcp_inputs import REGIMES, build
from validation.contracts.mla.latent import attended
from validation.numerics.arithmetic import Exact, Rounded


def drawn(regime: str, seed: int = 2, **shape: int) -> MlaDcpArguments:
    base = {"requests": 3, "tokens": 1, "ranks": 4, "heads": 1, "page": 32, "length": 300, "interleave": 1}
    return build(Case.of("mla_dcp", regime, seed, **(base | shape)))


def truth(a: MlaDcpArguments) -> torch.Tensor:
    return dcp.reference(Exact(), a)["out"].mean


def whole(a: MlaDcpArguments) -> MlaAttentionArguments:
    """The same attention with every request's keys on one page of its own, collected position by position."""
    totals, page = a.totals.tolist(), a.cache.shape[2]
    cache = torch.zeros(len(totals), max([1, *totals]), a.cache.shape[3], dtype=torch.uint8)
    for request, total in enumerate(totals):
        taken = [0] * a.ranks
        for position in range(total):
            rank = position // a.interleave % a.ranks
            local = taken[rank]
            taken[rank] += 1
            cache[request, position] = a.cache[
                rank, int(a.block_table[rank, request, local // page]), local % page
            ]
        assert taken == a.lengths[:, request].tolist()
    table = torch.arange(len(totals), dtype=torch.int32)[:, None]
    return MlaAttentionArguments(
        query=a.query, cache=cache, block_table=table, lengths=a.totals, out=a.out, tokens=a.tokens,
        q_scale=a.q_scale, k_scale=a.k_scale,
    )  # fmt: skip


@pytest.mark.parametrize("regime", [r.name for r in REGIMES if r.name not in ("wide_offsets", "nan_request")])
@pytest.mark.parametrize(("ranks", "interleave", "tokens"), [(4, 1, 1), (3, 4, 3)])
def test_shards_merged_are_the_attention_over_the_whole(
    regime: str, ranks: int, interleave: int, tokens: int
) -> None:
    a = drawn(regime, ranks=ranks, interleave=interleave, tokens=tokens)
    expected = attention.reference(Exact(), whole(a))["out"].mean
    # float64: sums in another order, exponentials of logits up to a few hundred.
    error = 2.0**-38 * float(expected.abs().max())
    assert float((truth(a) - expected).abs().max()) <= error


@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (3, 1), (8, 1), (4, 4), (3, 5)])
def test_ownership_counts_positions_one_by_one(ranks: int, interleave: int) -> None:
    positions = torch.arange(70)
    for rank in range(ranks):
        mine = (positions // interleave % ranks == rank).long()
        before = torch.cat([torch.zeros(1, dtype=torch.long), mine.cumsum(0)])
        assert torch.equal(owned(torch.arange(71), rank, ranks, interleave), before)


@pytest.mark.parametrize("regime", ["typical", "short", "poisoned"])
def test_what_no_request_owns_is_not_read(regime: str) -> None:
    a = drawn(regime, tokens=2)
    mine = torch.zeros(a.cache.shape[:3], dtype=torch.bool)
    for rank in range(a.ranks):
        for request, length in enumerate(a.lengths[rank].tolist()):
            for position in range(length):
                mine[rank, int(a.block_table[rank, request, position // 32]), position % 32] = True
    spoiled = copy.copy(a)
    spoiled.cache = torch.where(mine[..., None], a.cache, 0x38)
    assert not bool(mine[:, a.free_slot].any())
    assert torch.equal(truth(a), truth(spoiled))
    assert bool(truth(a).isfinite().all())


def log_sums(a: MlaDcpArguments, request: int) -> torch.Tensor:
    """log2 sums [rank, head] of one request's shards."""
    found = []
    for rank in range(a.ranks):
        count = int(a.lengths[rank, request])
        keys = attention.keys_of(a.cache[rank], a.block_table[rank, request], count)
        query, seen = a.query[request : request + 1], torch.tensor([count])
        found.append(attended(Exact(), query, keys, seen, a.softmax_scale, "two")[1].mean[0])
    return torch.stack(found)


def test_log_sums_of_the_ranks_differ() -> None:
    for regime, least in (("unequal", 3), ("peaked", 100)):
        a = drawn(regime, ranks=8, requests=4)
        apart = torch.stack([s.amax(0) - s.amin(0) for s in (log_sums(a, r) for r in range(4))])
        assert float(apart.amax()) >= least, regime
    together = log_sums(drawn("flat", requests=1), 0)
    assert float(together.amax() - together.amin()) < 1


def test_short_requests_leave_shards_empty_and_rows_without_local_keys() -> None:
    a = drawn("short", ranks=8, requests=6, tokens=3)
    assert bool((a.lengths == 0).any(0).sum() >= 3)
    seen = torch.stack([owned(dcp.bounds(a), rank, 8, 1) for rank in range(8)])
    blind = (seen[:, :, 0] == 0) & (a.lengths > 0)
    assert bool(blind.any()), "a rank with keys, of which the first row sees none"
    assert bool((seen.sum(0) == dcp.bounds(a)).all()), "every position is seen on one rank"


def test_padding_requests_are_zero_and_a_nan_stays_in_its_row() -> None:
    a = drawn("padding", requests=4)
    assert [bool(row.any()) for row in truth(a)] == [True, True, False, False]
    rows = truth(drawn("nan_request")).isnan()
    assert bool(rows[0].all())
    assert bool(rows[1, 0, 3].all())
    assert not bool(rows[1, 0, :3].any())
    assert not bool(rows[2].any())


def test_wide_ranks_begin_beyond_32_bits() -> None:
    assert dcp.strides(drawn("wide_offsets", ranks=2))["cache"][0] >= 2**31


def test_stock_rounds_each_corrected_row_and_the_specialised_merge_does_not() -> None:
    a = drawn("typical")
    stock, specialised = (
        dcp.reference(Rounded(profile), a)["out"].mean for profile in (dcp.STOCK, dcp.SPECIALIZED)
    )
    error, least = (stock - truth(a)).abs().mean(), (specialised - truth(a)).abs().mean()
    assert float(error) > 1.1 * float(least), "one rounding more"
