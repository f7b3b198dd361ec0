"""KDA's regimes are what they claim, and what must not be read holds NaN."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from validation.contracts import kda
from validation.contracts.arguments import KdaArguments
from validation.contracts.contract import Case
from validation.contracts.kda_inputs import REGIMES, build
from validation.numerics.arithmetic import Exact

OPS = ("kda_decode", "kda_verify")


def drawn(regime: str, op: str = "kda_decode", **shape: int) -> KdaArguments:
    sizes = {"heads": 3, "dim": 64, "requests": 4} | ({"tokens": 4} if op == "kda_verify" else {}) | shape
    return build(Case.of(op, regime, 11, **sizes))


def gate_argument(a: KdaArguments) -> Tensor:
    """What the decay's sigmoid sees, from the tensors themselves. [row, channel]"""
    raw = a.projected[:, a.columns()["f_a"]].double() @ a.f_b.double().T
    return torch.exp(a.a_log.double()).repeat_interleave(a.head_dim) * (raw + a.dt_bias.double())


def log_decay(a: KdaArguments) -> Tensor:
    return a.lower_bound * torch.sigmoid(gate_argument(a))


def kinds(names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", names.split())


# -- the regimes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("regime", "scale"), [("unit_state", 1.0), ("small_state", 0.01)])
def test_the_state_has_its_scale_and_the_rest_does_not(regime: str, scale: float) -> None:
    a = drawn(regime)
    state = a.state[kda.initial_slots(a)]
    # A standard deviation of n normal numbers is known to 1 / sqrt(2 n); five of these.
    assert abs(float(state.std()) / scale - 1) < 5 / math.sqrt(2 * state.numel())
    q = a.projected[:, a.columns()["q"]].float()
    assert abs(float(q.std()) - 1) < 5 / math.sqrt(2 * q.numel())
    assert 0.08 < float(a.conv_weight.std()) < 0.12
    assert float(a.norm_weight.float().std()) > 0.5, "a missing norm weight shows"


def test_half_lives_are_log_uniform_from_one_to_1e5_tokens() -> None:
    a = drawn("long_memory", heads=12, dim=128)
    half_lives = math.log(2) / -log_decay(a)
    # What the gate itself adds varies them by a few tenths.
    decades = torch.log10(half_lives).flatten() / 5
    assert -0.1 < float(decades.min()) < 0.02
    assert 0.98 < float(decades.max()) < 1.1
    by_channel = torch.log10(half_lives).mean(0) / 5
    distance = stats.kstest(by_channel.clamp(0, 1).numpy(), "uniform")
    assert distance.pvalue > 1e-4
    assert stats.kstest(drawn("unit_state").dt_bias.numpy(), "uniform").pvalue < 1e-20, "the test can fail"


def test_a_half_life_of_1e5_tokens_is_told_from_none_in_fp32() -> None:
    a = drawn("long_memory", heads=12, dim=128)
    decay = torch.exp(log_decay(a)).float()
    assert 0.999990 < float(decay.max()) < 1.0
    assert 0.2 < float(decay.min()) < 0.6


def test_gates_reach_both_bounds_to_fp32() -> None:
    decay = torch.exp(log_decay(drawn("gate_bounds")))
    lowest = torch.tensor(math.exp(-5.0))
    upper, lower = decay.float() == 1.0, decay.float() == lowest
    assert bool((upper | lower).all()), "nothing between"
    assert 0.3 < float(upper.double().mean()) < 0.7
    typical = torch.exp(log_decay(drawn("unit_state"))).float()
    assert not bool(((typical == 1.0) | (typical == lowest)).any())


def test_beta_and_the_output_gate_are_saturated() -> None:
    a = drawn("saturated")
    for name in ("beta", "gate"):
        values = torch.sigmoid(a.projected[:, a.columns()[name]].float())
        assert bool(((values == 1) | (values < 2.0**-40)).all()), name
        assert 0.2 < float((values == 1).double().mean()) < 0.8, name


def test_all_zero_q_and_k_leave_the_norm_to_its_eps() -> None:
    a = drawn("zero_qk")
    columns, dim = a.columns(), a.head_dim
    q, k = (a.projected[:, columns[name]].reshape(-1, a.heads, dim) for name in ("q", "k"))
    assert [bool((q[:, h] == 0).all()) for h in range(3)] == [True, False, False]
    assert [bool((k[:, h] == 0).all()) for h in range(3)] == [False, False, True]
    history = a.conv_state[a.slots[:, 0].long()].reshape(4, 3, a.heads, dim, -1)
    assert bool((history[:, 0, 0] == 0).all())
    assert bool((history[:, 1, 2] == 0).all())
    out = kda.reference(Exact(), a)["out"].mean
    assert bool(out.isfinite().all())
    assert bool((out[:, :, 0] == 0).all()), "no query, no output"
    a.eps_l2 = 0.0
    assert bool(kda.reference(Exact(), a)["out"].mean[:, :, 0].isnan().all()), "eps alone keeps it finite"


def test_padding_stands_in_the_middle_and_at_the_end() -> None:
    plain, verify = drawn("null_slots"), drawn("null_slots", "kda_verify")
    assert [int(s) <= 0 for s in plain.slots[:, 0]] == [False, True, False, True]
    assert sorted(plain.slots[plain.slots <= 0].tolist()) == [-1, 0]
    assert kda.live_requests(verify).tolist() == [True, False, True, True]
    assert verify.slots[1].tolist() == [0] * 4
    assert verify.slots[3].tolist()[1:] == [-1, 0, -1]
    assert int(verify.slots[3, 0]) > 0
    assert verify.projected[4:8].isnan().all()
    assert not plain.projected[[0, 2]][:, :-5].isnan().any()
    # History that a kernel copies from padding into the null slot changes its bits.
    padding, nobody = (x.view(torch.int16) for x in (verify.projected[4:8], verify.conv_state[0]))
    assert nobody.unique().numel() == 1
    assert bool((padding != nobody[0, 0]).all())


@kinds("kda_decode kda_verify")
def test_one_request_holds_a_nan_and_no_other_is_touched_by_it(op: str) -> None:
    a = drawn("nan_request", op)
    inputs = a.projected[:, :-5].reshape(4, a.tokens, -1).isnan().flatten(1).sum(1)
    assert inputs.tolist() == [0, 0, 1, 0]
    for name, value in kda.reference(Exact(), a).items():
        assert value.mean.isnan().flatten(1).any(1).tolist() == [False, False, True, False], name


@kinds("kda_decode kda_verify")
def test_wide_slots_lie_more_than_2_to_31_elements_apart(op: str) -> None:
    a = drawn("wide_offsets", op, heads=1, dim=8, requests=3)
    reach = kda.strides(a)["state"][0] * int(a.slots.max())
    assert reach > 2**31
    assert a.wide_slots
    assert not drawn("unit_state", op).wide_slots
    assert a.state.shape[0] == int(a.slots.max()) + 1, "no slot more than needed"


# -- what holds in all of them ---------------------------------------------------------------------

EVERY = [(op, r.name) for op in OPS for r in REGIMES]


@pytest.mark.parametrize(("op", "regime"), EVERY)
def test_what_must_not_be_read_holds_nan(op: str, regime: str) -> None:
    a = drawn(regime, op, spare=2)
    assert a.projected[:, max(s.stop for s in a.columns().values()) :].isnan().all(), "padding columns"
    alive = kda.live_requests(a)
    read = set(kda.initial_slots(a)[alive].tolist())
    for slot in range(a.state.shape[0]):
        assert bool(a.state[slot].isnan().all()) == (slot not in read), slot
    windows = torch.zeros(a.conv_state.shape[0], a.conv_state.shape[2], dtype=torch.bool)
    for b in alive.nonzero().flatten().tolist():
        first = int(a.accepted[b]) - 1
        windows[int(a.slots[b, 0]), first : first + 3] = True
    assert torch.equal(a.conv_state.isnan().all(1), ~windows)
    assert torch.equal(a.conv_state.isnan().any(1), ~windows)


@pytest.mark.parametrize(("op", "regime"), [e for e in EVERY if e[1] != "nan_request"])
def test_the_reference_reads_none_of_it(op: str, regime: str) -> None:
    found = kda.reference(Exact(), drawn(regime, op, spare=2))
    assert all(bool(value.mean.isfinite().all()) for value in found.values())


@pytest.mark.parametrize(("op", "regime"), EVERY)
def test_live_slots_are_distinct_sparse_and_never_the_null_slot(op: str, regime: str) -> None:
    a = drawn(regime, op, requests=6)
    owned = a.slots[a.slots > 0].tolist()
    assert len(set(owned)) == len(owned)
    assert a.free_slot not in owned
    assert 0 <= a.free_slot < a.state.shape[0]
    if regime == "wide_offsets":
        return
    assert a.free_slot > 0
    assert owned != sorted(owned), "a kernel that takes them in order would be right by chance"
    assert max(owned) > len(owned), "not a range"


def test_accepted_counts_differ_from_request_to_request() -> None:
    a = drawn("unit_state", "kda_verify", requests=12, tokens=5)
    assert set(a.accepted.tolist()) == {1, 2, 3, 4, 5}
    assert drawn("unit_state").accepted.tolist() == [1] * 4


def test_shapes_follow_the_case() -> None:
    a = drawn("unit_state", "kda_verify", heads=2, dim=100, requests=3, tokens=5, spare=2)
    assert a.conv_state.shape[1:] == (600, 5 + 2 + 2)
    assert a.state.shape[1:] == (2, 100, 100)
    assert a.projected.shape == (15, 4 * 200 + 32 + 2 + 5)
    assert a.out.shape == (15, 200)
    assert (a.tokens, a.width, a.rank) == (5, 200, 32)
    assert drawn("unit_state", dim=128).rank == 128
