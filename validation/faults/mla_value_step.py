"""MLA value up-projection and gate in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel in the given summation order; both profiles
round at the same places. The code follows the formulas, not any kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.mla.value import MlaValueArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, kind, regime in which it is planted).
FAULTS = {
    "gate_missing": ("no output gate", "F12", "typical"),
    "gate_silu": ("gate times its sigmoid for the sigmoid", "F12", "typical"),
    "gate_tanh": ("tanh for the sigmoid", "F12", "typical"),
    "gate_before_projection": ("value not rounded before the gate", "F12", "typical"),
    "rounded_through_fp16": ("value rounded through FP16 before BF16", "F06", "outliers"),
    "gate_bf16": ("sigmoid rounded to BF16", "F06", "typical"),
    "value_bf16_twice": ("latent halves summed after a BF16 rounding of each", "F06", "typical"),
    "bf16_accumulate": ("accumulated in BF16, 64 latents at a time", "F06", "cancelling"),
    "latent_e4m3": ("latent rounded to E4M3", "F06", "typical"),
    "truncated": ("stored by truncation", "F06", "typical"),
    "exp2_for_exp": ("sigmoid in base 2", "F02", "gate_bounds"),
    "gate_clamped": ("gate clamped to -8 to 8", "F02", "gate_bounds"),
    "gate_flushed": ("sigmoids below 1e-6 taken as 0", "F02", "gate_bounds"),
    "latent_tail_lost": ("the last 16 latents are not added", "F04", "typical"),
    "latent_first_lost": ("the first latent is not added", "F04", "typical"),
    "split_twice": ("one of four latent ranges is added twice", "F05", "typical"),
    "rows_from_sixteen": ("row 16 repeats row 0", "F05", "typical"),
    "columns_swapped": ("two tiles of 32 value columns swapped", "F05", "typical"),
    "w_uv_transposed": ("W_UV read with its two axes swapped", "F01", "typical"),
    "w_uv_next_head": ("the next head's W_UV", "F01", "typical"),
    "gate_next_head": ("the next head's gate", "F01", "typical"),
    "gate_of_row_zero": ("every row takes the gate of row 0", "F01", "typical"),
    "gate_shifted": ("gate read one column early", "F01", "typical"),
    "gate_dense_pitch": ("gate of the next row: a pitch too many", "F01", "typical"),
    "stale_fragment": ("8 columns of the last row hold row 0's values", "F08", "typical"),
    "beyond_the_row": ("one element too many behind a row's last head", "F09", "typical"),
    "padding_unwritten": ("rows of padding requests keep the old output", "F08", "padding"),
    "padding_multiplied": ("padding rows multiplied by 0, so that NaN leaks", "F45", "padding"),
    "padding_not_zeroed": ("padding rows not zeroed", "F45", "padding"),
    "zero_length_live": ("only negative lengths are padding", "F23", "padding"),
    "negative_length_live": ("only length 0 is padding", "F23", "padding"),
    "length_by_row": ("lengths indexed by token instead of request", "F31", "padding"),
    "length_modulo": ("lengths indexed by token modulo requests", "F31", "padding"),
    "nan_to_zero": ("NaN stored as 0", "F51", "nan_row"),
    "nan_spreads": ("a NaN in one head's latent reaches all heads", "F51", "nan_row"),
    "offset_32_bits": ("row offset of the projection cut to 31 bits", "F50", "wide_offsets"),
}


def run(a: MlaValueArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """out in place, wrong in the way ``fault`` says. ``profile`` changes nothing."""
    v = torch.stack([_value(a, h, order, fault) for h in range(a.heads)], 1)
    if fault == "nan_spreads":
        v = v + 0 * v.sum(1, keepdim=True)
    if fault == "rounded_through_fp16":
        v = v.half().float()
    v = v if fault == "gate_before_projection" else _bf16(v)
    out = v * _gate(a, fault)
    live = _live(a, fault)[:, None, None]
    if fault == "padding_multiplied":
        out = out * live
    elif fault != "padding_not_zeroed":
        out = torch.where(live, out, torch.zeros_like(out))
    _store(a, out.flatten(1), fault)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _value(a: MlaValueArguments, head: int, order: Order, fault: str) -> Tensor:
    """latent W_UV of one head, FP32 [row, v]."""
    x = a.latent[:, head].float()
    w = a.w_uv[(head + 1) % a.heads if fault == "w_uv_next_head" else head].float()
    if fault == "latent_e4m3":
        x = x.to(torch.float8_e4m3fn).float()
    if fault == "w_uv_transposed":
        w = w.contiguous().reshape(w.shape[1], w.shape[0]).T
    if fault == "latent_tail_lost":
        x, w = x[:, :-16], w[:-16]
    if fault == "latent_first_lost":
        x, w = x[:, 1:], w[1:]
    if fault == "value_bf16_twice":
        return sum((_bf16(p @ q) for p, q in zip(x.chunk(2, 1), w.chunk(2, 0), strict=True)), torch.zeros(()))
    if fault == "bf16_accumulate":
        total = torch.zeros(len(x), w.shape[1], device=x.device)
        for part, weights in zip(x.split(64, 1), w.split(64, 0), strict=True):
            total = _bf16(total + part @ weights)
        return total
    v = order.matmul(x, w.T)
    if fault == "split_twice":
        v = v + x.chunk(4, 1)[1] @ w.chunk(4, 0)[1]
    return v


def _gate(a: MlaValueArguments, fault: str) -> Tensor:
    """Sigmoid of the gate, FP32 [row, head, v]."""
    gate = a.gate.float()
    if fault == "gate_next_head":
        gate = gate.roll(-1, 1)
    if fault == "gate_of_row_zero":
        gate = gate[:1].expand_as(gate)
    if fault == "gate_shifted":
        first = a.gate_start - 1
        gate = a.projected[:, first : first + a.heads * a.dim].float().unflatten(1, (a.heads, a.dim))
    if fault == "gate_dense_pitch":
        gate = gate.roll(-1, 0)
    if fault == "offset_32_bits":
        gate = gate[torch.arange(len(gate)) % 2]
    if fault == "gate_clamped":
        gate = gate.clamp(-8, 8)
    if fault == "gate_missing":
        return torch.ones_like(gate)
    if fault == "gate_silu":
        return gate * torch.sigmoid(gate)
    if fault == "gate_tanh":
        return torch.tanh(gate)
    if fault == "exp2_for_exp":
        return 1 / (1 + torch.exp2(-gate))
    sigmoid = torch.sigmoid(gate)
    if fault == "gate_flushed":
        sigmoid = torch.where(sigmoid < 1e-6, 0.0, sigmoid)
    return _bf16(sigmoid) if fault == "gate_bf16" else sigmoid


def _live(a: MlaValueArguments, fault: str) -> Tensor:
    rows = torch.arange(a.latent.shape[0], device=a.lengths.device)
    request = rows // a.tokens
    if fault == "length_by_row":
        request = rows.clamp(max=len(a.lengths) - 1)
    if fault == "length_modulo":
        request = rows % len(a.lengths)
    lengths = a.lengths[request]
    if fault == "zero_length_live":
        return lengths >= 0
    if fault == "negative_length_live":
        return lengths != 0
    return lengths > 0


def _store(a: MlaValueArguments, out: Tensor, fault: str) -> None:
    stored = out.bfloat16()
    if fault == "truncated":
        stored = (out.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()
    if fault == "nan_to_zero":
        stored = stored.nan_to_num(nan=0.0)
    if fault == "rows_from_sixteen":
        stored[16] = stored[0]
    if fault == "columns_swapped":
        stored[:, :32], stored[:, 32:64] = stored[:, 32:64].clone(), stored[:, :32].clone()
    if fault == "stale_fragment":
        stored[-1, 8:16] = stored[0, 8:16]
    if fault == "padding_unwritten":
        live = _live(a, "")
        a.out[live] = stored[live]
        return
    a.out.copy_(stored)
    if fault == "beyond_the_row":
        a.out.as_strided((1,), (1,), a.out.storage_offset() + a.out.shape[1]).fill_(0)


def faults() -> Iterator[Fault]:
    """Every fault, in its regime at the sizes of the subject."""
    sizes = {"heads": 3, "latent": 512, "dim": 128}
    for name, (what, kind, regime) in FAULTS.items():
        requests = 17 if name == "rows_from_sixteen" else 3 if regime == "wide_offsets" else 5
        tokens = 3 if regime == "padding" else 1
        case = Case.of("mla_value", regime, 7, requests=requests, tokens=tokens, **sizes)
        yield Fault(name, what, case, "stock", partial(run, order=LIBRARY, fault=name), kind)
