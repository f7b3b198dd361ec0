"""KDA core through FLA's kernels: ``causal_conv1d_update``, ``fused_recurrent_kda``, ``rms_norm_gated``.

FLA's: the convolution of one token with its cache and SiLU (BF16 out), what ``fla_core.kda`` says of the
recurrence, the gated norm (BF16 in and out). Ours, in torch: the product with F_b, and gathering and
scattering of slots, since FLA keeps the caches of the requests of a batch dense, in batch order. A verify
step is one call of each kernel a token.

FLA's convolution cache has as many columns as the filter has taps, the oldest of which it never reads: it
is NaN here. FLA picks the tile sizes of two of these kernels by timing them; to be the same in every run,
and in the interpreter, the largest of its tiles is taken.

What this cannot show: FLA's chunked kernels, the layer's own order of calls, and what its timing would pick.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from kernels_under_test.fla_core.kda import EPS_L2, fenced, recurrent
from kernels_under_test.gemm import fp32_partial_sums
from validation.errors import Unavailable, UserError
from validation.providers import implements

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "Triton is not supported on current platform": it is, interpreted
    try:
        from fla.modules.causal_conv1d import ops as convolution
        from fla.modules.norm import fused_norm_gate as gated_norm
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fla."):
            raise Unavailable(
                "needs fla-core 0.6.0 or newer; older ones keep these kernels elsewhere"
            ) from None
        raise

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.arguments import KdaArguments


def settle(kernel: Any) -> None:
    """Leave a tuned kernel the configuration with the largest tile and, of those, the fewest warps."""
    while not hasattr(kernel, "configs"):  # other decorators may lie around the tuner
        kernel = kernel.fn
    kernel.configs = [max(kernel.configs, key=lambda c: (sum(c.kwargs.values()), -c.num_warps))]


settle(convolution.causal_conv1d_update_kernel)
settle(gated_norm.layer_norm_gated_fwd_kernel)


def _step(a: KdaArguments) -> None:
    if a.eps_l2 != EPS_L2:
        raise UserError(f"fla normalises q and k with eps {EPS_L2}; the case wants {a.eps_l2}")
    requests, tokens = a.slots.shape
    slots, first = a.slots.long(), a.accepted.long() - 1
    initial = slots.gather(1, first[:, None])[:, 0]
    live = (initial > 0).nonzero()[:, 0]
    a.out.zero_()
    if len(live) == 0:
        return
    slots, state = slots[live], a.state[initial[live]]
    rows = a.projected.view(requests, tokens, -1)[live]
    part = {name: rows[..., columns] for name, columns in a.columns().items()}
    with fp32_partial_sums():
        g = (part["f_a"] @ a.f_b.T).unflatten(-1, (a.heads, a.head_dim))
    q, k, v = _convolved(a, rows[..., : 3 * a.width], slots[:, 0], first[live])
    out = a.out.view(requests, tokens, a.heads, a.head_dim)
    for t in range(tokens):
        core, state = recurrent(a, [x[:, t : t + 1] for x in (q, k, v, g, part["beta"])], state)
        gate = part["gate"][:, t].unflatten(-1, (a.heads, a.head_dim))
        out[live, t] = gated_norm.rms_norm_gated(
            fenced(core[:, 0]), fenced(gate), fenced(a.norm_weight), None, activation="sigmoid", eps=a.eps
        )
        stored = slots[:, t] > 0
        a.state[slots[stored, t]] = state[stored]


def _convolved(a: KdaArguments, x: Tensor, slot: Tensor, first: Tensor) -> tuple[Tensor, ...]:
    """q, k, v BF16 [request, token, head, dim] after the convolution and SiLU; moves the history on.

    ``x`` [request, token, channel]. FLA's cache [request, channel, 4]: the four inputs before the next one.
    """
    column = first[:, None, None] + torch.arange(3, device=x.device)
    taps = a.conv_state[slot].gather(2, column.expand(-1, 3 * a.width, -1))
    cache = fenced(torch.cat([torch.full_like(taps[..., :1], float("nan")), taps], 2))
    weight = fenced(a.conv_weight.reshape(4, -1).T)
    tokens = []
    for t in range(x.shape[1]):
        y, cache = convolution.causal_conv1d_update(fenced(x[:, t]), cache, weight=weight, activation="silu")
        tokens.append(y)
        if t == 0:
            a.conv_state[slot, :, :2] = cache[..., 1:3]
        a.conv_state[slot, :, t + 2] = cache[..., 3]
    return torch.stack(tokens, 1).unflatten(-1, (3, a.heads, a.head_dim)).unbind(2)


@implements("kda_decode", provider="fla_modules", profile="library", requires=("triton", "fla"))
def kda_decode(a: KdaArguments) -> None:
    """One token a request; null slots give zero rows."""
    _step(a)


@implements("kda_verify", provider="fla_modules", profile="library", requires=("triton", "fla"))
def kda_verify(a: KdaArguments) -> None:
    """q tokens a request from the state after the last accepted one; null slots give zero rows."""
    _step(a)
