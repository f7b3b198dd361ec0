"""Kimi Delta Attention core, q tokens a request, in one kernel: the launchers and what they may be given.

One program holds the whole K x V state of one (request, head) in registers: 128 x 128 FP32 is 64 registers
a thread on 8 warps. Splitting V over programs, as the subject's clusters do, would need an exchange
between programs before the gated norm, which Triton has no portable way to do; a second kernel for the
norm would save little, since the state is read and written once either way.

What this cannot show: cluster exchange, and ordering against the kernels before and after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels_under_test.triton_portable.kda_kernel import kda_kernel
from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis, power_of_two
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.arguments import KdaArguments

MAX_TOKENS = 8


def kda_decode(a: KdaArguments) -> None:
    """One token a request (the subject's 3.5). slot <= 0: a zero row, nothing else read or written."""
    if a.tokens != 1:
        raise UserError(f"kda_decode computes one token a request, not {a.tokens}; that is kda_verify")
    _launch(a, verify=False)


def kda_verify(a: KdaArguments) -> None:
    """2 to 8 tokens a request (the subject's 3.6), from the state after the last accepted token on.

    The state after token t goes to slots[request, t] if that is > 0; the convolution history stays in
    slots[request, 0]. slots[request, accepted - 1] <= 0: q zero rows, nothing written.
    """
    if not 2 <= a.tokens <= MAX_TOKENS:
        raise UserError(f"kda_verify computes 2 to {MAX_TOKENS} tokens a request, not {a.tokens}")
    _launch(a, verify=True)


def _launch(a: KdaArguments, verify: bool) -> None:
    need_dense_last_axis(projected=a.projected, f_b=a.f_b, out=a.out, conv_weight=a.conv_weight)
    need_dense_last_axis(a_log=a.a_log, dt_bias=a.dt_bias, norm_weight=a.norm_weight)
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
        VERIFY=verify,
        HEAD_DIM=a.head_dim,
        RANK=a.rank,
        STRIDE_V=a.state.stride(2),
        STRIDE_K=a.state.stride(3),
        BLOCK=block,
        RANK_STEP=power_of_two(a.rank) if interpreted(a.state) else 32,
        num_warps=8 if block >= 128 else 4,
    )


TABLE = (Route(rows=1 << 30, kernels=("kda_kernel",)),)
OPERATIONS = {
    name: {"function": function, "kernels": lambda case: ("kda_kernel",), "table": TABLE}
    for name, function in (("kda_decode", kda_decode), ("kda_verify", kda_verify))
}
