"""The acceptance rule's reference against plain loops, what it admits under noise, and its regimes."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch

from tests.validation.contracts.vocabulary.plain_rejection import plain
from validation.contracts.contract import Case
from validation.contracts.vocabulary import reject
from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments
from validation.contracts.vocabulary.reject_choice import Emitted
from validation.contracts.vocabulary.reject_inputs import REGIMES, build
from validation.faults import reject_sample_step
from validation.faults.orders import LIBRARY
from validation.judge import judge_case
from validation.numerics.arithmetic import Arithmetic, Noise, Rounded
from validation.providers import Implementation

SHARE = 1e-7
PROFILES = {"stock": reject.STOCK, "specialized": reject.SPECIALIZED}
REGIME_NAMES = [r.name for r in REGIMES if r.name not in ("distribution", "nan_row", "wide_offsets")]


def drawn(regime: str, **shape: int) -> RejectSampleArguments:
    base = {"requests": 24, "drafts": 3, "vocabulary": 37, "proposal": 1}
    return build(Case.of("reject_sample", regime, 3, **(base | shape)))


def emitted(a: RejectSampleArguments, ar: Arithmetic) -> Emitted:
    found: Any = reject.reference(ar, a)["tokens"]
    return found


def judged(a: RejectSampleArguments, rows: list[list[int]], ar: Arithmetic) -> list[bool]:
    """Which requests are wrong, judged where these rows stopped."""
    made = torch.tensor(rows)
    return emitted(dataclasses.replace(a, made=made), ar).wrong(made, SHARE).tolist()


@pytest.mark.parametrize("proposal", [0, 1])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("regime", REGIME_NAMES)
def test_the_reference_is_the_plain_rule_and_admits_nothing_else(regime, profile, proposal):
    a = drawn(regime, proposal=proposal)
    expected = plain(a, strict=profile == "specialized")
    assert emitted(a, Rounded(PROFILES[profile])).mean.long().tolist() == expected
    noisy = Noise(PROFILES[profile])
    assert not any(judged(a, expected, noisy))
    for slot in range(5):
        changed = [[*row[:slot], row[slot] + 1, *row[slot + 1 :]] for row in expected]
        assert all(judged(a, changed, noisy)), slot


def test_a_division_within_noise_of_u_may_go_either_way_on_a_device():
    a = drawn("near", requests=60)
    either = [plain(a, strict) for strict in (False, True)]
    assert either[0] != either[1]
    device = Noise(reject.STOCK.on("cuda"))
    exact = Noise(reject.STOCK)
    for rows in either:
        assert not any(judged(a, rows, device))
    assert any(judged(a, either[1], exact)), "where division is rounded to nearest, u equal to it decides"


def test_a_product_is_known_to_the_bit_on_every_device():
    a = drawn("near", requests=60)
    assert any(judged(a, plain(a, strict=False), Noise(reject.SPECIALIZED.on("cuda"))))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_of_equal_scores_the_lowest_id_must_come_out_with_noise_and_without(device):
    a = drawn("ties")
    faulty = dataclasses.replace(a, tokens=a.tokens.clone(), accepted=a.accepted.clone())
    reject_sample_step.run(faulty, LIBRARY, fault="ties_to_higher")
    rows = reject.together(faulty).tolist()
    wrong = judged(a, rows, Noise(reject.STOCK.on(device)))
    assert sum(wrong) >= 3
    assert wrong == [row != right for row, right in zip(rows, plain(a, strict=False), strict=True)]


def test_a_nan_in_p_stays_in_its_request_where_any_token_is_right():
    a = drawn("nan_row")
    rows = plain(drawn("nan_row"), strict=False)
    for token in (0, 5, 36):
        rows[0] = [token, -1, -1, -1, 0]
        assert not any(judged(a, rows, Noise(reject.STOCK)))
    rows[0] = [37, -1, -1, -1, 0]
    assert judged(a, rows, Noise(reject.STOCK))[0], "but a token it must be"


@pytest.mark.parametrize("fault", ["", "q_missing", "recovered_from_p", "block_criterion"])
def test_the_counts_find_a_bias_without_the_help_of_the_tokens(fault):
    case = Case.of("reject_sample", "distribution", 11, requests=20_000, drafts=2, vocabulary=4, proposal=1)
    function = partial(reject_sample_step.run, order=LIBRARY, fault=fault)
    result = judge_case(case, Implementation("reject_sample", "mine", "stock", function), "cpu", share=SHARE)
    assert ("counts" in {finding.output for finding in result.findings}) == bool(fault)


def test_counts_are_of_the_slots_that_were_reached():
    a = drawn("distribution", requests=3, drafts=2, vocabulary=4)
    a.tokens = torch.tensor([[1, 2, 0], [1, -1, -1], [3, 2, 1]], dtype=torch.int32)
    assert reject.counted(a).tolist() == [[0, 2, 0, 1], [0, 0, 2, 0]]


@pytest.mark.parametrize("regime", REGIME_NAMES)
def test_what_must_not_be_read_is_nan_and_changes_nothing(regime):
    a = drawn(regime)
    live, greedy = int(a.ends[-1]), a.greedy
    owner = torch.arange(24).repeat_interleave(a.drafted)
    assert bool(a.target[live:].isnan().all())
    assert a.proposal is not None
    assert bool(a.proposal[:live][greedy[owner]].isnan().all())
    assert bool(a.uniform[:live][greedy[owner]].isnan().all())
    assert bool(a.noise[greedy | (a.drafted == 0)].isnan().all())
    filled = {n: getattr(a, n).nan_to_num(0.3) for n in ("target", "proposal", "uniform", "noise")}
    ar = Rounded(reject.STOCK)
    assert torch.equal(emitted(a, ar).mean, emitted(dataclasses.replace(a, **filled), ar).mean)


def test_regimes_hold_what_they_promise():
    typical = drawn("typical")
    assert {0, 3} <= set(typical.drafted.tolist())
    assert 0 < int(typical.greedy.sum()) < 24
    edges = drawn("edges")
    p = edges.target[:-1].gather(1, edges.drafts[:-1, None].long())[:, 0]
    assert bool(((edges.uniform[:-1] == 0) & (p == 0)).any())
    assert bool((edges.temperature.signbit() & (edges.temperature == 0)).any())
    assert bool(((edges.temperature > 0) & (edges.temperature < 1e-5)).any())
    ties = drawn("ties")
    assert bool((reject.residual_of(ties, torch.arange(int(ties.ends[-1]))) == 0).all(-1).any())
    tail = torch.tensor(plain(drawn("tail"), strict=False))
    assert {35, 36} <= set(tail[:, 0].tolist())
    holes = drawn("placeholders")
    assert bool((holes.drafts == -1).any())
    assert bool((holes.bonus[holes.drafted == 0] == -1).all())
    assert bool(drawn("poison").target[:-1].isnan().any())
    wide = drawn("wide_offsets", requests=3, drafts=1, vocabulary=40)
    assert 2 * reject.strides(wide)["target"][0] >= 2**31


def test_quick_is_a_strict_part_of_full():
    quick, full = set(reject.cases("quick")), set(reject.cases("full"))
    assert quick < full
    assert {case.regime for case in quick} == {regime.name for regime in REGIMES}
