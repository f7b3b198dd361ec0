"""Inputs of the KDA contracts: the recipe of the 40-fault study and the regimes around it.

In every regime slots are sparse and permuted, free slots, the null slot and the padding columns hold NaN, and
accepted counts differ from request to request.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from validation.contracts.arguments import KdaArguments
from validation.contracts.contract import Case, Regime
from validation.contracts.regimes import generator, log_uniform_half_lives, normal, sparse_slots

REGIMES = (
    Regime("unit_state", ("F01", "F02", "F22", "F28"), "recipe of the 40-fault study, state of unit scale"),
    Regime("small_state", ("F01", "F02", "F12", "F22"), "a state of scale 0.01; another decay bound and eps"),
    Regime("long_memory", ("F02", "F06"), "half-lives log-uniform over 1 to 1e5 tokens"),
    Regime("gate_bounds", ("F02", "F03"), "decay gates at both bounds: exp(-5) and exactly 1"),
    Regime("saturated", ("F02", "F12"), "beta and the output gate at 0 and 1"),
    Regime("zero_qk", ("F12", "F03"), "all-zero q or k of some heads: the eps of the L2 norm decides"),
    Regime(
        "null_slots",
        ("F23", "F10", "F45"),
        "padding requests in the middle and at the end, null slots within a row",
    ),
    Regime("nan_request", ("F51", "F27"), "one request holds a NaN: it must stay there"),
    Regime("wide_offsets", ("F50",), "slots more than 2**31 elements apart"),
)

RANK = 32
RANK_REAL = 128
LOWER_BOUND = -5.0


def build(case: Case) -> KdaArguments:
    """Draw the arguments of a decode (no ``tokens`` in the shape) or verify case on the CPU."""
    g = generator(case)
    shape = dict(case.shape)
    heads, dim, requests = shape["heads"], shape["dim"], shape["requests"]
    q = shape.get("tokens", 1)
    a = _recipe(g, case.regime, heads, dim, requests, q, spare=shape.get("spare", 0))
    _REGIME_CHANGES.get(case.regime, lambda g, a: None)(g, a)
    _poison_free_slots(a)
    a.wide_slots = case.regime == "wide_offsets"
    a.free_slot = _free_slot(a)
    return a


def _recipe(
    g: Generator, regime: str, heads: int, dim: int, requests: int, q: int, spare: int
) -> KdaArguments:
    d = heads * dim
    rank = RANK_REAL if dim >= 128 else RANK
    padding = 5
    pitch = 4 * d + rank + heads + padding
    wide = regime == "wide_offsets"
    slots = _wide_slots(requests, q) if wide else sparse_slots(g, requests * q).reshape(requests, q)
    pool = int(slots.max()) + 2 - wide
    state_scale = 0.01 if regime == "small_state" else 1.0
    projected = normal(g, requests * q, pitch)
    projected[:, -padding:] = float("nan")
    accepted = torch.ones(requests, dtype=torch.int32)
    if q > 1:
        accepted = torch.randint(1, q + 1, (requests,), generator=g, dtype=torch.int32)
    columns = 2 + q + spare
    return KdaArguments(
        projected=projected.bfloat16(),
        conv_weight=0.1 * normal(g, 4, 3, d),
        f_b=(normal(g, d, rank) / math.sqrt(rank)).bfloat16(),
        a_log=0.5 * normal(g, heads),
        dt_bias=0.1 * normal(g, d),
        norm_weight=normal(g, dim).bfloat16(),
        slots=slots,
        accepted=accepted,
        conv_state=(0.1 * normal(g, pool, 3 * d, columns)).bfloat16(),
        state=state_scale * normal(g, pool, heads, dim, dim),
        out=torch.zeros(requests * q, d, dtype=torch.bfloat16),
        heads=heads,
        head_dim=dim,
        tokens=q,
    )


def _wide_slots(requests: int, q: int) -> Tensor:
    """The highest slots of a short pool, so that a stride of 2**30 elements passes 2**31."""
    return (torch.arange(requests * q).flip(0) + 1).to(torch.int32).reshape(requests, q)


def _free_slot(a: KdaArguments) -> int:
    """A slot that no request owns; 0 (the null slot) if the pool is full."""
    owned = set(a.slots.flatten().tolist())
    return next((slot for slot in range(1, a.state.shape[0]) if slot not in owned), 0)


def _speed(a: KdaArguments) -> Tensor:
    """exp(A_log) for every channel."""
    return torch.exp(a.a_log).repeat_interleave(a.head_dim)


def _long_memory(g: Generator, a: KdaArguments) -> None:
    half_lives = log_uniform_half_lives(g, a.width)
    opened = math.log(2) / (-LOWER_BOUND) / half_lives  # sigmoid of the gate's argument
    a.dt_bias = torch.log(opened / (1 - opened)) / _speed(a)
    a.f_b = (0.1 * a.f_b.float()).bfloat16()


def _gate_bounds(g: Generator, a: KdaArguments) -> None:
    sign = torch.where(torch.rand(a.width, generator=g) < 0.5, 1.0, -1.0)
    a.dt_bias = sign * 40.0 / _speed(a)


def _saturated(g: Generator, a: KdaArguments) -> None:
    columns = a.columns()
    for name in ("beta", "gate"):
        a.projected[:, columns[name]] = (30 * a.projected[:, columns[name]].float().sign()).bfloat16()


def _zero_qk(g: Generator, a: KdaArguments) -> None:
    """Head 0 has no q, the last head no k, in history and in the new inputs."""
    d, dim = a.width, a.head_dim
    zeroed = (slice(0, dim), slice(2 * d - dim, 2 * d))
    for channels in zeroed:
        a.projected[:, channels] = 0
        a.conv_state[:, channels] = 0


# A NaN of other bits than those that free slots hold: what is copied from padding is seen where it lies.
_PADDING = torch.tensor(0x7FC1, dtype=torch.int16).view(torch.bfloat16)


def _null_slots(g: Generator, a: KdaArguments) -> None:
    """The second request is padding (all null, accepted 1); the last stops after its first token's slot
    (verify) or is padding with a negative slot (decode)."""
    requests, q = a.slots.shape
    a.slots[1 % requests] = 0
    a.accepted[1 % requests] = 1
    if q == 1:
        a.slots[requests - 1] = -1
    else:
        a.slots[requests - 1, 1:] = 0
        a.slots[requests - 1, 1::2] = -1
        a.accepted[requests - 1] = 1
    a.projected[torch.arange(q) + q * (1 % requests)] = _PADDING


def _nan_request(g: Generator, a: KdaArguments) -> None:
    a.projected[a.tokens * (a.slots.shape[0] // 2), a.columns()["v"].start + 3] = float("nan")


def _other_constants(g: Generator, a: KdaArguments) -> None:
    """A bound and an eps that are not the model's, so that a typed-in constant is seen."""
    a.lower_bound, a.eps = -4.0, 3e-5


_REGIME_CHANGES = {
    "small_state": _other_constants,
    "long_memory": _long_memory,
    "gate_bounds": _gate_bounds,
    "saturated": _saturated,
    "zero_qk": _zero_qk,
    "null_slots": _null_slots,
    "nan_request": _nan_request,
}


def _poison_free_slots(a: KdaArguments) -> None:
    """NaN in every state that no live request starts from, and every history but its own window's."""
    nan = float("nan")
    first = (a.accepted.long() - 1).clamp(min=0)
    initial = a.slots.long().gather(1, first[:, None])[:, 0]
    read = initial[initial > 0]
    kept = a.state[read].clone()
    a.state[:] = nan
    a.state[read] = kept
    cache = torch.full_like(a.conv_state, nan)
    for request in range(a.slots.shape[0]):
        slot, start = int(a.slots[request, 0]), int(first[request])
        if initial[request] > 0 and slot > 0:
            cache[slot, :, start : start + 3] = a.conv_state[slot, :, start : start + 3]
    a.conv_state = cache
