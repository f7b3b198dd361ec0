"""Every planted fault: on which operation, what is wrong, in which case it must be seen, and the faulty
kernel.

The kernels are the plain FP32 implementations beside this file. A fault is caught when the judge has at least
one finding in its one case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from validation.contracts.contract import Case
from validation.faults import attn_res_step, kda_step, projection_step
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order
from validation.providers import Implementation

# One case a position of AttnRes: the subject's width, three rows, five blocks.
_ATTN_RES_POSITIONS = {
    "plain": ("typical", {}),
    "final": ("typical", {"finish": 1}),
    "replace": ("typical", {"merge": 1}),
    "write": ("typical", {"write": 5}),
    "aux": ("typical", {"aux": 1}),
    "peaked": ("peaked", {}),
}


def _attn_res() -> Iterator[Fault]:
    for name, (what, position) in attn_res_step.FAULTS.items():
        regime, options = _ATTN_RES_POSITIONS[position]
        shape = {
            "rows": 3,
            "width": 7168,
            "blocks": 5,
            "write": -1,
            "merge": 0,
            "finish": 0,
            "aux": 0,
        } | options
        case = Case.of("attn_res", regime, 7, **shape)
        quadratic = name in ("eps_not_compensated", "no_cross_term")
        function = partial(attn_res_step.run, order=LIBRARY, fault=name)
        yield Fault(name, what, case, "specialized" if quadratic else "stock", function)


def _projection() -> Iterator[Fault]:
    case = Case.of("projection", "typical", 7, rows=4, columns=256, k=7168)
    for name, what in projection_step.FAULTS.items():
        yield Fault(name, what, case, "stock", partial(projection_step.run, order=LIBRARY, fault=name))


def _kda_decode() -> Iterator[Fault]:
    for profile in ("specialized", "stock"):
        for regime in ("small_state", "unit_state"):
            case = Case.of("kda_decode", regime, 7, heads=12, dim=128, requests=4)
            for name, what in kda_step.DECODE_FAULTS.items():
                function = partial(kda_step.run, order=LIBRARY, fault=name, stock=profile == "stock")
                yield Fault(name, what, case, profile, function)


# Faults of the step that a verify step can have too, once a token or once a request.
_ALSO_IN_VERIFY = (
    "state_transposed", "decay_wrong_axis", "exp2_for_exp", "lower_bound_-4.9", "norm_eps_1e-3",
    "l2_eps_1e-3", "gate_bf16", "beta_bf16", "drop_last_k_tile", "one_head_stale", "swap_two_slots",
    "conv_drop_oldest_tap",
)  # fmt: skip


def _kda_verify() -> Iterator[Fault]:
    shared = {name: kda_step.DECODE_FAULTS[name] for name in _ALSO_IN_VERIFY}
    for name, what in (kda_step.VERIFY_FAULTS | shared).items():
        regime = "null_slots" if name == "null_slot_written" else "unit_state"
        case = Case.of("kda_verify", regime, 7, heads=3, dim=128, requests=4, tokens=4)
        yield Fault(name, what, case, "specialized", partial(kda_step.run, order=LIBRARY, fault=name))


# Steps that say themselves what their faults (``faults()``) and honest kernels (``run(a, order,
# profile=...)``) are, by operation.
_STEPS = (
    "embedding", "mla_query", "mla_attention", "mla_value", "mla_dcp", "oproj", "dense_mlp", "moe_front",
    "route", "mx_quantize", "experts", "shared_expert", "moe_tail", "small_batch", "logits", "reject_sample",
    "prefetch",
)  # fmt: skip


def _step(op: str) -> Any:
    return import_module(f"validation.faults.{op}_step")


def _of_step(op: str) -> Iterator[Fault]:
    return _step(op).faults()


FAULTS: dict[str, Callable[[], Iterator[Fault]]] = {
    "attn_res": _attn_res,
    "projection": _projection,
    "kda_decode": _kda_decode,
    "kda_verify": _kda_verify,
    **{op: partial(_of_step, op) for op in _STEPS},
}


def honest(op: str, profile: str, order: Order) -> Implementation:
    """An honest kernel of ``op`` with the given summation order, rounding as ``profile`` says."""
    functions: dict[str, Callable[..., None]] = {
        "attn_res": partial(attn_res_step.run, quadratic=profile == "specialized"),
        "projection": projection_step.run,
        "kda_decode": partial(kda_step.run, stock=profile == "stock"),
        "kda_verify": partial(kda_step.run, stock=profile == "stock"),
    }
    function = functions.get(op) or partial(_step(op).run, profile=profile)
    return Implementation(op, f"honest, {order.name}", profile, partial(function, order=order))
