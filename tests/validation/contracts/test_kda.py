"""KDA's reference against a loop written from the subject's formulas (3.5 and 3.6), and its properties."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from validation.contracts import kda
from validation.contracts.arguments import KdaArguments
from validation.contracts.contract import Case
from validation.contracts.kda_inputs import build
from validation.numerics.arithmetic import Arithmetic, Exact, Rounded

DECODE = [case.line() for case in kda.DECODE.cases("quick")]
VERIFY = [case.line() for case in kda.VERIFY.cases("quick")]
# float64 sums of at most a few hundred terms, a dozen operations deep, in another order.
CLOSE = 2.0**-40


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def to_bf16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().double().numpy()


@dataclass
class Step:
    """What a step leaves behind; ``*_written`` mark what it wrote."""

    out: np.ndarray
    state: np.ndarray
    conv: np.ndarray
    state_written: np.ndarray
    conv_written: np.ndarray


def plain_loop(a: KdaArguments, rounded: tuple[str, ...] = ()) -> Step:
    """Request by request, token by token, head by head. ``rounded``: sites that round to BF16."""
    requests, q = a.slots.shape
    H, D, d = a.heads, a.head_dim, a.heads * a.head_dim
    x, state, conv = numbers(a.projected), numbers(a.state).copy(), numbers(a.conv_state).copy()
    w, f_b = numbers(a.conv_weight).reshape(4, 3 * d), numbers(a.f_b)
    a_log, bias, gamma = numbers(a.a_log), numbers(a.dt_bias), numbers(a.norm_weight)
    rank = f_b.shape[1]

    def site(name: str, value: np.ndarray) -> np.ndarray:
        return to_bf16(value) if name in rounded else value

    step = Step(
        np.zeros((requests * q, d)), state, conv, np.zeros(len(state), bool), np.zeros(conv.shape, bool)
    )
    for b in range(requests):
        accepted = int(a.accepted[b])
        source, home = int(a.slots[b, accepted - 1]), int(a.slots[b, 0])
        if source <= 0:
            continue
        S = numbers(a.state)[source].copy()
        window = [numbers(a.conv_state)[home, :, accepted - 1 + j] for j in range(3)]
        window += [x[b * q + t, : 3 * d] for t in range(q)]
        for j, column in enumerate(window[1:]):
            conv[home, :, j] = column
            step.conv_written[home, :, j] = True
        for t in range(q):
            row = x[b * q + t]
            u = sum(w[j] * window[t + j] for j in range(4))
            z = site("conv_out", u * sigmoid(u))
            for h in range(H):
                mine = slice(h * D, (h + 1) * D)
                qh, kh, vh = z[:d][mine], z[d : 2 * d][mine], z[2 * d :][mine]
                raw = site("gate_raw", f_b[mine] @ row[4 * d : 4 * d + rank])
                decay = np.exp(a.lower_bound * sigmoid(np.exp(a_log[h]) * (raw + bias[mine])))
                beta = sigmoid(row[4 * d + rank + h])
                qn = qh / np.sqrt((qh * qh).sum() + a.eps_l2) * D**-0.5
                kn = kh / np.sqrt((kh * kh).sum() + a.eps_l2)
                S[h] = S[h] * decay[None, :]
                S[h] += np.outer((vh - S[h] @ kn) * beta, kn)
                o = site("core_out", S[h] @ qn)
                norm = o / np.sqrt((o * o).mean() + a.eps) * gamma
                step.out[b * q + t, mine] = norm * sigmoid(row[3 * d : 4 * d][mine])
            if int(a.slots[b, t]) > 0:
                state[int(a.slots[b, t])] = S
                step.state_written[int(a.slots[b, t])] = True
    return step


def views(a: KdaArguments, step: Step) -> dict[str, torch.Tensor]:
    """The judged views of what the loop left behind."""
    after = replace(
        a,
        out=torch.from_numpy(step.out),
        state=torch.from_numpy(step.state),
        conv_state=torch.from_numpy(step.conv),
    )
    return {output.name: output.view(after) for output in kda.VERIFY.outputs}


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the size of the numbers; NaN where only one is NaN."""
    assert found.shape == expected.shape
    assert torch.equal(found.isnan(), expected.isnan())
    size = float(expected.nan_to_num(0.0).abs().max()) or 1.0
    return float((found - expected).nan_to_num(0.0).abs().max()) / size


