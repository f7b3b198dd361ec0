"""Where the values of a reference go: from named outputs into the fields that a provider would have written.

Catches: nothing by itself. Cannot represent: a signed zero or a NaN payload, which float64 values of the
reference do not carry; bitwise checks treat any two NaN as equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validation.contracts.kda import live_requests, live_writes

Means = dict[str, Tensor]


def store(op: str, a: Any, means: Means) -> None:
    """Write the reference's outputs of one operation into its arguments, in their storage dtypes."""
    _STORES[op](a, means)


def _plain(*names: str) -> Callable[[Any, Means], None]:
    def write(a: Any, means: Means) -> None:
        for name in names:
            field = getattr(a, name)
            field.copy_(means[name].reshape(field.shape))

    return write


def _attn_res(a: Any, means: Means) -> None:
    a.prefix.copy_(means["prefix"])
    if "block" in means:
        a.blocks[:, a.write_block] = means["block"].to(a.blocks.dtype)
    if "aux" in means:
        a.aux.copy_(means["aux"])
    a.out.copy_(means["out"])


def _kda(a: Any, means: Means) -> None:
    q = a.slots.shape[1]
    a.out.copy_(means["out"].reshape(a.out.shape))
    live, writes = live_requests(a), live_writes(a)
    a.conv_state[a.slots[live, 0].long(), :, : 2 + q] = means["conv_state"][live].to(a.conv_state.dtype)
    a.state[a.slots[writes].long()] = means["state"][writes].to(a.state.dtype)


def _mla_query(a: Any, means: Means) -> None:
    a.query.copy_(e4m3(means["query"]))
    live = a.slot >= 0
    rows = torch.cat([e4m3(means["latent"]), e4m3(means["k_pe"])], 1)
    page = a.cache.shape[1]
    a.cache[a.slot[live] // page, a.slot[live] % page] = rows[live]


def _oproj(a: Any, means: Means) -> None:
    a.prefix.copy_(means["prefix"])
    a.out.copy_(means["out"])
    if a.write_x_moe:
        a.x_moe.copy_(means["out"] + 0.0)


def _quantize(a: Any, means: Means) -> None:
    a.codes.copy_(e4m3(means["codes"]))
    a.scales.copy_(means["scales"])


def _experts(a: Any, means: Means) -> None:
    a.out.copy_(means["out"])
    if a.rows is not None:
        a.rows.copy_(means["rows"])


def _logits(a: Any, means: Means) -> None:
    if "hidden" in means:
        a.hidden.copy_(means["hidden"])
    a.out.copy_(means["out"].expand(a.out.shape))


def e4m3(values: Tensor) -> Tensor:
    """E4M3 bytes of values on that grid."""
    return values.float().to(torch.float8_e4m3fn).view(torch.uint8)


_STORES: dict[str, Callable[[Any, Means], None]] = {
    "embedding": _plain("out"),
    "attn_res": _attn_res,
    "projection": _plain("out"),
    "kda_decode": _kda,
    "kda_verify": _kda,
    "mla_query": _mla_query,
    "mla_attention": _plain("out"),
    "mla_value": _plain("out"),
    "mla_dcp": _plain("out"),
    "oproj": _oproj,
    "dense_mlp": _plain("out"),
    "moe_front": _plain("logits", "latent"),
    "route": _plain("ids", "weights"),
    "mx_quantize": _quantize,
    "experts": _experts,
    "shared_expert": _plain("partial", "out"),
    "moe_tail": _plain("out"),
    "logits": _logits,
}
