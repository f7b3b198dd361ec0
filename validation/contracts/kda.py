"""Kimi Delta Attention core: plain decode and q-token verify (operations 3.5 and 3.6 of the subject).

Catches: every term of the step left out, applied on the wrong axis, in the wrong order or precision; state
not, wrongly or elsewhere written; a history window off by one; a null slot that is live; lanes beyond the
head dimension. Cannot catch: drift that no single step shows (roll-outs of the step layer), or ordering
between kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validation.contracts.arguments import KdaArguments
from validation.contracts.contract import Case, Contract, Output, Tier
from validation.contracts.kda_inputs import REGIMES, build
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

# The specialised kernel keeps FP32 between its input projection and its output; the stock path stores the
# convolution and the core's output in BF16 (subject, table 2.3). An unfused kernel may also take the decay
# gate from BF16 memory.
_SPECIALIZED = {"kda.conv_out": None, "kda.gate_raw": BF16, "kda.core_out": None, "kda.out": BF16}
_STOCK = {**_SPECIALIZED, "kda.conv_out": BF16, "kda.core_out": BF16}
_OPTIONAL = frozenset({"kda.conv_out", "kda.core_out"})

STOCK = Profile("stock", _STOCK, _OPTIONAL)
SPECIALIZED = Profile("specialized", _SPECIALIZED, _OPTIONAL, functions="triton", functions_on_cuda="triton")
# A recurrence in a library kernel between unfused stock operations: BF16 at the same sites, Triton's
# functions.
LIBRARY = Profile("library", _STOCK, _OPTIONAL, functions="triton", functions_on_cuda="triton")


def initial_slots(a: KdaArguments) -> Tensor:
    """Slot that holds each request's state before the step: slots[b, accepted - 1]. int64 [request]"""
    column = (a.accepted.long() - 1).clamp(min=0)
    return a.slots.long().gather(1, column[:, None])[:, 0]


def live_requests(a: KdaArguments) -> Tensor:
    """Requests that are not padding: their initial slot is above 0. bool [request]"""
    return initial_slots(a) > 0


def live_writes(a: KdaArguments) -> Tensor:
    """(request, token) pairs whose state is stored. bool [request, token]"""
    return (a.slots > 0) & live_requests(a)[:, None]


def reference(ar: Arithmetic, a: KdaArguments) -> dict[str, Value]:
    """Output rows, the state after each token, and the convolution history."""
    requests, q = a.slots.shape
    window = _window(a)
    tokens = inputs(ar, a, window)
    core, states = recurrence(ar, ar.load(a.state[initial_slots(a).clamp(min=0)]), tokens)
    out = _gated_norm(ar, a, ar.round(core, "kda.core_out"), _heads(ar, a, "gate"))
    alive = live_requests(a)
    out = ar.where(alive[:, None, None, None], out, 0.0)
    return {
        "out": ar.store(out.reshape(requests, q, a.heads, a.head_dim), "kda.out"),
        "state": ar.where(live_writes(a)[:, :, None, None, None], states, 0.0),
        "conv_state": _history(ar, a, window),
    }


@dataclass(frozen=True)
class Inputs:
    """What the recurrence is given, whatever its state: ``query``, ``key``, ``v`` and ``decay`` [request,
    token, head, dim], ``beta`` [request, token, head]."""

    query: Value
    key: Value
    v: Value
    decay: Value
    beta: Value


def inputs(ar: Arithmetic, a: KdaArguments, window: Tensor | None = None) -> Inputs:
    """Convolution, norms and gates of every token."""
    z = _convolution(ar, a, _window(a) if window is None else window)
    rows = a.projected.reshape(*a.slots.shape, -1)
    return Inputs(
        query=_normalised(ar, z[:, :, 0], a.eps_l2, a.head_dim**-0.5),
        key=_normalised(ar, z[:, :, 1], a.eps_l2, None),
        v=z[:, :, 2],
        decay=_decay(ar, a, ar.load(rows[..., a.columns()["f_a"]])),
        beta=ar.sigmoid(_heads(ar, a, "beta"))[..., 0],
    )


def _heads(ar: Arithmetic, a: KdaArguments, name: str) -> Value:
    rows = a.projected[:, a.columns()[name]]
    return ar.load(rows.reshape(*a.slots.shape, a.heads, -1))


def _window(a: KdaArguments) -> Tensor:
    """The three taps before token 0, then the new inputs. BF16 [request, part, channel, 3 + q]"""
    requests, q = a.slots.shape
    slot = a.slots[:, 0].long().clamp(min=0)
    cache = a.conv_state[slot]
    first = (a.accepted.long() - 1).clamp(min=0)
    index = first[:, None, None] + torch.arange(3, device=cache.device)
    taps = cache.gather(2, index.expand(-1, cache.shape[1], -1))
    x = a.projected[:, : 3 * a.width].reshape(requests, q, 3 * a.width).transpose(1, 2)
    return torch.cat([taps, x], 2).reshape(requests, 3, a.width, 3 + q)


