"""Routed experts in plain FP32 torch, pair by pair, with one switch for every planted fault.

``run(a, order, fault, profile)`` with ``fault=""`` is an honest kernel in the given summation order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, its kind, the regime in which it must be seen).
FAULTS = {
    "gate_up_swapped": ("gate and up are swapped", "F01", "typical"),
    "gate_up_interleaved": ("gate and up rows are taken in turns", "F01", "typical"),
    "rows_swapped": ("output rows rotated by one", "F01", "typical"),
    "w2_pitch": ("w2 rows read with the live width as their pitch", "F04", "padded"),
    "padding_computed": ("the padded hidden columns are computed and used", "F04", "padded"),
    "last_row_lost": ("the last row of the largest expert is another row's", "F05", "one_expert"),
    "last_tile_lost": ("the last 8 columns of the last row are stale", "F05", "typical"),
    "gate_bf16": ("gate and up rounded to BF16 before SiTU", "F06", "typical"),
    "hidden_bf16": ("hidden rounded to BF16 before it is quantised", "F06", "typical"),
    "partials_bf16": ("split-K partials of gate and up in BF16", "F06", "outliers"),
    "down_bf16_accumulate": ("the second product rounded to BF16 every 32 columns", "F06", "typical"),
    "row_not_rounded": ("rows not rounded to BF16 before the sum", "F06", "typical"),
    "combine_bf16": ("the sum over slots rounded to BF16 slot by slot", "F06", "typical"),
    "idle_expert_read": ("an expert without rows enters with weight 0", "F08", "typical"),
    "silu": ("SiLU in place of SiTU", "F12", "typical"),
    "linear_unbounded": ("the up half is not bounded", "F12", "saturating"),
    "beta_lost": ("the gate half without its beta of 4", "F12", "typical"),
    "bounds_swapped": ("the bounds 4 and 25 are swapped", "F12", "saturating"),
    "sigmoid_base_2": ("the sigmoid with 2 for e", "F02", "saturating"),
    "weights_lost": ("rows are added without their weights", "F15", "typical"),
    "weights_renormalised": ("weights are normalised once more", "F15", "typical"),
    "weight_before_rounding": ("rows are weighted before they are rounded", "F15", "unequal_weights"),
    "weights_fp8": ("weights rounded to E4M3", "F15", "unequal_weights"),
    "minus_zero": ("the sum starts from the first product, whose -0 stays", "F36", "unequal_weights"),
    "pair_dropped": ("one (row, slot) pair is left out", "F16", "typical"),
    "pair_doubled": ("one pair is added twice", "F16", "typical"),
    "pair_elsewhere": ("one pair goes to the next expert that has rows", "F16", "distinct"),
    "weights_in_expert_order": (
        "weights are applied in the order of experts, not of slots",
        "F16",
        "one_expert",
    ),
    "other_rule": ("hidden quantised by the other rule", "F20", "typical"),
    "floor_when_padded": ("the rule of 8 ranks for the hidden of 16", "F53", "padded"),
    "hidden_kept": ("hidden is not quantised", "F20", "typical"),
    "hidden_ceiling": ("hidden scales rounded up", "F20", "typical"),
    "scale_after": ("one hidden block in four has its scale raised and its payload kept", "F20", "outliers"),
    "hidden_truncated": ("hidden truncated to E4M3", "F20", "typical"),
    "code_0_is_1": ("scale code 0 counts as 1", "F20", "extreme_scales"),
    "scale_mantissa": ("one weight scale carries mantissa bits", "F20", "outliers"),
    "hidden_scale_stale": ("the last hidden block has the scale of the one before", "F20", "typical"),
    "x_scale_shifted": ("activation scales are those of the next block", "F21", "typical"),
    "nibbles_swapped": ("high nibble first", "F21", "one_hot"),
    "w2_nibbles_swapped": ("high nibble first in w2", "F21", "typical"),
    "scale_rows_permuted": ("scales of rows 8 apart are swapped in w13", "F21", "one_hot"),
    "scale_columns_swapped": ("scales of two neighbouring blocks are swapped in w2", "F21", "typical"),
    "one_nibble_sign": ("one weight of an expert has the wrong sign", "F21", "one_hot"),
    "offset_32_bit": ("expert offsets wrap at 2**31 bytes", "F50", "wide_offsets"),
    "nan_spreads": ("a NaN row spoils the row beside it", "F51", "nan_row"),
    "nan_lost": ("a NaN activation is read as 448", "F51", "nan_row"),
}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SHAPES: dict[str, dict[str, int]] = {
    "padded": {"padded": 96},
    "wide_offsets": {"experts": 4, "slots": 3},
    "distinct": {"experts": 26},
}


def faults() -> Iterator[Fault]:
    small = {"experts": 16, "slots": 4, "width": 128, "live": 64, "padded": 64, "keep": 0}
    for name, (what, kind, regime) in FAULTS.items():
        case = Case.of("experts", regime, 7, rows=6, **(small | _SHAPES.get(regime, {})))
        function = partial(run, order=LIBRARY, fault=name, profile="specialized")
        yield Fault(name, what, case, "specialized", function, kind)


def run(a: ExpertsArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """out (and rows), in place, wrong in the way ``fault`` says."""
    x = _activations(a, fault)
    rows = torch.stack([_pairs(a, x[r : r + 1], r, order, fault, profile) for r in range(len(x))])
    stored = rows.bfloat16()
    if fault == "last_row_lost":
        stored[-1] = stored[-2]
    if a.rows is not None:
        a.rows.copy_(stored)
    kept = rows if fault in ("row_not_rounded", "weight_before_rounding") else stored.float()
    out = _combined(a, kept, order, fault).bfloat16()
    if fault == "rows_swapped":
        out = out.roll(1, 0)
    if fault == "nan_spreads":
        out = torch.where(out.isnan().any(-1).roll(1, 0)[:, None], torch.nan, out)
    if fault == "last_tile_lost":
        out[-1, -8:] = a.out[0, -8:] * 0 if len(out) == 1 else out[0, -8:]
    a.out.copy_(out)


def _pairs(a: ExpertsArguments, x: Tensor, row: int, order: Order, fault: str, profile: str) -> Tensor:
    """FP32 output rows of one row's slots. [slot, column]"""
    found = []
    for slot, chosen in enumerate(a.ids[row].tolist()):
        expert = chosen
        if fault == "pair_elsewhere" and (row, slot) == (1, 1):
            expert = int(a.ids[2, 0])
        if fault == "offset_32_bit":
            expert = chosen % 2
        gate, up = _gate_up(a, x, expert, order, fault)
        hidden = _stored(_situ(gate, up, fault), _rule(a, fault, profile), fault)
        found.append(_down(a, hidden, expert, order, fault)[0])
    return torch.stack(found)


