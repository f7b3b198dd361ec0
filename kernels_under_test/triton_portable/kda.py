"""Kimi Delta Attention core: the launchers, what they may be given, and which kernel serves what.

Plain decode of one request spreads the value rows of a head over eight programs (``kda_split_kernel``), so
that it fills more of the device; with more requests one program a head is faster, since each must read F_b.
Verify keeps the whole K x V state of one (request, head) in the registers of one program (``kda_kernel``),
since its tokens run one after another through it.

What this cannot show: cluster exchange, and ordering against the kernels before and after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels_under_test.triton_portable.kda_kernel import kda_kernel
from kernels_under_test.triton_portable.kda_split_kernel import kda_split_kernel
from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    programmatic,
    workspace,
)
from validation.dispatch.table import Route, route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.arguments import KdaArguments

MAX_TOKENS = 8
_COUNTERS = 1 << 17  # requests * heads at most


def kda_decode(a: KdaArguments) -> None:
    """One token a request (the subject's 3.5). slot <= 0: a zero row, nothing else read or written."""
    if a.tokens != 1:
        raise UserError(f"kda_decode computes one token a request, not {a.tokens}; that is kda_verify")
    _launch_split(a)


def kda_verify(a: KdaArguments) -> None:
    """2 to 8 tokens a request (the subject's 3.6), from the state after the last accepted token on.

    The state after token t goes to slots[request, t] if that is > 0; the convolution history stays in
    slots[request, 0]. slots[request, accepted - 1] <= 0: q zero rows, nothing written.
    """
    if not 2 <= a.tokens <= MAX_TOKENS:
        raise UserError(f"kda_verify computes 2 to {MAX_TOKENS} tokens a request, not {a.tokens}")
    _launch(a)


def _check_dense(a: KdaArguments) -> None:
    need_dense_last_axis(projected=a.projected, f_b=a.f_b, out=a.out, conv_weight=a.conv_weight)
    need_dense_last_axis(a_log=a.a_log, dt_bias=a.dt_bias, norm_weight=a.norm_weight)


def _launch(a: KdaArguments) -> None:
    _check_dense(a)
    block = power_of_two(a.head_dim)
    kda_kernel[(a.slots.shape[0], a.heads)](
        a.projected,
        a.conv_weight,
        a.f_b,
        a.a_log,
        a.dt_bias,
        a.norm_weight,
        a.slots,
        a.accepted,
        a.conv_state,
        a.state,
        a.out,
        a.projected.stride(0),
        *a.conv_weight.stride()[:2],
        a.f_b.stride(0),
        *a.slots.stride(),
        a.accepted.stride(0),
        *a.conv_state.stride(),
        *a.state.stride()[:2],
        a.out.stride(0),
        a.heads,
        a.lower_bound,
        a.head_dim**-0.5,
        a.eps_l2,
        a.eps,
        TOKENS=a.tokens,
        VERIFY=True,
        HEAD_DIM=a.head_dim,
        RANK=a.rank,
        STRIDE_V=a.state.stride(2),
        STRIDE_K=a.state.stride(3),
        BLOCK=block,
        RANK_STEP=power_of_two(a.rank) if interpreted(a.state) else 32,
        num_warps=8 if block >= 128 else 4,
    )


def _launch_split(a: KdaArguments) -> None:
    _check_dense(a)
    requests = a.slots.shape[0]
    block = power_of_two(a.head_dim)
    splits = min(int(route(DECODE, requests).settings["splits"]), block // 16)
    scratch = torch.empty(requests * a.heads * block, dtype=torch.float32, device=a.state.device)
    kda_split_kernel[(splits, a.heads, requests)](
        a.projected,
        a.conv_weight,
        a.f_b,
        a.a_log,
        a.dt_bias,
        a.norm_weight,
        a.slots,
        a.conv_state,
        a.state,
        a.out,
        scratch,
        workspace("kda_split", _COUNTERS, a.state.device),
        a.projected.stride(0),
        *a.conv_weight.stride()[:2],
        a.f_b.stride(0),
        a.slots.stride(0),
        *a.conv_state.stride(),
        *a.state.stride()[:2],
        a.out.stride(0),
        a.heads,
        a.lower_bound,
        a.head_dim**-0.5,
        a.eps_l2,
        a.eps,
        HEAD_DIM=a.head_dim,
        RANK=a.rank,
        STRIDE_V=a.state.stride(2),
        STRIDE_K=a.state.stride(3),
        BLOCK=block,
        ROWS=block // splits,
        SPLITS=splits,
        RANK_STEP=power_of_two(a.rank) if interpreted(a.state) else 32,
        num_warps=4,
        **programmatic(a.out),
    )


# Largest number of requests -> programs a head.
DECODE = (
    Route(rows=1, kernels=("kda_split_kernel",), settings={"splits": 8}),
    Route(rows=_COUNTERS // 128, kernels=("kda_split_kernel",), settings={"splits": 1}),
)
VERIFY = (Route(rows=1 << 30, kernels=("kda_kernel",)),)
OPERATIONS = {
    "kda_decode": {"function": kda_decode, "kernels": lambda case: ("kda_split_kernel",), "table": DECODE},
    "kda_verify": {"function": kda_verify, "kernels": lambda case: ("kda_kernel",), "table": VERIFY},
}