def _convolution(ar: Arithmetic, a: KdaArguments, window: Tensor) -> Value:
    """SiLU of a width-4 convolution in FP32. [request, token, part, head, dim]"""
    requests, q = a.slots.shape
    weight = ar.load(a.conv_weight)  # [tap, part, channel]
    taps = ar.load(torch.stack([window[..., t : t + 4].permute(0, 3, 1, 2) for t in range(q)], 1))
    u = ar.dot(taps, weight, 2)  # sum over the tap axis of [request, token, tap, part, channel]
    z = ar.round(ar.silu(u), "kda.conv_out")
    return z.reshape(requests, q, 3, a.heads, a.head_dim)


def _normalised(ar: Arithmetic, x: Value, eps: float, scale: float | None) -> Value:
    """x * (rsqrt(sum x**2 + eps) * scale): the two factors are multiplied first."""
    factor = ar.rsqrt(ar.sum_of_squares(x, -1, keepdim=True) + eps)
    return x * (factor if scale is None else factor * scale)


def _decay(ar: Arithmetic, a: KdaArguments, f_a: Value) -> Value:
    """exp(lower_bound * sigmoid(exp(A_log) * (f_a F_b^T + dt_bias))). [request, token, head, k]"""
    raw = ar.round(ar.matmul(f_a, a.f_b), "kda.gate_raw")
    raw = raw.reshape(*f_a.shape[:2], a.heads, a.head_dim)
    speed = ar.exp(ar.load(a.a_log))[:, None]
    bias = ar.load(a.dt_bias.reshape(a.heads, a.head_dim))
    return ar.exp(ar.sigmoid(speed * (raw + bias)) * a.lower_bound)


def recurrence(ar: Arithmetic, state: Value, tokens: Inputs) -> tuple[Value, Value]:
    """Gated delta rule from ``state`` [request, head, v, k], token by token: core output [request, token,
    head, v] and states [request, token, head, v, k]."""
    outputs, states = [], []
    for t in range(tokens.beta.shape[1]):
        k_t = tokens.key[:, t].unsqueeze(-2)
        state = state * tokens.decay[:, t].unsqueeze(-2)
        correction = (tokens.v[:, t] - ar.dot(state, k_t, -1)) * tokens.beta[:, t].unsqueeze(-1)
        state = state + correction.unsqueeze(-1) * k_t
        outputs.append(ar.dot(state, tokens.query[:, t].unsqueeze(-2), -1))
        states.append(state)
    return ar.stack(outputs, 1), ar.stack(states, 1)


def _gated_norm(ar: Arithmetic, a: KdaArguments, core: Value, gate: Value) -> Value:
    """RMSNorm over the head dimension, times its weight, times the sigmoid of the output gate."""
    mean_square = ar.sum_of_squares(core, -1, keepdim=True) * (1.0 / a.head_dim)
    return core * ar.rsqrt(mean_square + a.eps) * ar.load(a.norm_weight) * ar.sigmoid(gate)


def _history(ar: Arithmetic, a: KdaArguments, window: Tensor) -> Value:
    """The window without its first tap goes back to slots[b, 0]: [tap1, tap2, x_0, ..., x_{q-1}]."""
    requests = window.shape[0]
    kept = window[..., 1:].reshape(requests, 3 * a.width, -1)
    return ar.where(live_requests(a)[:, None, None], ar.load(kept), 0.0)


# -- what is judged --------------------------------------------------------------------------------


def _view_out(a: KdaArguments) -> Tensor:
    """Rows by request, token and head. Padding requests of a verify step are unspecified in stock: live rows
    only."""
    requests, q = a.slots.shape
    out = a.out.reshape(requests, q, a.heads, a.head_dim)
    if q == 1:
        return out
    return torch.where(live_requests(a)[:, None, None, None], out, torch.zeros_like(out))


def _view_state(a: KdaArguments) -> Tensor:
    states = a.state[a.slots.long().clamp(min=0)]
    return torch.where(live_writes(a)[:, :, None, None, None], states, torch.zeros_like(states))


def _view_history(a: KdaArguments) -> Tensor:
    cache = a.conv_state[a.slots[:, 0].long().clamp(min=0)][..., : 2 + a.slots.shape[1]]
    return torch.where(live_requests(a)[:, None, None], cache, torch.zeros_like(cache))


def touched(a: KdaArguments) -> dict[str, Tensor]:
    """Slots that live requests may write, and the first q + 2 history columns of their first slot."""
    state = torch.zeros(a.state.shape[0], 1, 1, 1, dtype=torch.bool, device=a.state.device)
    state[a.slots.long()[live_writes(a)]] = True
    conv = torch.zeros(
        a.conv_state.shape[0], 1, a.conv_state.shape[2], dtype=torch.bool, device=a.state.device
    )
    conv[a.slots[:, 0].long()[live_requests(a)], :, : 2 + a.slots.shape[1]] = True
    return {"state": state, "conv_state": conv}


# A slot stride of 2**30 elements puts slot 2 beyond 2**31 elements: 32-bit offsets wrap.
_WIDE_STRIDE = 2**30