def _rule(a: ExpertsArguments, fault: str, profile: str) -> str:
    rule = "no_saturation" if profile == "stock" else a.hidden_rule
    if fault == "floor_when_padded":
        return "floor"
    if fault == "other_rule":
        return "floor" if rule == "no_saturation" else "no_saturation"
    return rule


# -- formats ---------------------------------------------------------------------------------------


def _power(codes: Tensor, fault: str) -> Tensor:
    power = torch.exp2(codes.double() - 127)
    power = torch.where(codes == 255, torch.nan, power)
    if fault == "code_0_is_1":
        power = torch.where(codes == 0, 1.0, power)
    return power.repeat_interleave(32, -1)


def _activations(a: ExpertsArguments, fault: str) -> Tensor:
    """FP32 latent rows."""
    values = a.x.contiguous().view(torch.float8_e4m3fn).float()
    if fault == "nan_lost":
        values = values.nan_to_num(nan=448.0)
    scales = a.x_scale.roll(-1, -1) if fault == "x_scale_shifted" else a.x_scale
    return (values * _power(scales, fault)).float()


def _weights(nibbles: Tensor, scales: Tensor, fault: str, swapped: bool = False) -> Tensor:
    """FP32 [out, k] of MXFP4 bytes [out, k / 2]."""
    code = torch.empty(nibbles.shape[0], 2 * nibbles.shape[1], dtype=torch.long, device=nibbles.device)
    code[:, swapped::2] = (nibbles % 16).long()
    code[:, (not swapped) :: 2] = (nibbles // 16).long()
    size = torch.tensor(_E2M1, dtype=torch.float64, device=nibbles.device)[code % 8]
    value = torch.where(code >= 8, -size, size)
    if fault == "one_nibble_sign":
        value[3] = -value[3]
    power = _power(scales, fault)
    if fault == "scale_mantissa":
        power[0] = power[0] * 1.5
    return (value * power).float()


def _stored(hidden: Tensor, rule: str, fault: str) -> Tensor:
    """MXFP8 and back, block by block, through log2 of the maximum."""
    if fault == "hidden_kept":
        return hidden
    if fault == "hidden_bf16":
        hidden = hidden.bfloat16().float()
    blocks = hidden.double().unflatten(-1, (-1, 32))
    largest = blocks.abs().nan_to_num(nan=0.0).amax(-1, keepdim=True).clamp(min=2.0**-119)
    exponent = torch.floor(torch.log2(largest)) - 8
    if rule == "no_saturation" or fault == "hidden_ceiling":
        edge = 256.0 if fault == "hidden_ceiling" else 448.0
        exponent = exponent + (largest * torch.exp2(-exponent) > edge)
    scaled = (blocks * torch.exp2(-exponent)).clamp(-448, 448)
    if fault == "hidden_truncated":
        spacing = torch.exp2(torch.floor(torch.log2(scaled.abs().clamp(min=2.0**-6))) - 3)
        scaled = torch.trunc(scaled / spacing) * spacing
    elements = scaled.float().to(torch.float8_e4m3fn).double()
    if fault == "scale_after":
        exponent[..., ::4, :] += 1
    if fault == "hidden_scale_stale":
        exponent[..., -1, :] = exponent[..., -2, :]
    return (elements * torch.exp2(exponent)).flatten(-2).float()


# -- the two products ------------------------------------------------------------------------------


def _gate_up(a: ExpertsArguments, x: Tensor, expert: int, order: Order, fault: str) -> tuple[Tensor, Tensor]:
    live = a.padded if fault == "padding_computed" else a.live
    scales = a.w13_scale[expert]
    if fault == "scale_rows_permuted":
        scales = scales.unflatten(0, (-1, 2, 8)).flip(1).flatten(0, 2)
    weight = _weights(a.w13[expert], scales, fault, fault == "nibbles_swapped")
    parts = weight[:live], weight[a.padded : a.padded + live]
    if fault == "gate_up_interleaved":
        parts = weight[0 : 2 * live : 2], weight[1 : 2 * live : 2]
    gate, up = (_product(x, part, order, fault) for part in parts)
    if fault == "gate_bf16":
        gate, up = gate.bfloat16().float(), up.bfloat16().float()
    return (up, gate) if fault == "gate_up_swapped" else (gate, up)


def _product(x: Tensor, weight: Tensor, order: Order, fault: str) -> Tensor:
    if fault != "partials_bf16":
        return order.matmul(x, weight)
    pieces = zip(x.tensor_split(4, -1), weight.tensor_split(4, -1), strict=True)
    return torch.stack([(p @ w.T).bfloat16().float() for p, w in pieces]).sum(0)


def _situ(gate: Tensor, up: Tensor, fault: str) -> Tensor:
    beta, linear = (25.0, 4.0) if fault == "bounds_swapped" else (4.0, 25.0)
    base = 2.0 if fault == "sigmoid_base_2" else torch.e
    sigmoid = 1 / (1 + torch.pow(torch.tensor(base, device=gate.device), -gate))
    sigmoid = sigmoid if fault == "sigmoid_base_2" else torch.sigmoid(gate)
    if fault == "silu":
        return gate * sigmoid * up
    half = torch.tanh(gate / beta) * (1.0 if fault == "beta_lost" else beta) * sigmoid
    return half * (up if fault == "linear_unbounded" else linear * torch.tanh(up / linear))


def _down(a: ExpertsArguments, hidden: Tensor, expert: int, order: Order, fault: str) -> Tensor:
    width = hidden.shape[-1]
    nibbles, scales = a.w2[expert, :, : width // 2], a.w2_scale[expert, :, : width // 32]
    if fault == "w2_pitch":
        dense = a.w2[expert].flatten()
        nibbles = dense[: nibbles.numel()].reshape(nibbles.shape)
    if fault == "scale_columns_swapped":
        scales = scales.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    weight = _weights(nibbles, scales, "" if fault in _OF_W13 else fault, fault == "w2_nibbles_swapped")
    if fault == "down_bf16_accumulate":
        total = torch.zeros(hidden.shape[0], weight.shape[0], device=hidden.device)
        for part, w in zip(hidden.split(32, -1), weight.split(32, -1), strict=True):
            total = (total + part @ w.T).bfloat16().float()
        return total
    return order.matmul(hidden, weight)


_OF_W13 = ("one_nibble_sign", "scale_mantissa")


# -- the sum over slots ----------------------------------------------------------------------------


def _combined(a: ExpertsArguments, rows: Tensor, order: Order, fault: str) -> Tensor:
    weights = _slot_weights(a, fault)
    terms = rows * weights[..., None]
    if fault == "weight_before_rounding":
        terms = terms.bfloat16().float()
    if fault == "minus_zero":
        return _chain(terms)
    if fault == "pair_dropped":
        terms[-1, 1] = 0
    if fault == "pair_doubled":
        terms[-1, 1] *= 2
    if fault == "combine_bf16":
        total = torch.zeros_like(terms[:, 0])
        for term in terms.unbind(1):
            total = (total + term).bfloat16().float()
        return total
    total = order.sum(terms, 1)
    if fault == "idle_expert_read":
        idle = [e for e in range(len(a.w2)) if not bool((a.ids == e).any())]
        total = total + 0.0 * _power(a.w2_scale[idle[0], :, 0], "").reshape(-1)[: total.shape[1]].float()
    return total + 0.0


def _chain(terms: Tensor) -> Tensor:
    total: Any = terms[:, 0]
    for slot in range(1, terms.shape[1]):
        total = total + terms[:, slot]
    return total


def _slot_weights(a: ExpertsArguments, fault: str) -> Tensor:
    weights = a.weights.float()
    if fault == "weights_lost":
        return torch.ones_like(weights)
    if fault == "weights_renormalised":
        return weights / weights.sum(-1, keepdim=True)
    if fault == "weights_fp8":
        return weights.to(torch.float8_e4m3fn).float()
    if fault == "weights_in_expert_order":
        return weights.gather(1, a.ids.long().argsort(-1))
    return weights
