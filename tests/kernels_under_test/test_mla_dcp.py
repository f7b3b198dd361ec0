"""The sharded latent attention kernels where every bit is known: all keys of a rank are the same."""

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.mla_dcp import KERNELS, OPERATIONS, dcp_merge_kernel, mla_dcp
from tests.kernels_under_test.memory import same_bits
from validation.contracts.contract import Case
from validation.contracts.mla.dcp_arguments import MlaDcpArguments, owned
from validation.contracts.mla.dcp_inputs import build
from validation.dispatch.launches import recorded
from validation.errors import UserError
from validation.judge import on_device

PAGE, SCALE = 32, 0.5


def level(rank: int) -> torch.Tensor:
    """What every key of a rank is: integers that differ from rank to rank and from column to column."""
    return ((7 * rank + torch.arange(576)) % 16 - 8).float()


def arguments(totals: list[int], ranks: int, interleave: int, tokens: int = 1) -> MlaDcpArguments:
    """Zero queries; the keys of rank r are ``level(r)``, everything else in the caches is NaN."""
    requests, total = len(totals), torch.tensor(totals)
    counts = torch.stack([owned(total, rank, ranks, interleave) for rank in range(ranks)])
    pages = int(counts.max()) // PAGE + 1
    cache = torch.full((ranks, requests * pages, PAGE, 576), float("nan"))
    table = torch.arange(requests * pages).flip(0).reshape(requests, pages).repeat(ranks, 1, 1)
    for rank in range(ranks):
        for request in range(requests):
            for position in range(int(counts[rank, request])):
                page = table[rank, request, position // PAGE]
                cache[rank, page, position % PAGE] = level(rank)
    rows = requests * tokens
    out = torch.full((rows, ranks, 512), float("nan"), dtype=torch.bfloat16, device=device())
    return MlaDcpArguments(
        query=torch.zeros(rows, ranks, 576, dtype=torch.uint8, device=device()),
        cache=cache.to(torch.float8_e4m3fn).view(torch.uint8).to(device()),
        block_table=table.to(torch.int32).to(device()),
        lengths=counts.to(torch.int32).to(device()),
        totals=total.to(torch.int32).to(device()),
        out=out,
        tokens=tokens,
        interleave=interleave,
        q_scale=2.0,
        k_scale=SCALE,
    )


def mixture(ranks: list[int]) -> torch.Tensor:
    """bf16 of the equally weighed levels of these ranks, exact for a power of two of them. [512]"""
    return (SCALE * torch.stack([level(r) for r in ranks]).double().mean(0)).bfloat16()[:512].to(device())


@pytest.mark.parametrize(("ranks", "interleave", "total"), [(4, 1, 256), (2, 4, 64), (16, 1, 32), (1, 1, 64)])
def test_equal_shards_give_the_mean_of_the_ranks_to_the_bit(ranks, interleave, total):
    a = arguments([total], ranks, interleave)
    mla_dcp(a)
    assert same_bits(a.out[0], mixture(list(range(ranks))).expand(ranks, 512))


def test_empty_shards_have_no_weight_and_padding_is_zero():
    a = arguments([2, 0, 1], 4, 1)
    mla_dcp(a)
    assert same_bits(a.out[0, 3], mixture([0, 1]))
    assert not bool(a.out[1].any())
    assert same_bits(a.out[2, 0], mixture([0]))


def test_rows_are_bounded_by_global_position():
    """Four new tokens at positions 1 to 4, in turns of two on two ranks."""
    a = arguments([5], 2, 2, tokens=4)
    mla_dcp(a)
    assert same_bits(a.out[0, 0], mixture([0])), "positions 0 and 1 are rank 0's"
    assert same_bits(a.out[2, 1], mixture([0, 1])), "positions 2 and 3 are rank 1's"
    assert same_bits(a.out[1, 0], (SCALE * (2 * level(0) + level(1)) / 3).bfloat16()[:512].to(device()))


def test_a_nan_row_stays_a_nan_row():
    a = arguments([8, 8], 4, 1)
    a.query[0, 2] = 0x7F
    mla_dcp(a)
    assert a.out[0].isnan().all(-1).tolist() == [False, False, True, False]
    assert bool(a.out[1].isfinite().all())


def test_the_merge_adds_ranks_by_powers_of_two():
    """Log sums 3 apart weigh 8 to 1, wherever they lie; a rank at -inf does not count."""
    rows = torch.stack([torch.full((1, 1, 512), v) for v in (9.0, 18.0, 0.0)]).bfloat16().to(device())
    for offset in (0.0, 300.0, -300.0):
        sums = torch.tensor([offset + 3, offset, float("-inf")], device=device()).reshape(3, 1, 1)
        out = torch.full((1, 1, 512), float("nan"), dtype=torch.bfloat16, device=device())
        lengths = torch.ones(1, dtype=torch.int32, device=device())
        dcp_merge_kernel[1, 1](
            rows, sums, out, lengths, rows.stride(0), sums.stride(0), out.stride(0), 1, 1, 3, HEADS=1, D=512
        )
        assert same_bits(out, torch.full_like(out, 10.0))


def test_equal_calls_give_equal_bits_and_launch_what_they_declare():
    case = Case.of(
        "mla_dcp", "unequal", 5, requests=2, tokens=2, ranks=3, heads=2, page=PAGE, length=500, interleave=4
    )
    a = on_device(build(case), device())
    with recorded() as launched:
        mla_dcp(a)
    assert tuple(launched) == KERNELS == OPERATIONS["mla_dcp"]["kernels"](case)
    first = a.out.clone()
    a.out.fill_(float("nan"))
    mla_dcp(a)
    assert same_bits(a.out, first)


def test_more_than_16_ranks_are_refused():
    shape = {"requests": 1, "tokens": 1, "ranks": 17, "heads": 1, "page": PAGE, "length": 20, "interleave": 1}
    case = Case.of("mla_dcp", "typical", 1, **shape)
    assert OPERATIONS["mla_dcp"]["supports"](case) == "there are 17 ranks; there must be 1 to 16"
    with pytest.raises(UserError, match="17 ranks"):
        mla_dcp(build(case))