def reference(a: KdaArguments, ar: Arithmetic | None = None) -> dict[str, torch.Tensor]:
    return {name: value.mean for name, value in kda.reference(ar or Exact(), a).items()}


@pytest.mark.parametrize("line", DECODE + VERIFY)
def test_the_reference_is_the_plain_loop(line: str) -> None:
    a = build(Case.parse(line))
    found, expected = reference(a), views(a, plain_loop(a))
    assert set(found) == set(expected)
    for name in expected:
        assert apart(found[name], expected[name]) < CLOSE, name
    assert torch.equal(found["conv_state"].nan_to_num(9.0), expected["conv_state"].nan_to_num(9.0))


PROFILES = {
    "stock": (kda.STOCK, ("conv_out", "gate_raw", "core_out")),
    "specialized": (kda.SPECIALIZED, ("gate_raw",)),
    "library": (kda.LIBRARY, ("conv_out", "gate_raw", "core_out")),
}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("line", [DECODE[0], VERIFY[1]])
def test_the_sites_of_a_profile_round_where_they_say(name: str, line: str) -> None:
    profile, sites = PROFILES[name]
    a = build(Case.parse(line))
    found = reference(a, Rounded(profile))
    expected = views(a, plain_loop(a, sites))
    assert apart(found["state"], expected["state"]) < CLOSE
    # What is stored in BF16 may land on the other side of a tie.
    stored = expected["out"].bfloat16().double()
    assert int((found["out"] != stored).sum()) <= 1
    if name != "specialized":
        assert apart(reference(a)["state"], expected["state"]) > 2.0**-12, "the rounding is visible"


@pytest.mark.parametrize("line", DECODE + VERIFY)
def test_touched_says_exactly_what_a_step_writes(line: str) -> None:
    a = build(Case.parse(line))
    step, touched = plain_loop(a), kda.touched(a)
    state = touched["state"].broadcast_to(a.state.shape)
    assert torch.equal(state.flatten(1).all(1), torch.from_numpy(step.state_written))
    assert torch.equal(state.flatten(1).any(1), torch.from_numpy(step.state_written))
    conv = touched["conv_state"].broadcast_to(a.conv_state.shape)
    assert torch.equal(conv, torch.from_numpy(step.conv_written))


@pytest.mark.parametrize("line", VERIFY)
def test_a_verify_step_is_its_tokens_one_by_one(line: str) -> None:
    """Plain steps on a copy of each request's own slot and history."""
    a = build(Case.parse(line))
    whole, q = reference(a), a.tokens
    alive = kda.live_requests(a)
    for b in alive.nonzero().flatten().tolist():
        first = int(a.accepted[b]) - 1
        state, home = a.state[kda.initial_slots(a)[b]].double(), a.conv_state[int(a.slots[b, 0])]
        history = home[:, first : first + 3]
        for t in range(q):
            row = a.projected[b * q + t : b * q + t + 1]
            plain = replace(
                a,
                projected=row,
                tokens=1,
                slots=torch.tensor([[1]], dtype=torch.int32),
                accepted=torch.tensor([1], dtype=torch.int32),
                state=torch.stack([torch.zeros_like(state), state]),
                conv_state=torch.stack([torch.zeros_like(history), history]),
            )
            one = reference(plain)
            assert apart(one["out"][0, 0], whole["out"][b, t]) < CLOSE, (b, t)
            state, history = one["state"][0, 0], one["conv_state"][0].bfloat16()
            if int(a.slots[b, t]) > 0:
                assert apart(state, whole["state"][b, t]) < CLOSE, (b, t)
        kept = whole["conv_state"][b, :, q - 1 : q + 2]
        assert torch.equal(history.double().nan_to_num(9.0), kept.nan_to_num(9.0))
    assert bool(alive.any())


