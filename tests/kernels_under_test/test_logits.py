"""The kernels of the final norm and the logits on small integers, whose sums are exact to the bit."""

import pytest
import torch

from kernels_under_test.triton_portable.logits_kernels import TACTICS, WIDEST, kernels, logits, supports
from tests.kernels_under_test.memory import NAN, same_bits, spread
from validation.contracts.contract import Case
from validation.contracts.vocabulary.logits import LogitsArguments
from validation.dispatch.launches import recorded
from validation.errors import UserError

PADDING = 3


def arguments(samples: int, ranks=2, shard=20, width=96, norm="done", scale=1.0) -> LogitsArguments:
    """Integers in -8..8 between NaN; two rows more than samples, wanted in descending order."""
    draw = torch.Generator().manual_seed(samples + shard + width)
    rows, org = samples + 2, ranks * shard - PADDING
    x = torch.randint(-8, 9, (rows, width), generator=draw).bfloat16()
    weight = torch.randint(-8, 9, (ranks, shard, width), generator=draw).bfloat16()
    weight.view(ranks * shard, width)[org:] = NAN
    gamma = torch.randint(1, 5, (width,), generator=draw).bfloat16()
    hidden = torch.full((rows, width), NAN, dtype=torch.bfloat16)
    out = torch.full((ranks, samples, org), NAN, dtype=torch.bfloat16)
    x = spread(x)
    wanted = torch.arange(rows - 1, 1, -1).to(x.device)
    return LogitsArguments(
        x=x, gamma=spread(gamma), weight=spread(weight), rows_wanted=wanted, hidden=spread(hidden),
        out=spread(out), org_vocab=org, norm=norm, scale=scale,
    )  # fmt: skip


def product(rows: torch.Tensor, a: LogitsArguments) -> torch.Tensor:
    head = a.weight.reshape(-1, a.weight.shape[-1])[: a.org_vocab].double()
    stored = (rows.double() @ head.T).to(torch.bfloat16)
    return (stored.double() * a.scale).to(torch.bfloat16)


@pytest.mark.parametrize("samples", [1, 2, 3, 16, 17, 33, 65])  # both sides of each tactic, two row blocks
@pytest.mark.parametrize(("shard", "width"), [(64, 1024), (33, 1300), (2, 31)])
def test_every_bit_of_every_copy_is_right(samples, shard, width):
    a = arguments(samples, shard=shard, width=width)
    logits(a)
    for copy in a.out:
        assert same_bits(copy, product(a.x[a.rows_wanted], a))
    assert a.hidden.isnan().all(), "nothing was normalised here"


@pytest.mark.parametrize("scale", [0.25, 4.0, -0.5])
def test_the_scale_is_applied_to_what_was_rounded(scale):
    a = arguments(3, width=2048, scale=scale)
    logits(a)
    assert same_bits(a.out[1], product(a.x[a.rows_wanted], a))


@pytest.mark.parametrize("norm", ["sampled", "all"])
@pytest.mark.parametrize("samples", [1, 5])
def test_rows_of_one_magnitude_are_normed_exactly(samples, norm):
    """Rows of +-2 with eps 12: the mean square is 4, so the norm halves twice; gamma is a small integer."""
    a = arguments(samples, width=128, norm=norm)
    a.eps = 12.0
    a.x.copy_(torch.where(a.x > 0, 2.0, -2.0))
    expected = a.x.double() / 4 * a.gamma.double()
    logits(a)
    assert same_bits(a.out[0], product(expected[a.rows_wanted], a))
    if norm == "all":
        assert same_bits(a.hidden, expected.bfloat16())
    else:
        assert a.hidden.isnan().all()


@pytest.mark.parametrize("samples", [2, 7])
def test_equal_calls_give_equal_bits(samples):
    a = arguments(samples, width=700, norm="sampled")
    a.x.copy_(torch.randn(a.x.shape))
    logits(a)
    first = a.out.clone()
    logits(a)
    assert same_bits(a.out, first)


@pytest.mark.parametrize(("norm", "number"), [("sampled", 0), ("all", 1), ("done", 2)])
def test_the_table_of_the_dispatch_is_what_is_launched(norm, number):
    for samples in (1, 2, 3, 17):
        with recorded() as names:
            logits(arguments(samples, norm=norm))
        case = Case.of("logits", "typical", 0, wanted=samples, norm=number)
        assert tuple(names) == kernels(case)
    assert list(TACTICS) == sorted(TACTICS)


def test_rows_too_wide_for_the_norm_are_refused_with_their_width():
    a = arguments(1, ranks=1, shard=4, width=WIDEST + 1)
    with recorded() as names, pytest.raises(UserError, match=f"{WIDEST + 1} columns"):
        logits(a)
    assert names == []
    assert f"{WIDEST + 1} columns" in supports(Case.of("logits", "typical", 0, width=WIDEST + 1))
    assert supports(Case.of("logits", "typical", 0, width=7168)) is None
