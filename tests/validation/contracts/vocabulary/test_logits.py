"""The logits' reference against plain loops, its three ways to normalise, and its regimes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.vocabulary import logits
from validation.contracts.vocabulary.logits import LogitsArguments, build
from validation.contracts.vocabulary.logits_inputs import REGIMES, SCALES
from validation.numerics.arithmetic import Exact, Rounded
from validation.numerics.formats import BF16

SHAPE = {"rows": 5, "wanted": 3, "ranks": 4, "shard": 8, "width": 96, "org": 29, "norm": 0, "scale": 0}
NARROW = [r.name for r in REGIMES if r.name != "wide_offsets"]
# Two float64 sums of up to 96 terms and a square root, each in another order.
CLOSE = 256 * 2.0**-53


def drawn(regime: str = "typical", **shape: int) -> LogitsArguments:
    return build(Case.of("logits", regime, 3, **(SHAPE | shape)))


def rounded(a: LogitsArguments) -> dict[str, torch.Tensor]:
    return {n: v.mean for n, v in logits.reference(Rounded(logits.STOCK), a).items()}


@pytest.mark.parametrize("norm", [0, 2])
@pytest.mark.parametrize("regime", NARROW)
def test_the_reference_is_the_plain_loop(regime: str, norm: int) -> None:
    a = drawn(regime, norm=norm, scale=3)
    found = logits.reference(Exact(), a)["out"].mean
    assert found.shape == (3, 29)
    for sample, row in enumerate(a.rows_wanted.tolist()):
        x = a.x[row].double().tolist()
        if norm == 0:
            inverse = 1 / math.sqrt(math.fsum(v * v for v in x) / 96 + a.eps)
            x = [v * inverse * float(w) for v, w in zip(x, a.gamma, strict=True)]
        for token in range(29):
            weight = a.weight[token // 8, token % 8].double().tolist()
            terms = [p * q * SCALES[3] for p, q in zip(x, weight, strict=True)]
            value = float(found[sample, token])
            if any(math.isnan(term) for term in terms):
                assert math.isnan(value)
            else:
                assert abs(value - math.fsum(terms)) <= CLOSE * math.fsum(map(abs, terms))


def test_normalising_all_rows_first_or_the_sampled_ones_gives_the_same_logits() -> None:
    sampled = drawn()
    every = dataclasses.replace(sampled, norm="all", x=sampled.x.nan_to_num(0.5))
    assert torch.equal(rounded(every)["out"], rounded(sampled)["out"])
    done = dataclasses.replace(every, norm="done", x=rounded(every)["hidden"].bfloat16())
    assert torch.equal(rounded(done)["out"], rounded(sampled)["out"])


def test_the_norm_is_cast_once_and_the_scale_rounds_again() -> None:
    a = drawn(norm=1, scale=3)
    exact = logits.reference(Exact(), a)["hidden"].mean
    found = rounded(a)
    assert torch.equal(found["hidden"], exact.float().bfloat16().double())
    unscaled = rounded(dataclasses.replace(a, scale=1.0))["out"]
    held = float(torch.tensor(0.7))  # a scale is held in FP32
    assert torch.equal(found["out"], BF16.round(unscaled * held))
    direct = BF16.round(logits.reference(Exact(), a)["out"].mean)
    assert not torch.equal(found["out"], direct), "scaling before the rounding must show"


def test_copies_that_differ_in_one_bit_are_seen() -> None:
    a = drawn()
    a.out.copy_(torch.randn(3, 29).bfloat16().expand(4, 3, 29))
    view = logits.CONTRACT.outputs[2].view
    assert not bool(view(a).any())
    a.out[2, 1, 7] = -a.out[2, 1, 7]
    assert view(a).nonzero().tolist() == [[2, 1, 7]]


def test_what_must_not_be_read_is_nan() -> None:
    for norm in (0, 1, 2):
        a = drawn(norm=norm)
        assert bool(a.weight.reshape(-1, 96)[29:].isnan().all()), "the padding of the vocabulary"
        assert bool(a.gamma.isnan().all()) == (norm == 2)
        idle = torch.ones(5, dtype=torch.bool)
        idle[a.rows_wanted] = False
        assert bool(a.x[idle].isnan().all()) == (norm != 1)
        assert not bool(rounded(a)["out"].isnan().any())


def test_a_nan_stays_in_its_sample() -> None:
    out = rounded(drawn("nan_row"))["out"]
    assert out.isnan().all(1).tolist() == out.isnan().any(1).tolist() == [False, True, False]


def test_regimes_are_what_they_say() -> None:
    repeated = drawn("unwanted").rows_wanted
    assert int(repeated[0]) == int(repeated[-1])
    small = drawn("small", norm=1).x.double().square().mean()
    assert 1e-7 < float(small) < 1e-4, "eps is 1e-5"
    assert not bool(drawn("zero_row").x[drawn("zero_row").rows_wanted[0]].any())
    one = drawn("one_hot", norm=1).x
    assert (one != 0).sum(1).tolist() == [1] * 5
    size = drawn("outliers", norm=1).x.float().abs().mean(0)
    assert int((size > 300 * size.median()).sum()) == 3


def test_only_a_step_that_normalises_all_rows_may_write_hidden() -> None:
    for norm in (0, 1, 2):
        touched = logits.CONTRACT.touched(drawn(norm=norm))["hidden"]
        assert bool(touched.all()) == (norm == 1)


def test_the_full_tier_has_both_shards_at_every_batch() -> None:
    found = {(c["shard"], c["wanted"]) for c in logits.cases("full") if c["ranks"] == 1}
    for shard in (20480, 10240):
        assert {(shard, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)} <= found
