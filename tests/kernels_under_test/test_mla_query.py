"""The mla_query kernels on numbers whose sums are exact: every byte is known; their dispatch and refusals."""

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.mla_query import (
    SMALL,
    TABLE,
    TILED,
    dispatch,
    is_small,
    kernels,
    mla_query,
    supports,
)
from tests.kernels_under_test.memory import NAN, spread
from validation.contracts.contract import Case
from validation.contracts.mla.query_arguments import MlaQueryArguments
from validation.dispatch.table import route
from validation.errors import UserError

RANK, NOPE, ROPE, LATENT, HEADS = 40, 12, 5, 24, 2


def arguments(rows: int, page: int = 6, heads: int = HEADS, q_scale: float = 0.5, k_scale: float = 4.0):
    """q_a and latent are +-1, so that their norms are 1 with eps 0; weights are small integers."""
    draw = torch.Generator().manual_seed(rows + page + heads)

    def integers(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(-most, most + 1, shape, generator=draw).to(torch.bfloat16)

    signs = torch.where(torch.rand(rows, RANK + LATENT, generator=draw) < 0.5, -1.0, 1.0).bfloat16()
    poison = torch.full((rows, 9), NAN, dtype=torch.bfloat16)
    sparse = torch.rand(heads * (NOPE + ROPE), RANK, generator=draw) < 0.2
    pages, width = 6 + rows // page, LATENT + ROPE
    slot = torch.randperm((pages - 1) * page, generator=draw)[:rows] + page
    if rows > 2:
        slot[rows // 2] = -1
    cache = torch.randint(0, 256, (pages, page, width), generator=draw, dtype=torch.uint8)
    return MlaQueryArguments(
        projected=spread(torch.cat([signs, integers(40, rows, ROPE), poison], 1)),
        q_norm=integers(2, RANK).to(device()),
        kv_norm=integers(3, LATENT).to(device()),
        w_q=spread(sparse.bfloat16()),
        w_uk=spread(integers(1, heads, NOPE, LATENT)),
        slot=slot.to(device()),
        cache=cache.to(device()),
        query=torch.full((rows, heads, width), 0xA5, dtype=torch.uint8, device=device()),
        heads=heads,
        q_scale=q_scale,
        k_scale=k_scale,
        eps=0.0,
    )


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """Bytes of FP64 values, saturated."""
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)


def expected(a: MlaQueryArguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Query bytes and cache, in float64: every sum is an integer below 256, or is rounded to BF16 below."""
    c = a.part("q_a").double() * a.q_norm.double()
    q = (c @ a.w_q.double().T).to(torch.bfloat16).double().unflatten(1, (a.heads, -1))
    absorbed = torch.einsum("rhp,hpl->rhl", q[..., :NOPE], a.w_uk.double()).to(torch.bfloat16).double()
    query = e4m3(torch.cat([absorbed, q[..., NOPE:]], -1) / a.q_scale)
    keys = e4m3(
        torch.cat([a.part("kv").double() * a.kv_norm.double(), a.part("k_pe").double()], 1) / a.k_scale
    )
    cache = a.cache.clone()
    for row, slot in enumerate(a.slot.tolist()):
        if slot >= 0:
            cache[slot // cache.shape[1], slot % cache.shape[1]] = keys[row]
    return query, cache


@pytest.mark.parametrize("rows", [1, 3, 5, 6, 16, 17, 33, 65])  # both sides of each tactic, two row blocks
@pytest.mark.parametrize("page", [6, 32])
def test_every_byte_is_right(rows, page):
    a = arguments(rows, page)
    query, cache = expected(a)
    mla_query(a)
    assert torch.equal(a.query, query)
    assert torch.equal(a.cache, cache)


@pytest.mark.parametrize("rows", [3, 4])
def test_twelve_heads_change_paths_between_three_and_four_rows(rows):
    a = arguments(rows, heads=12)
    query, cache = expected(a)
    mla_query(a)
    assert torch.equal(a.query, query)
    assert torch.equal(a.cache, cache)


@pytest.mark.parametrize("rows", [2, 7])
def test_beyond_the_range_saturates_and_nan_stays_nan(rows):
    a = arguments(rows, q_scale=2.0**-9, k_scale=2.0**-9)
    a.part("k_pe")[0, :4] = torch.tensor([float("inf"), -float("inf"), NAN, -0.0])
    mla_query(a)
    row = a.cache[int(a.slot[0]) // 6, int(a.slot[0]) % 6, LATENT:]
    assert row[[0, 1, 3]].tolist() == [0x7E, 0xFE, 0x80]
    assert int(row[2]) & 0x7F == 0x7F, "a NaN of either sign: the interpreter keeps it, a device does not"
    assert bool((a.query == 0x7E).any())
    assert bool((a.query == 0xFE).any())
    assert not bool((a.query.view(torch.float8_e4m3fn).float().isnan()).any())


@pytest.mark.parametrize("rows", [3, 9])
def test_equal_calls_give_equal_bits(rows):
    a = arguments(rows)
    a.w_q.copy_(torch.randn(a.w_q.shape))
    mla_query(a)
    first, cache = a.query.clone(), a.cache.clone()
    a.query.fill_(0xA5)
    mla_query(a)
    assert torch.equal(a.query, first)
    assert torch.equal(a.cache, cache)


def test_dispatch_follows_the_subject_s_thresholds():
    assert [is_small(rows, 12) for rows in (1, 3, 4, 64)] == [True, True, False, False]
    assert [is_small(rows, 6) for rows in (1, 5, 6, 64)] == [True, True, False, False]
    for heads in (12, 6):
        held = [dispatch(rows, heads).rows for rows in (4, 16, 17, 32, 33, 64, 100)]
        assert held == [16, 16, 32, 32, 64, 64, 64]
    for heads, when in ((12, "12 heads or more"), (6, "fewer than 12 heads")):
        for rows in range(1, 65):
            case = Case.of("mla_query", "typical", 0, rows=rows, heads=heads, rank=1536, nope=128)
            assert route(TABLE, rows, when).kernels == kernels(case) in (SMALL, TILED)


def test_what_does_not_fit_is_refused_by_name():
    a = arguments(2)
    a.q_norm = torch.ones(5000, dtype=torch.bfloat16)
    with pytest.raises(UserError, match="q rank of 5000"):
        mla_query(a)
    assert "nope dimension of 300" in supports(Case.of("mla_query", "typical", 0, rank=64, nope=300))
    b = arguments(2)
    b.w_uk = b.w_uk.transpose(1, 2)
    with pytest.raises(UserError, match="w_uk must be dense"):
        mla_query(b)
