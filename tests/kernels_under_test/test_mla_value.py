"""The mla_value kernels on small integers, whose sums are exact; and their dispatch and refusals."""

import pytest
import torch

from kernels_under_test.triton_portable.mla_value import (
    MOST_SMALL,
    TABLE,
    kernels,
    mla_value,
    tile_of,
)
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.contract import Case
from validation.contracts.mla.value import MlaValueArguments
from validation.dispatch.table import route
from validation.errors import UserError

START = 11


def arguments(requests: int, tokens: int = 1, heads: int = 2, latent: int = 40, dim: int = 20):
    """Integer values; gates of 0 (a sigmoid of exactly 1/2), between NaN."""
    draw = torch.Generator().manual_seed(requests + tokens + latent)
    rows = requests * tokens

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-3, 4, shape, generator=draw).to(torch.bfloat16)

    projected = torch.full((rows, START + heads * dim + 6), NAN, dtype=torch.bfloat16)
    projected[:, START : START + heads * dim] = 0
    out = spread(torch.full((rows, heads * dim), NAN, dtype=torch.bfloat16))
    return MlaValueArguments(
        latent=spread(integers(rows, heads, latent)),
        projected=spread(projected),
        w_uv=spread(integers(heads, latent, dim)),
        lengths=torch.arange(1, requests + 1, dtype=torch.int32).to(out.device),
        out=out,
        heads=heads,
        tokens=tokens,
        gate_start=START,
    )


def exact(a: MlaValueArguments) -> torch.Tensor:
    v = torch.einsum("rhk,hkv->rhv", a.latent.double(), a.w_uv.double()).to(torch.bfloat16)
    half = (v.double() * 0.5).to(torch.bfloat16).flatten(1)
    return torch.where(a.live[:, None], half, torch.zeros_like(half))


@pytest.mark.parametrize("rows", [1, 4, 5, 16, 17, 33, 65])  # both sides of each tactic, and two row blocks
@pytest.mark.parametrize(("latent", "dim"), [(64, 32), (40, 20), (3, 1)])  # whole tiles, tails, less
def test_every_bit_is_right(rows, latent, dim):
    a = arguments(rows, latent=latent, dim=dim)
    mla_value(a)
    assert same_bits(a.out, exact(a))


@pytest.mark.parametrize(("requests", "tokens"), [(2, 2), (3, 3), (5, 4)])
def test_padding_rows_are_zero_by_request_whatever_they_hold(requests, tokens):
    a = arguments(requests, tokens)
    a.lengths[0], a.lengths[requests - 1] = 0, -5
    a.latent[~a.live] = NAN
    a.gate[~a.live] = NAN
    mla_value(a)
    assert int((~a.live).sum()) == 2 * tokens
    assert same_bits(a.out, exact(a))
    assert not bool(torch.signbit(a.out[~a.live]).any())


@pytest.mark.parametrize("rows", [3, 20])
def test_the_gate_opens_and_closes(rows):
    a = arguments(rows)
    a.gate[..., 0], a.gate[..., 1] = 60.0, -1000.0
    mla_value(a)
    out = a.out.unflatten(1, (2, 20))
    v = torch.einsum("rhk,hkv->rhv", a.latent.double(), a.w_uv.double()).to(torch.bfloat16)
    assert torch.equal(out[..., 0], v[..., 0]), "a sigmoid of 1"
    assert bool((out[..., 1] == 0).all()), "a sigmoid of 0"


@pytest.mark.parametrize("rows", [4, 16])
def test_equal_calls_give_equal_bits_and_gaps_stay(rows):
    a = arguments(rows)
    a.latent.copy_(torch.randn(a.latent.shape))
    mla_value(a)
    first = a.out.clone()
    mla_value(a)
    assert same_bits(a.out, first)
    assert bool(a.out.as_strided((rows, 7), (40 + 7, 1), 0).isnan().all())


def test_dispatch_is_small_to_four_rows_then_tiled_by_sixteen_rows():
    assert [tile_of(rows) for rows in (1, 5, 16, 17, 64, 99)] == [16, 16, 16, 32, 32, 32]
    for rows in range(1, 65):
        case = Case.of("mla_value", "typical", 0, requests=rows, tokens=1)
        assert route(TABLE, rows).kernels == kernels(case)
        assert (kernels(case) == ("value_kernel",)) == (rows <= MOST_SMALL)


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(UserError, match="latent of 1030"):
        mla_value(arguments(1, latent=1030, heads=1, dim=2))
    a = arguments(2)
    a.w_uv = a.w_uv.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(UserError, match="w_uv must be dense"):
        mla_value(a)
