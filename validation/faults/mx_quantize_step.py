"""MXFP8 quantisation by looking every element up in the table of E4M3 values, with one switch for every
planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel; there is no sum whose order could differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.moe.quantize import MxQuantizeArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, its kind, the regime in which it must be seen, 1: by the rule no_saturation).
FAULTS = {
    "other_rule": ("floor where the scale must not saturate", "F20", "typical", 1),
    "floor_rounded_up": ("no_saturation where floor is asked for", "F20", "typical", 0),
    "ceiling": ("the scale is rounded up whenever the maximum is no power of two", "F20", "typical", 1),
    "raised_at_448": ("the scale is raised at 448 itself", "F20", "edges", 1),
    "raised_from_464": ("the scale is raised only where rounding would pass 448", "F20", "edges", 1),
    "scale_after": ("the scale is raised after the elements were quantised", "F20", "edges", 1),
    "code_plus_one": ("scale codes are biased by 128", "F20", "typical", 1),
    "zero_block_bias": ("a block of zeros gets scale 1 instead of code 0", "F20", "tiny", 1),
    "denormal_exponent": ("a denormal maximum counts with its own exponent", "F20", "tiny", 0),
    "code_not_clamped": ("a code below 0 wraps", "F20", "tiny", 1),
    "denormals_flushed": ("denormal inputs are flushed to zero", "F20", "tiny", 1),
    "sign_of_zero": ("-0 is stored as +0", "F20", "tiny", 1),
    "infinity_code_255": ("infinity gives the NaN scale", "F20", "huge", 0),
    "infinity_saturates": ("infinity under floor becomes 448", "F20", "huge", 0),
    "infinity_nan": ("infinity under no_saturation becomes NaN", "F51", "huge", 1),
    "nan_spreads": ("a NaN becomes its block's maximum", "F51", "nan", 1),
    "nan_saturates": ("a NaN is stored as 448", "F51", "nan", 0),
    "truncated": ("elements are truncated instead of rounded", "F20", "typical", 1),
    "ties_away": ("ties are rounded away from zero", "F06", "midpoints", 1),
    "through_half": ("elements are rounded to four bits through three more", "F20", "typical", 1),
    "no_saturation_cast": ("what exceeds 448 becomes NaN", "F20", "typical", 0),
    "payload_kept": ("the payload keeps the scale of the block before", "F20", "typical", 1),
    "neighbour_scale": ("scales of neighbouring blocks are swapped", "F21", "typical", 1),
    "row_scale": ("one scale for the whole row", "F20", "outliers", 1),
    "partial_maximum": ("the last 8 of a block are not in its maximum", "F19", "outliers", 1),
    "rows_swapped": ("rows rotated by one", "F01", "typical", 1),
    "tail_lost": ("the last block keeps stale bytes", "F05", "typical", 0),
    "offset_32_bit": ("rows beyond 2**31 elements are written to the first row", "F50", "wide_rows", 1),
}  # fmt: skip
_TABLE = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()  # 0 to 448, ascending


def faults() -> Iterator[Fault]:
    for name, (what, kind, regime, rule) in FAULTS.items():
        rows = 3 if regime == "wide_rows" else 6
        case = Case.of("mx_quantize", regime, 7, rows=rows, width=320, rule=rule)
        yield Fault(name, what, case, "specialized", partial(run, order=LIBRARY, fault=name), kind)


def run(a: MxQuantizeArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """Codes and scales of every block, in place, wrong in the way ``fault`` says."""
    del order, profile
    blocks = a.x.double().unflatten(-1, (-1, 32))
    if fault == "denormals_flushed":
        blocks = torch.where(blocks.abs() < 2.0**-126, blocks * 0.0, blocks)
    codes = _codes(_largest(blocks, fault), a.rule, fault)
    used = codes.roll(1, -1) if fault == "payload_kept" else codes
    elements = _elements(blocks, used.clamp(0, 255), fault).flatten(-2)
    if fault == "scale_after":
        codes = codes + 1
    if fault == "neighbour_scale":
        codes = codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    scales = codes.to(torch.int64).bitwise_and(255).to(torch.uint8)
    if fault == "rows_swapped":
        elements, scales = elements.roll(1, 0), scales.roll(1, 0)
    if fault == "tail_lost":
        elements[:, -32:] = a.codes[:, -32:]
    a.scales.copy_(scales)
    if fault == "offset_32_bit":
        a.codes[:2] = elements[:2]
        a.codes[0] = elements[2]
        return
    a.codes.copy_(elements)


def _largest(blocks: Tensor, fault: str) -> Tensor:
    size = blocks.abs()
    if fault == "nan_spreads":
        size = size.nan_to_num(nan=float("inf"))
    size = size.nan_to_num(nan=0.0, posinf=float("inf"))
    if fault == "partial_maximum":
        size = size[..., :-8]
    largest = size.amax(-1)
    return largest.amax(-1, keepdim=True).expand_as(largest) if fault == "row_scale" else largest


def _codes(largest: Tensor, rule: str, fault: str) -> Tensor:
    """Scale codes (int64) from the largest magnitudes: 448 and the power of two decide."""
    finite = torch.isfinite(largest)
    safe = torch.where(finite & (largest > 0), largest, 1.0)
    mantissa, exponent = torch.frexp(safe)
    code = exponent.long() - 1 + 127 - 8
    if {"other_rule": False, "floor_rounded_up": True}.get(fault, rule == "no_saturation"):
        edge = {"raised_at_448": 0.87, "raised_from_464": 464 / 512}.get(fault, 448 / 512)
        code = code + (mantissa > edge).long()
    if fault == "ceiling":
        code = exponent.long() - 1 + 127 - 8 + (mantissa > 0.5).long()
    if fault == "code_plus_one":
        code = code + 1
    if fault != "code_not_clamped":
        code = code.clamp(min=0)
    if fault == "denormal_exponent":
        code = torch.where(largest < 2.0**-126, (code + 7).clamp(max=7), code)
    code = torch.where(largest == 0, 127 if fault == "zero_block_bias" else 0, code)
    infinite = 247 if rule == "no_saturation" else 254
    if fault == "infinity_code_255":
        infinite = 255
    return torch.where(finite, code, infinite)


def _elements(blocks: Tensor, codes: Tensor, fault: str) -> Tensor:
    """E4M3 bytes: the nearest entry of the table, of two equally near the even one."""
    factor = torch.exp2(127.0 - codes.double())
    factor = torch.where(codes >= 254, 1.0 if fault == "infinity_saturates" else 0.0, factor)
    x = blocks * factor[..., None]
    size = x.abs().nan_to_num(nan=0.0).clamp(max=448.0)
    if fault == "through_half":
        spacing = torch.exp2(torch.floor(torch.log2(size.clamp(min=2.0**-6))) - 6)
        size = torch.round(size / spacing) * spacing
    table = _TABLE.to(x.device)
    above = torch.searchsorted(table, size.contiguous()).clamp(1, 126)
    below = above - 1
    to_above, to_below = table[above] - size, size - table[below]
    take_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    if fault == "ties_away":
        take_above = to_above <= to_below
    if fault == "truncated":
        take_above = to_above == 0
    byte = torch.where(take_above, above, below)
    broken = torch.isnan(x)
    if fault == "nan_saturates":
        byte = torch.where(broken, 126, byte)
        broken = torch.zeros_like(broken)
    if fault == "infinity_nan":
        broken = broken | torch.isinf(x)
    if fault == "no_saturation_cast":
        broken = broken | (x.abs() > 464)
    byte = torch.where(broken, 127, byte)
    negative = torch.signbit(x)
    if fault == "sign_of_zero":
        negative = negative & (byte != 0)
    return (byte + 128 * negative).to(torch.uint8)