def strides(a: KdaArguments) -> dict[str, tuple[int, ...]]:
    """Caches as the engine lays them out: history token-major, slots with holes between them, and rows of
    ``projected`` with a pitch. A ``wide`` case spreads the slots."""
    _, channels, columns = a.conv_state.shape
    page = a.heads * a.head_dim * a.head_dim
    spread = _WIDE_STRIDE if a.wide_slots else page + 256
    return {
        "projected": (a.projected.shape[1] + 27, 1),
        "f_b": (a.rank + 16, 1),
        "out": (a.width + 64, 1),
        "slots": (a.slots.shape[1] + (3 if a.slots.shape[1] > 1 else 0), 1),
        "conv_state": (columns * channels + 192, 1, channels),
        "state": (spread, a.head_dim * a.head_dim, a.head_dim, 1),
    }


def _case(op: str, regime: str, seed: int, **shape: int) -> Case:
    base = {"heads": 2, "dim": 64, "requests": 2}
    return Case.of(op, regime, seed, **(base | shape))


def _decode_cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime at a small head, odd head dimensions, and the heads of one rank at TP8 and TP16.
    full: TP8 and TP16 heads at every prepared batch, every regime, and slots beyond 2**31 elements."""
    found = [
        _case("kda_decode", r.name, i, requests=3) for i, r in enumerate(REGIMES) if r.name != "wide_offsets"
    ]
    found += [_case("kda_decode", "unit_state", 30 + dim, dim=dim) for dim in (60, 100, 112)]
    found += [
        _case("kda_decode", "long_memory", 20, heads=3, dim=128),
        _case("kda_decode", "unit_state", 21, heads=1, requests=9, spare=2),
    ]
    found += [
        _case("kda_decode", "unit_state", 40 + n, heads=h, dim=128, requests=n) for h, n in ((6, 2), (12, 1))
    ]
    found.append(_case("kda_decode", "wide_offsets", 50, heads=1))
    if tier == "full":
        for heads in (12, 6):
            for requests in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
                found.append(_case("kda_decode", "unit_state", 100, heads=heads, dim=128, requests=requests))
            for i, regime in enumerate(REGIMES):
                size = {"requests": 3} if regime.name == "wide_offsets" else {"requests": 8}
                found.append(_case("kda_decode", regime.name, 200 + i, heads=heads, dim=128, **size))
    return tuple(found)


def _verify_cases(tier: Tier) -> tuple[Case, ...]:
    """quick: q from 2 to 8, every regime once, the heads of one rank at TP16. full: TP8 and TP16 heads, every
    (requests, q) up to 64 rows of note."""
    found = [_case("kda_verify", "unit_state", q, tokens=q) for q in (2, 3, 5, 8)]
    found += [
        _case("kda_verify", r.name, 20 + i, requests=3, tokens=3)
        for i, r in enumerate(REGIMES)
        if r.name != "wide_offsets"
    ]
    found += [
        _case("kda_verify", "unit_state", 40, dim=60, tokens=2),
        _case("kda_verify", "long_memory", 41, heads=1, dim=128, tokens=4),
    ]
    found.append(_case("kda_verify", "unit_state", 42, heads=6, dim=128, requests=1, tokens=4))
    found.append(_case("kda_verify", "wide_offsets", 50, heads=1, requests=1, tokens=2))
    if tier == "full":
        for heads in (12, 6):
            for requests, q in (
                (1, 2),
                (1, 8),
                (2, 4),
                (4, 2),
                (4, 4),
                (5, 3),
                (8, 8),
                (13, 4),
                (16, 4),
                (32, 2),
            ):
                found.append(
                    _case("kda_verify", "unit_state", 100, heads=heads, dim=128, requests=requests, tokens=q)
                )
            for i, regime in enumerate(REGIMES):
                wide = regime.name == "wide_offsets"  # each slot is a stretch of 4 GiB of address space
                size = {"requests": 1, "tokens": 3} if wide else {"requests": 4, "tokens": 4}
                found.append(_case("kda_verify", regime.name, 200 + i, heads=heads, dim=128, **size))
    return tuple(found)


def _contract(name: str, summary: str, cases: Any) -> Contract:
    return Contract(
        name=name,
        summary=summary,
        arguments=KdaArguments,
        outputs=(
            Output(
                "out",
                ("request", "token", "head", "v"),
                "bf16",
                _view_out,
                slices=(("head",), ("request", "token")),
                shared=("v",),
            ),
            Output(
                "state",
                ("request", "token", "head", "v", "k"),
                "fp32",
                _view_state,
                slices=(("head",), ("request", "token"), ("head", "v"), ("head", "k")),
                shared=("v", "k", "token"),
            ),
            Output("conv_state", ("request", "channel", "column"), "bf16", _view_history, exact=True),
        ),
        regimes=REGIMES,
        build=build,
        reference=reference,
        cases=cases,
        touched=touched,
        profiles={"stock": STOCK, "specialized": SPECIALIZED, "library": LIBRARY},
        strides=strides,
    )


DECODE = _contract("kda_decode", "KDA core, one token a request", _decode_cases)
VERIFY = _contract("kda_verify", "KDA core, q tokens a request, with rollback by slot", _verify_cases)
