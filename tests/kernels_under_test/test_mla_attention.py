"""The latent attention kernels where every bit is known: equal weights, a power of two of integer keys."""

import dataclasses

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable import mla_attention as module
from kernels_under_test.triton_portable.mla_attention import kernels, mla_attention, splits_of, tile_of
from tests.kernels_under_test.memory import same_bits
from validation.contracts import contract_named
from validation.contracts.contract import Case
from validation.contracts.mla.attention_arguments import MlaAttentionArguments
from validation.contracts.mla.attention_inputs import build
from validation.dispatch.launches import recorded
from validation.errors import UserError
from validation.judge import on_device

PAGE = 32


def codes(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).view(torch.uint8)


def flat(requests: int, heads: int, length: int, tokens: int = 1) -> MlaAttentionArguments:
    """Zero queries and integer keys -8..8 on permuted pages; the positions behind the last key are NaN."""
    draw = torch.Generator().manual_seed(requests + heads + length)
    pages = -(-length // PAGE)
    table = torch.randperm(requests * pages, generator=draw).reshape(requests, pages).to(torch.int32)
    keys = torch.randint(-8, 9, (requests * pages, PAGE, 576), generator=draw).float()
    keys[table[:, -1].long(), (length - 1) % PAGE + 1 :] = float("nan")
    rows = requests * tokens
    a = MlaAttentionArguments(
        query=codes(torch.zeros(rows, heads, 576)),
        cache=codes(keys),
        block_table=table,
        lengths=torch.full((requests,), length, dtype=torch.int32),
        out=torch.full((rows, heads, 512), float("nan"), dtype=torch.bfloat16),
        tokens=tokens,
        q_scale=0.5,
        k_scale=4.0,
    )
    return on_device(a, device())


def mean_of(a: MlaAttentionArguments, request: int, seen: int) -> torch.Tensor:
    """bf16(k_scale * mean of the first ``seen`` keys), exact in FP64 for a power of two."""
    keys = a.cache[a.block_table[request].long()].view(torch.float8_e4m3fn).double().flatten(0, 1)
    return (4.0 * keys[:seen, :512].mean(0)).bfloat16()


def built(regime: str, **shape: int) -> MlaAttentionArguments:
    return on_device(build(Case.of("mla_attention", regime, 5, page=PAGE, **shape)), device())


# Rows: both sides of the switch at 16; heads: of TP8, of TP16, one, and more than a tile.
@pytest.mark.parametrize(("requests", "heads"), [(1, 12), (2, 6), (15, 1), (16, 2), (17, 1), (1, 70)])
def test_equal_weights_give_the_mean_to_the_bit(requests, heads):
    a = flat(requests, heads, 64 if requests in (15, 17) else 256)
    mla_attention(a)
    for request in {0, requests - 1}:
        expected = mean_of(a, request, int(a.lengths[0])).expand(heads, 512)
        assert same_bits(a.out[request], expected)


@pytest.mark.parametrize("splits", [1, 2, 3, 5])
def test_the_number_of_splits_does_not_show(splits, monkeypatch):
    monkeypatch.setattr(module, "INTERPRETED_SPLITS", splits)
    a = flat(1, 2, 512)
    mla_attention(a)
    assert same_bits(a.out[0, 1], mean_of(a, 0, 512))


def test_each_new_token_sees_one_key_more():
    a = flat(2, 5, 66, tokens=3)
    mla_attention(a)
    assert same_bits(a.out[3, 0], mean_of(a, 1, 64)), "the first of three new tokens of request 1"
    assert not same_bits(a.out[4, 0], a.out[3, 0])


def test_a_request_of_length_0_gets_zeros_and_its_page_is_not_read():
    for requests in (3, 16):
        a = flat(requests, 2, 64)
        a.lengths[1] = 0
        a.cache[a.block_table[1].long()] = 0x7F
        mla_attention(a)
        assert not bool(a.out[1].any())
        assert same_bits(a.out[2, 0], mean_of(a, 2, 64))


@pytest.mark.parametrize(("requests", "tokens"), [(3, 1), (16, 1), (2, 4)])
def test_equal_calls_give_equal_bits(requests, tokens):
    a = built("unequal", requests=requests, tokens=tokens, heads=1, length=130)
    mla_attention(a)
    first = a.out.clone()
    a.out.fill_(float("nan"))
    mla_attention(a)
    assert same_bits(a.out, first)


@pytest.mark.parametrize("rows", [(1, 1), (15, 1), (16, 1), (64, 1), (8, 2), (16, 4)])
def test_the_table_names_what_is_launched(rows):
    requests, tokens = rows
    shape = {"requests": requests, "tokens": tokens, "heads": 1, "page": PAGE, "length": 8}
    case = Case.of("mla_attention", "typical", 9, **shape)
    counted = tokens == 1 and requests >= 16
    assert kernels(case) == (("mla_counted_kernel",) if counted else ("mla_split_kernel", "mla_merge_kernel"))
    if requests * tokens <= 16:
        with recorded() as launched:
            mla_attention(on_device(build(case), device()))
        assert tuple(launched) == kernels(case)


def test_splits_follow_from_batch_and_context_alone():
    tile = module.Tile(16, 32, warps=4)
    assert splits_of(1, 32768, tile) == module.MOST_SPLITS
    assert splits_of(16, 32768, tile) == 8
    assert splits_of(66, 32768, tile) == 2
    assert splits_of(500, 32768, tile) == 1
    assert splits_of(1, 40, tile) == 2
    assert splits_of(64, 32768, dataclasses.replace(tile, resident=2)) == 4
    assert [tile_of(rows).rows for rows in (6, 12, 16, 17, 96)] == [16, 16, 16, 32, 32]


def test_what_no_kernel_serves_is_refused():
    supports = module.OPERATIONS["mla_attention"]["supports"]
    case = contract_named("mla_attention").cases("quick")[0]
    assert supports(case) is None
    nine = Case.of("mla_attention", "typical", 1, requests=1, tokens=9, heads=1, page=32, length=20)
    assert supports(nine) == "tokens is 9; it must be 1 to 8"
    with pytest.raises(UserError, match="tokens is 9"):
        mla_attention(build(nine))
    a = flat(1, 1, 32)
    a.query = a.query[..., :512]
    with pytest.raises(UserError, match=r"\(512, 576\)"):
        mla_attention(a)
