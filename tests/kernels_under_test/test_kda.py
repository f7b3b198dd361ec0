"""The KDA kernel against FP64, and verify against plain steps, among NaN that must not be read."""

import dataclasses

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.kda import kda_decode, kda_verify
from tests.kernels_under_test.memory import NAN, same_bits, spacing, spread
from validation.contracts.arguments import KdaArguments
from validation.errors import UserError

RANK = 24


def arguments(
    requests: int = 2, heads: int = 2, dim: int = 32, q: int = 1, accepted: tuple[int, ...] = (), **options
) -> KdaArguments:
    """Sparse slots in descending order; rows, slots and free memory lie between NaN."""
    draw = torch.Generator().manual_seed(dim + q)
    d, used = heads * dim, requests * q
    width = 4 * d + RANK + heads

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * scale

    history = normal(2 * used + 2, 3 * d, q + 3).to(torch.bfloat16)
    history[..., q + 2 :] = NAN
    a = KdaArguments(
        projected=spread(normal(used, width).to(torch.bfloat16), gap=5),
        conv_weight=normal(4, 3, d, scale=0.4),
        f_b=spread(normal(d, RANK, scale=RANK**-0.5).to(torch.bfloat16)),
        a_log=normal(heads, scale=0.5),
        dt_bias=spread(normal(d, scale=0.1)),
        norm_weight=spread(normal(dim).to(torch.bfloat16)),
        slots=(2 * torch.arange(used, 0, -1, dtype=torch.int32)).reshape(requests, q),
        accepted=torch.tensor(accepted or [1] * requests, dtype=torch.int32),
        conv_state=spread(history, transposed=options.pop("token_major", True)),
        state=spread(normal(2 * used + 2, heads, dim, dim)),
        out=spread(torch.full((used, d), NAN, dtype=torch.bfloat16)),
        heads=heads,
        head_dim=dim,
        tokens=q,
        **options,
    )
    return moved(a)


def moved(a: KdaArguments) -> KdaArguments:
    """The dense tensors on the device of the others."""
    at = a.state.device
    dense = {f: getattr(a, f).to(at) for f in ("conv_weight", "a_log", "slots", "accepted")}
    return dataclasses.replace(a, **dense)


def copied(a: KdaArguments) -> KdaArguments:
    updated = {name: getattr(a, name).clone() for name in ("conv_state", "state", "out")}
    return dataclasses.replace(a, **updated)


def exact_step(a: KdaArguments) -> tuple[torch.Tensor, torch.Tensor]:
    """One token in FP64 with the gate product rounded to BF16: output [request, head, v], state."""
    slot = a.slots[:, 0].long()
    part = {name: a.projected[:, columns].double() for name, columns in a.columns().items()}
    x = a.projected[:, : 3 * a.width].double()
    window = torch.cat([a.conv_state[slot][..., :3].double(), x[..., None]], 2)
    u = (window * a.conv_weight.double().reshape(4, -1).T).sum(-1)
    z = (u * torch.sigmoid(u)).reshape(-1, 3, a.heads, a.head_dim)
    query, key, value = z[:, 0], z[:, 1], z[:, 2]
    query = query / (query.square().sum(-1, keepdim=True) + a.eps_l2).sqrt() * a.head_dim**-0.5
    key = key / (key.square().sum(-1, keepdim=True) + a.eps_l2).sqrt()
    raw = (part["f_a"] @ a.f_b.double().T).to(torch.bfloat16).double() + a.dt_bias.double()
    speed = a.a_log.double().exp()[:, None]
    decay = torch.exp(a.lower_bound * torch.sigmoid(speed * raw.reshape(-1, a.heads, a.head_dim)))
    state = a.state[slot].double() * decay[:, :, None]
    missing = value - (state * key[:, :, None]).sum(-1)
    state = state + (missing * torch.sigmoid(part["beta"])[..., None])[..., None] * key[:, :, None]
    core = (state * query[:, :, None]).sum(-1)
    norm = (core.square().mean(-1, keepdim=True) + a.eps).rsqrt() * a.norm_weight.double()
    return core * norm * torch.sigmoid(part["gate"].reshape(core.shape)), state


