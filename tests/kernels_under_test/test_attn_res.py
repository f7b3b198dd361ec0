"""The AttnRes kernel against FP64, its copies bit for bit, and what it may read."""

import dataclasses

import pytest
import torch

from kernels_under_test.triton_portable.attn_res import attn_res
from tests.kernels_under_test.memory import NAN, same_bits, spacing, spread
from validation.contracts.arguments import AttnResArguments
from validation.errors import UserError

ROWS = 3


def arguments(width: int = 96, **options) -> AttnResArguments:
    """Random rows between NaN, with NaN in every block from ``blocks_read`` on."""
    draw = torch.Generator().manual_seed(width)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=draw) * scale).to(torch.bfloat16)

    blocks = normal(ROWS, 8, width)
    blocks[:, options.get("blocks_read", 0) :] = NAN
    a = AttnResArguments(
        prefix=spread(normal(ROWS, width)),
        delta=spread(normal(ROWS, width)),
        blocks=spread(blocks),
        score_gamma=spread(1 + normal(width, scale=0.3)),
        score_proj=spread(normal(width, scale=2 / width**0.5)),
        gamma=spread(1 + normal(width, scale=0.4)),
        aux=spread(torch.full((ROWS, width), NAN, dtype=torch.bfloat16)),
        out=spread(torch.full((ROWS, width), NAN, dtype=torch.bfloat16)),
        **options,
    )
    if a.merge == "replace":
        a.prefix.fill_(NAN)
    if a.merge == "keep":
        a.delta.fill_(NAN)
    return a


def copied(a: AttnResArguments) -> AttnResArguments:
    tensors = {f.name: getattr(a, f.name) for f in dataclasses.fields(a)}
    return AttnResArguments(**{k: v.clone() if torch.is_tensor(v) else v for k, v in tensors.items()})


def merged(a: AttnResArguments) -> torch.Tensor:
    return {"add": a.prefix + a.delta, "replace": a.delta, "keep": a.prefix}[a.merge]


def exact(a: AttnResArguments) -> tuple[torch.Tensor, torch.Tensor]:
    """The output in FP64 before its rounding, and how far one BF16 flip of a rounded mixture moves it."""
    weight = a.score_gamma.double() * a.score_proj.double()
    sources = torch.cat([a.blocks[:, : a.blocks_read], merged(a)[:, None]], 1).double()
    logits = (sources * weight).sum(-1) / (sources.square().mean(-1) + a.eps_score).sqrt()
    mixture = (torch.softmax(logits, 1)[..., None] * sources).sum(1)
    flip = torch.zeros_like(mixture)
    if a.finish == "mix":
        return mixture, flip
    if a.finish == "final":
        flip = spacing(mixture)
        mixture = mixture.to(torch.bfloat16).double()
    scale = (mixture.square().mean(-1, keepdim=True) + a.eps).rsqrt() * a.gamma.double()
    return mixture * scale, flip * scale.abs()


@pytest.mark.parametrize("blocks_read", range(9))
@pytest.mark.parametrize("finish", ["norm", "final", "mix"])
def test_output_is_within_one_rounding_of_fp64(finish, blocks_read):
    a = arguments(finish=finish, blocks_read=blocks_read)
    expected, flip = exact(copied(a))
    attn_res(a)
    # Half a spacing for the one rounding; 2**-20 relative covers FP32 sums of 96 terms and approximate rsqrt.
    allowed = spacing(expected) / 2 + flip + expected.abs().amax(1, keepdim=True) * 2.0**-20
    assert ((a.out.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("merge", ["add", "replace", "keep"])
@pytest.mark.parametrize("write_block", [-1, 0, 5])
def test_prefix_block_and_aux_are_bit_exact(merge, write_block):
    a = arguments(merge=merge, write_block=write_block, write_aux=True)
    before = copied(a)
    attn_res(a)
    assert same_bits(a.prefix, merged(before))
    assert same_bits(a.aux, merged(before))
    others = [b for b in range(8) if b != write_block]
    assert same_bits(a.blocks[:, others], before.blocks[:, others])
    if write_block >= 0:
        assert same_bits(a.blocks[:, write_block], merged(before))
    assert not a.out.isnan().any()


def test_the_block_written_is_no_source_of_the_same_call():
    without = arguments(blocks_read=3)
    written = arguments(blocks_read=3, write_block=3)
    attn_res(without)
    attn_res(written)
    assert same_bits(without.out, written.out)


def test_aux_is_left_alone_unless_asked_for():
    a = arguments(blocks_read=2)
    attn_res(a)
    assert a.aux.isnan().all()


def test_one_source_is_its_own_mixture_at_the_full_width():
    a = arguments(width=7168, merge="replace", finish="mix")
    attn_res(a)
    assert same_bits(a.out, a.delta)


def test_eps_counts_when_nothing_is_divided():
    """Small activations: without eps * den**2 the output of four sources would be four times too large."""
    a = arguments(blocks_read=3, merge="replace")
    for tensor in (a.delta, a.blocks):
        tensor.mul_(2.0**-12)
    expected, _ = exact(copied(a))
    attn_res(a)
    allowed = spacing(expected) / 2 + expected.abs().amax(1, keepdim=True) * 2.0**-20
    assert ((a.out.double() - expected).abs() <= allowed).all()


def test_more_than_eight_blocks_are_refused():
    with pytest.raises(UserError, match="0 to 8"):
        attn_res(arguments(blocks_read=9))


def test_a_row_that_is_not_dense_is_refused():
    a = arguments()
    a.gamma = torch.zeros(2 * 96, dtype=torch.bfloat16)[::2]
    with pytest.raises(UserError, match="gamma must be dense"):
        attn_res(a)
