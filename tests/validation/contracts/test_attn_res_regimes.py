"""AttnRes's regimes are what they claim, at every position of the step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from validation.contracts import attn_res
from validation.contracts.arguments import AttnResArguments
from validation.contracts.attn_res import build
from validation.contracts.contract import Case
from validation.numerics.arithmetic import Exact

merges = pytest.mark.parametrize("merge", range(3))


def drawn(regime: str, blocks: int = 5, **options: int) -> AttnResArguments:
    base = {"rows": 3, "width": 512, "blocks": blocks, "write": -1, "merge": 0, "finish": 0, "aux": 0}
    return build(Case.of("attn_res", regime, 21, **(base | options)))


def sources(a: AttnResArguments) -> Tensor:
    """What is mixed, prefix last. [row, source, column]"""
    prefix = {"add": a.prefix + a.delta, "replace": a.delta, "keep": a.prefix}[a.merge]
    return torch.cat([a.blocks[:, : a.blocks_read], prefix[:, None]], 1).double()


def scores(a: AttnResArguments) -> Tensor:
    v = sources(a)
    weight = a.score_gamma.double() * a.score_proj.double()
    return (v * weight).sum(-1) / torch.sqrt((v * v).mean(-1) + a.eps_score)


def mixture(a: AttnResArguments) -> Tensor:
    return (torch.softmax(scores(a), 1)[..., None] * sources(a)).sum(1)


def out(a: AttnResArguments) -> Tensor:
    return attn_res.reference(Exact(), a)["out"].mean


def change(a: Tensor, b: Tensor) -> float:
    """Size of the difference over the size of the result."""
    return float((a - b).abs().mean() / b.abs().mean())


def test_typical_is_neutral_in_nothing() -> None:
    a = drawn("typical")
    for weight in (a.gamma, a.score_gamma):
        assert float((weight.float() - 1).std()) > 0.2
    spread = scores(a).std(1)
    assert 0.3 < float(spread.mean()) < 10, "every source counts, none alone"
    assert float(torch.softmax(scores(a), 1).amax(1).min()) < 0.99
    sizes = a.blocks[:, :5].float().std(2).mean(0)
    assert bool((sizes.diff() > 0.1).all()), "each block has a scale of its own"


@merges
def test_small_activations_make_the_eps_of_both_norms_count(merge: int) -> None:
    a = drawn("small", merge=merge)
    assert change(out(replace(a, eps=0.0)), out(a)) > 0.1
    assert change(out(replace(a, eps_score=0.0)), out(a)) > 0.01
    typical = drawn("typical", merge=merge)
    assert change(out(replace(typical, eps=0.0)), out(typical)) < 1e-4


@merges
def test_peaked_logits_are_more_than_80_apart_and_some_weights_vanish_in_fp32(merge: int) -> None:
    a = drawn("peaked", merge=merge)
    found = scores(a)
    assert float((found.amax(1) - found.amin(1)).min()) > 80
    weights = torch.exp((found - found.amax(1, keepdim=True)).float())
    assert bool((weights < 2.0**-126).any())
    assert float(scores(drawn("typical")).abs().max()) < 80


@merges
def test_the_prefix_nearly_cancels_the_blocks(merge: int) -> None:
    a = drawn("cancelling", blocks=1, merge=merge)
    weighed = torch.softmax(scores(a), 1)[..., None] * sources(a)
    lost = mixture(a).square().mean(1) / weighed.square().mean(2).sum(1)
    assert float(lost.max()) < 1e-2
    typical = drawn("typical", blocks=1)
    weighed = torch.softmax(scores(typical), 1)[..., None] * sources(typical)
    assert float((mixture(typical).square().mean(1) / weighed.square().mean(2).sum(1)).min()) > 0.3


@merges
def test_identical_sources_are_equal_to_the_bit(merge: int) -> None:
    a = drawn("identical", merge=merge)
    v = sources(a)
    assert torch.equal(v, v[:, -1:].expand_as(v))
    assert float((torch.softmax(scores(a), 1) - 1 / 6).abs().max()) < 1e-12


@merges
def test_outliers_are_three_columns_a_thousand_times_larger(merge: int) -> None:
    size = sources(drawn("outliers", merge=merge))[:, :5].abs().mean((0, 1))
    assert int((size > 500 * size.median()).sum()) == 3


@merges
def test_a_row_of_zeros_depends_on_eps_alone(merge: int) -> None:
    a = drawn("zero_row", merge=merge)
    assert sources(a).abs().amax((1, 2)).tolist()[1] == 0
    assert bool((out(a)[1] == 0).all())
    assert bool((out(a)[[0, 2]] != 0).all())
    assert bool(out(replace(a, eps=0.0, eps_score=0.0))[1].isnan().all())


@merges
def test_a_nan_stays_in_its_row(merge: int) -> None:
    a = drawn("nan_row", merge=merge)
    assert sources(a).isnan().flatten(1).sum(1).tolist() == [0, 1, 0]
    found = out(a)
    assert found.isnan().all(1).tolist() == found.isnan().any(1).tolist() == [False, True, False]