@pytest.mark.parametrize("token_major", [True, False])
@pytest.mark.parametrize("dim", [32, 60, 100, 128])
def test_decode_is_within_one_rounding_of_fp64(dim, token_major):
    a = arguments(dim=dim, token_major=token_major)
    output, state = exact_step(copied(a))
    kda_decode(a)
    # FP32 throughout: 2**-18 of the largest element covers sums of 128 terms and approximate functions; a
    # product with F_b that lies on a BF16 tie would be one spacing of g off, which these seeds do not hit.
    found = a.state[a.slots[:, 0].long()].double()
    assert ((found - state).abs() <= state.abs().amax() * 2.0**-18).all()
    error = (a.out.double().reshape(output.shape) - output).abs()
    assert (error <= spacing(output) / 2 + output.abs().amax() * 2.0**-18).all()


def test_decode_shifts_the_history_and_leaves_other_slots_alone():
    a = arguments()
    before = copied(a)
    kda_decode(a)
    slot = a.slots[:, 0].long()
    x = a.projected[:, : 3 * a.width]
    assert same_bits(a.conv_state[slot][..., :2], before.conv_state[slot][..., 1:3])
    assert same_bits(a.conv_state[slot][..., 2], x)
    assert same_bits(a.conv_state[slot][..., 3:], before.conv_state[slot][..., 3:])
    others = [s for s in range(len(a.state)) if s not in slot.tolist()]
    assert same_bits(a.state[others], before.state[others])
    assert same_bits(a.conv_state[others], before.conv_state[others])


def plain_step(a: KdaArguments, request: int, token: int, slot: int) -> KdaArguments:
    """A decode step of one request at one of its tokens, on the same caches."""
    row = request * a.tokens + token
    return dataclasses.replace(
        a,
        projected=a.projected[row : row + 1],
        slots=torch.full_like(a.slots[:1, :1], slot),
        accepted=torch.ones_like(a.accepted[:1]),
        out=torch.empty_like(a.out[:1]),
        tokens=1,
    )


@pytest.mark.skipif(
    device() == "cuda",
    reason="compiled for one token and for several, multiply-adds may be fused differently",
)
@pytest.mark.parametrize("q", [2, 5, 8])
def test_verify_equals_plain_steps_bit_for_bit(q):
    verify = arguments(requests=2, q=q)
    plain = copied(verify)
    kda_verify(verify)
    for request in range(2):
        slot = int(plain.slots[request, 0])
        for token in range(q):
            step = plain_step(plain, request, token, slot)
            kda_decode(step)
            assert same_bits(verify.out[request * q + token], step.out[0])
            assert same_bits(verify.state[verify.slots[request, token].long()], plain.state[slot])


@pytest.mark.parametrize("accepted", [(1, 4), (2, 3)])
def test_a_rejected_draft_leaves_no_trace(accepted):
    """Two verify steps, of which the first was accepted in part, equal plain steps over what was accepted."""
    q = 4
    verify = arguments(requests=2, q=q)
    plain = copied(verify)
    kda_verify(verify)
    second = dataclasses.replace(verify, projected=verify.projected.flip(0))
    second.accepted = torch.tensor(accepted, dtype=torch.int32, device=verify.out.device)
    kda_verify(second)
    for request in range(2):
        slot = int(plain.slots[request, 0])
        for token in range(accepted[request]):
            kda_decode(plain_step(plain, request, token, slot))
        again = dataclasses.replace(plain, projected=second.projected)
        for token in range(q):
            step = plain_step(again, request, token, slot)
            kda_decode(step)
            assert same_bits(second.out[request * q + token], step.out[0])


@pytest.mark.parametrize("slot", [0, -1])
def test_a_padding_request_gives_zero_rows_and_touches_nothing(slot):
    for q, run in ((1, kda_decode), (3, kda_verify)):
        a = arguments(requests=2, q=q)
        a.slots[1] = slot
        a.projected[q:] = NAN
        before = copied(a)
        run(a)
        assert torch.equal(a.out[q:], torch.zeros_like(a.out[q:]))
        assert not a.out[:q].isnan().any()
        untouched = [s for s in range(len(a.state)) if s not in a.slots[0].tolist()]
        assert same_bits(a.state[untouched], before.state[untouched])
        assert same_bits(a.conv_state[untouched], before.conv_state[untouched])


def test_a_null_slot_within_a_row_is_not_written():
    a = arguments(requests=1, q=3)
    a.slots[0, 1:] = 0
    before = copied(a)
    kda_verify(a)
    first = int(a.slots[0, 0])
    others = [s for s in range(len(a.state)) if s != first]
    assert same_bits(a.state[others], before.state[others])
    assert not a.out.isnan().any()


def test_a_wrong_number_of_tokens_is_refused():
    with pytest.raises(UserError, match="kda_verify"):
        kda_decode(arguments(q=2))
    with pytest.raises(UserError, match="2 to 8"):
        kda_verify(arguments(q=1))