@pytest.mark.parametrize("accepted", [1, 2, 3, 4, 5])
def test_every_accepted_count_starts_from_its_slot_and_column(accepted: int) -> None:
    a = build(Case.parse("kda_verify:heads=1,dim=8,requests=2,tokens=5:unit_state:3"))
    g = torch.Generator().manual_seed(1)
    a.state = torch.randn(a.state.shape, generator=g)
    a.conv_state = torch.randn(a.conv_state.shape, generator=g).bfloat16()
    a.accepted[:] = accepted
    found, expected = reference(a), views(a, plain_loop(a))
    assert all(apart(found[name], expected[name]) < CLOSE for name in expected)
    a.accepted[:] = accepted % 5 + 1
    assert apart(found["out"], reference(a)["out"]) > 0.01


def permuted(a: KdaArguments, order: list[int]) -> KdaArguments:
    q = a.tokens
    rows = torch.tensor([[r * q + t for t in range(q)] for r in order]).flatten()
    return replace(a, projected=a.projected[rows], slots=a.slots[order], accepted=a.accepted[order])


SEVERAL = [DECODE[0], DECODE[6], VERIFY[6], "kda_verify:heads=2,dim=16,requests=4,tokens=3:unit_state:8"]


@pytest.mark.parametrize("line", SEVERAL)
def test_requests_may_come_in_any_order(line: str) -> None:
    a = build(Case.parse(line))
    order = torch.randperm(a.slots.shape[0], generator=torch.Generator().manual_seed(4)).tolist()
    before, after = reference(a), reference(permuted(a, order))
    for name in before:
        assert apart(after[name], before[name][order]) < CLOSE, name


SPOILS: dict[str, Callable[[KdaArguments], object]] = {
    "its rows": lambda a: a.projected[a.tokens : 2 * a.tokens].mul_(1.5),
    "its state": lambda a: a.state[int(kda.initial_slots(a)[1])].mul_(2.0),
    "its history": lambda a: a.conv_state[int(a.slots[1, 0])].mul_(-1.0),
}


@pytest.mark.parametrize("what", SPOILS)
@pytest.mark.parametrize("line", [SEVERAL[0], SEVERAL[3]])
def test_a_request_changes_nobody_elses_results(line: str, what: str) -> None:
    a = build(Case.parse(line))
    spoiled = copy.deepcopy(a)
    SPOILS[what](spoiled)
    before, after = reference(a), reference(spoiled)
    others = [b for b in range(a.slots.shape[0]) if b != 1]
    assert all(torch.equal(before[name][others], after[name][others]) for name in before)
    assert not torch.equal(before["out"][1], after["out"][1])


@pytest.mark.parametrize("op", ["kda_decode", "kda_verify"])
def test_padding_gives_zero_rows_and_its_contents_matter_to_nobody(op: str) -> None:
    tokens = ",tokens=3" if op == "kda_verify" else ""
    a = build(Case.parse(f"{op}:heads=2,dim=16,requests=4{tokens}:null_slots:5"))
    alive = kda.live_requests(a)
    assert alive.tolist() == [True, False, True, op == "kda_verify"]
    before = reference(a)
    assert all(bool((before[name][~alive] == 0).all()) for name in before)
    assert all(bool(before[name].isfinite().all()) for name in before), "the rows of padding hold NaN"
    assert float(before["out"][alive].abs().min()) > 0
    a.projected[a.tokens : 2 * a.tokens] = 3.0
    after = reference(a)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_null_entry_within_a_row_stores_no_state_but_its_output() -> None:
    a = build(Case.parse("kda_verify:heads=2,dim=16,requests=3,tokens=3:null_slots:5"))
    assert a.slots[2].tolist()[1:] == [-1, 0]
    found = reference(a)
    assert bool((found["state"][2, 1:] == 0).all())
    assert float(found["state"][2, 0].abs().max()) > 0
    assert float(found["out"][2].abs().amax(-1).min()) > 0
    assert kda.live_writes(a).tolist() == [[True] * 3, [False] * 3, [True, False, False]]
