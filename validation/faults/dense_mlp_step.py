"""The dense MLP in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault, profile)`` with ``fault=""`` is an honest kernel in the given summation order: with
``stock`` SiTU is written with tanh and sigmoid, with ``specialized`` with (1 + tanh(g / 2)) / 2 and tanh by
exponentials.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.dense import DenseMlpArguments, case
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

_PLAIN = case("typical", 7, 8, 3, width=512, hidden=192)
_ONE_RANK = case("typical", 7, 1, 3, width=512, hidden=192)
_WIDE = case("wide_offsets", 7, 3, 2)


def _in(regime: str, ranks: int = 8, **options: int) -> Case:
    return case(regime, 7, ranks, 3, **options)


# Fault -> (what is wrong, kind, profile, the case in which it must be seen).
FAULTS: dict[str, tuple[str, str, str, Case]] = {
    "halves_swapped": ("SiTU of the up half, bounded gate", "F01", "stock", _PLAIN),
    "interleaved": ("gate and up rows taken alternately", "F01", "stock", _PLAIN),
    "silu": ("SiLU of the gate instead of SiTU", "F02", "stock", _PLAIN),
    "sigmoid_missing": ("no sigmoid", "F02", "stock", _PLAIN),
    "sigmoid_of_bounded": ("sigmoid of the bounded gate", "F02", "stock", _PLAIN),
    "beta_25": ("gate bounded by 25 instead of 4", "F02", "stock", _PLAIN),
    "up_not_bounded": ("no bound on up", "F02", "stock", _in("saturated")),
    "up_clamped": ("up clamped to +-25 instead of bent", "F02", "stock", _in("saturated")),
    "tanh_half_slope": ("sigmoid(g) as (1 + tanh(g)) / 2", "F02", "specialized", _PLAIN),
    "tanh_fp16": ("the bound of the gate rounded to FP16", "F12", "stock", _ONE_RANK),
    "exp_overflows": ("tanh as (exp(2 x) - 1) / (exp(2 x) + 1)", "F03", "stock", _in("saturated", width=512)),
    "identity_for_sigmoid": ("the identity form, not declared", "F03", "stock", _in("cancelling_gates")),
    "gate_up_fp32": ("gate and up are not rounded to BF16", "F12", "stock", _PLAIN),
    "hidden_fp32": ("the hidden value is not rounded to BF16", "F12", "stock", _ONE_RANK),
    "gate_half_rounded": ("the gate's half is rounded to BF16 before the product", "F12", "stock", _ONE_RANK),
    "hidden_truncated": ("the hidden value is stored by truncation", "F12", "stock", _PLAIN),
    "hidden_e4m3": ("the hidden value is stored in FP8", "F12", "stock", _PLAIN),
    "partials_fp32": ("partials are not rounded to BF16 before the sum", "F12", "stock", _PLAIN),
    "sum_bf16": ("the ranks are added in BF16", "F06", "stock", _in("cancelling")),
    "bf16_accumulate": ("gate and up accumulated in BF16 every 64 of K", "F06", "stock", _in("outliers")),
    "down_bf16_accumulate": ("down accumulated in BF16 every 64 of K", "F05", "stock", _PLAIN),
    "split_lost": ("one of four K splits of gate and up is not added", "F05", "stock", _PLAIN),
    "split_of_other_row": ("one split's sums come from the row before", "F05", "specialized", _PLAIN),
    "k_fragment_lost": ("the last 8 of the hidden K are not added", "F04", "stock", _PLAIN),
    "padding_not_zero": ("a padded hidden column holds the column before it", "F04", "specialized", _PLAIN),
    "rank_lost": ("the last rank's partial is not added", "F08", "stock", _PLAIN),
    "rank_twice": ("rank 1's partial is added twice", "F05", "stock", _PLAIN),
    "not_reduced": ("the output is rank 0's partial", "F05", "stock", _PLAIN),
    "stale_hidden": ("8 hidden columns of one rank are the next rank's", "F08", "specialized", _PLAIN),
    "rows_swapped": ("the output's rows are rotated", "F01", "stock", _in("one_hot")),
    "zero_row_stale": ("a row of zeros repeats the row before", "F08", "stock", _in("zero_row")),
    "nan_spreads": ("one row's NaN reaches the next row", "F51", "stock", _in("nan_row")),
    "nan_lost": ("NaN becomes 0 before the second product", "F51", "stock", _in("nan_row")),
    "offset_wraps": ("the weight of the rank beyond 2**31 elements is rank 0's", "F50", "specialized", _WIDE),
}  # fmt: skip


def faults() -> Iterator[Fault]:
    """Every fault in its one case."""
    for name, (what, kind, profile, where) in FAULTS.items():
        function = partial(run, order=LIBRARY, fault=name, profile=profile)
        yield Fault(name, what, where, profile, function, kind)


def run(a: DenseMlpArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """out of all ranks, in place, wrong in the way ``fault`` says."""
    hidden = [_hidden(a.x, _weight(a.gate_up, r, fault), order, fault, profile) for r in range(len(a.down))]
    if fault == "stale_hidden":
        hidden[2][:, 8:16] = hidden[3][:, 8:16]
    parts = []
    for r, value in enumerate(hidden):
        part = _down(value, _weight(a.down, r, fault).float(), order, fault)
        parts.append(part if fault == "partials_fp32" else _bf16(part))
    out = _summed(parts, order, fault)
    if fault == "rows_swapped":
        out = out.roll(1, 0)
    if fault == "zero_row_stale":
        out[len(out) // 2] = out[len(out) // 2 - 1]
    if fault == "nan_spreads":
        out = out + 0 * out.roll(1, 0)
    a.out.copy_(out)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _weight(weights: Tensor, rank: int, fault: str) -> Tensor:
    return weights[0 if fault == "offset_wraps" and rank == 2 else rank]


def _chunked(x: Tensor, weight: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0], weight.shape[0], device=x.device)
    for part_x, part_w in zip(x.split(64, -1), weight.split(64, -1), strict=True):
        total = _bf16(total + part_x @ part_w.T)
    return total


def _hidden(x: Tensor, weight: Tensor, order: Order, fault: str, profile: str) -> Tensor:
    """BF16 hidden values [row, F] of one rank as FP32."""
    x, weight = x.float(), weight.float()
    if fault == "bf16_accumulate":
        both = _chunked(x, weight)
    elif fault in ("split_lost", "split_of_other_row"):
        splits = [p @ w.T for p, w in zip(x.tensor_split(4, -1), weight.tensor_split(4, -1), strict=True)]
        splits[2] = splits[2].roll(1, 0) if fault == "split_of_other_row" else 0 * splits[2]
        both = torch.stack(splits).sum(0)
    else:
        both = order.matmul(x, weight)
    if fault != "gate_up_fp32":
        both = _bf16(both)
    gate, up = both.chunk(2, -1)
    if fault == "halves_swapped":
        gate, up = up, gate
    if fault == "interleaved":
        gate, up = both[:, ::2], both[:, 1::2]
    value = _situ(gate, up, fault, profile)
    if fault == "nan_lost":
        value = value.nan_to_num(0.0)
    if fault == "hidden_fp32":
        return value
    if fault == "hidden_truncated":
        return (value.view(torch.int32) & ~0xFFFF).view(torch.float32)
    if fault == "hidden_e4m3":
        return value.to(torch.float8_e4m3fn).float()
    return _bf16(value)


def _tanh(x: Tensor, fault: str, profile: str) -> Tensor:
    if fault == "exp_overflows":
        e = torch.exp(2 * x)
        return (e - 1) / (e + 1)
    if profile == "stock":
        return torch.tanh(x)
    return torch.copysign(1 - 2 / (torch.exp(2 * x.abs()) + 1), x)


def _situ(gate: Tensor, up: Tensor, fault: str, profile: str) -> Tensor:
    beta = 25.0 if fault == "beta_25" else 4.0
    bounded = beta * _tanh(gate * (1 / beta), fault, profile)
    if fault == "tanh_fp16":
        bounded = bounded.half().float()
    if fault == "silu":
        bounded = gate
    if profile == "specialized" or fault == "identity_for_sigmoid":
        inner = gate if fault == "tanh_half_slope" else 0.5 * gate
        sigmoid = 0.5 * (1 + _tanh(inner, fault, profile))
    else:
        sigmoid = torch.sigmoid(bounded if fault == "sigmoid_of_bounded" else gate)
    left = bounded if fault == "sigmoid_missing" else bounded * sigmoid
    if fault == "gate_half_rounded":
        left = _bf16(left)
    right = 25 * _tanh(up / 25, fault, profile)
    if fault == "up_not_bounded":
        right = up
    if fault == "up_clamped":
        right = up.clamp(-25, 25)
    return left * right


def _down(hidden: Tensor, weight: Tensor, order: Order, fault: str) -> Tensor:
    if fault == "down_bf16_accumulate":
        return _chunked(hidden, weight)
    total = order.matmul(hidden, weight)
    if fault == "k_fragment_lost":
        total = total - hidden[:, -8:] @ weight[:, -8:].T
    if fault == "padding_not_zero":
        total = total + hidden[:, -1:] @ weight[:, -1:].T
    return total


def _summed(parts: list[Tensor], order: Order, fault: str) -> Tensor:
    if fault == "rank_lost":
        parts = parts[:-1]
    if fault == "rank_twice":
        parts = [*parts, parts[1]]
    if fault == "not_reduced":
        parts = parts[:1]
    if fault != "sum_bf16":
        return order.sum(torch.stack(parts), 0)
    total = parts[0]
    for part in parts[1:]:
        total = _bf16(total + part)
    return total
