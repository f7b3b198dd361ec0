"""MLA query and key insert in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel in the given summation order; both profiles
round at the same places. The code follows the formulas, not any kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.mla.query_arguments import MlaQueryArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, kind, regime in which it is planted).
FAULTS = {
    "q_eps_1e-6": ("q norm eps 1e-6 for 1e-5", "F12", "small"),
    "kv_eps_1e-6": ("latent norm eps 1e-6 for 1e-5", "F12", "small"),
    "eps_times_width": ("eps added to the sum of squares, not to their mean", "F12", "small"),
    "q_gamma_plus_one": ("q norm weight taken as 1 + w", "F12", "typical"),
    "kv_gamma_missing": ("latent norm without its weight", "F12", "typical"),
    "kv_gamma_in_bf16": ("latent rounded to BF16 before the norm weight", "F12", "typical"),
    "q_norm_not_rounded": ("q_b reads the normalised q before its rounding", "F12", "typical"),
    "q_b_not_rounded": ("absorption reads q before its rounding", "F12", "typical"),
    "absorbed_not_rounded": ("absorbed q goes to E4M3 without its BF16 rounding", "F12", "typical"),
    "mean_over_power_of_two": ("mean of squares over 2,048 columns for 1,536", "F04", "typical"),
    "k_tail_lost": ("the last 64 of the q rank are not added", "F04", "typical"),
    "split_twice": ("one split of the q rank is added twice", "F05", "typical"),
    "nope_group_lost": ("the last 16 of nope are not absorbed", "F05", "typical"),
    "bf16_partials": ("q_b partial sums stored in BF16", "F06", "typical"),
    "absorb_bf16_accumulate": ("absorption accumulated in BF16", "F06", "outliers"),
    "w_uk_transposed": ("W_UK read with its two axes swapped", "F01", "typical"),
    "w_uk_next_head": ("absorption with the next head's W_UK", "F01", "typical"),
    "halves_swapped": ("the rope rows of a head taken first", "F01", "typical"),
    "rope_first": ("rope part written before the latent part", "F01", "typical"),
    "rope_unwritten": ("rope part of the last head not written", "F08", "typical"),
    "latent_tail_stale": ("the last 16 latent bytes of a key keep the old bytes", "F08", "typical"),
    "query_beyond_the_row": ("one byte too many behind a row's last head", "F09", "typical"),
    "key_beyond_the_place": ("one byte too many: the next place's first", "F09", "typical"),
    "e4m3_truncated": ("cast to E4M3 towards zero", "F20", "typical"),
    "ties_away": ("cast to E4M3 with ties away from zero", "F20", "ties"),
    "subnormals_flushed": ("E4M3 subnormals flushed to zero", "F20", "ties"),
    "minus_zero_lost": ("-0.0 stored as +0.0", "F20", "zero_row"),
    "q_scale_multiplied": ("query multiplied by q_scale", "F18", "scaled_up"),
    "k_scale_missing": ("keys not scaled", "F18", "scaled_up"),
    "scales_swapped": ("q_scale for the keys and k_scale for the query", "F18", "scaled_down"),
    "rope_unscaled": ("scale applied to the latent part only", "F18", "scaled_down"),
    "wraps": ("beyond 448 becomes NaN", "F18", "saturated"),
    "clamped_at_240": ("saturates at 240, the largest of another FP8", "F18", "saturated"),
    "rope_clamped_like_latent": ("rope part of keys clamped to the latent part's range", "F19", "rope_large"),
    "shared_latent_scale": ("rope part quantised at the latent part's amplitude", "F19", "rope_large"),
    "page_rounded_up": ("page and place with the next power of two as page size", "F24", "page_edges"),
    "last_place_off": ("the key of a page's last place goes to the place before", "F24", "page_edges"),
    "null_slot_wraps": ("slot -1 writes the last cache row", "F23", "padding"),
    "null_slot_clamped": ("slot -1 writes cache row 0", "F23", "padding"),
    "padding_rows_packed": ("keys of rows after a padding row move up by one", "F45", "padding"),
    "rows_beyond_insert": ("a row behind the last one inserts its key too", "F45", "padding"),
    "nan_dropped": ("the clamp drops NaN", "F51", "nan_row"),
    "nan_spreads": ("the NaN row's keys reach the next row by a product with zero", "F51", "nan_row"),
    "page_offset_32_bits": ("page offset cut to 31 bits", "F50", "wide_offsets"),
}


def run(a: MlaQueryArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """Query bytes and cache rows, in place, wrong in the way ``fault`` says. ``profile`` changes nothing."""
    _write_query(a, _absorbed_and_rope(a, order, fault), fault)
    _insert(a, _keys(a, order, fault), fault)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _normalised(x: Tensor, weight: Tensor, eps: float, order: Order, fault: str) -> Tensor:
    """Before its rounding. FP32 [row, column]"""
    x, width = x.float(), x.shape[-1]
    if fault == "mean_over_power_of_two":
        width = 1 << (width - 1).bit_length()
    squares = order.sum(x * x, -1)[:, None]
    mean = (squares + eps) / width if fault == "eps_times_width" else squares / width + eps
    x = x * torch.rsqrt(mean)
    return (_bf16(x) if fault == "kv_gamma_in_bf16" else x) * weight


def _absorbed_and_rope(a: MlaQueryArguments, order: Order, fault: str) -> Tensor:
    """FP32 [row, head, latent + rope], as it is before the scale."""
    gamma = a.q_norm.float() + (1.0 if fault == "q_gamma_plus_one" else 0.0)
    eps = 1e-6 if fault == "q_eps_1e-6" else a.eps
    told = fault if fault in ("mean_over_power_of_two", "eps_times_width") else ""
    c = _normalised(a.part("q_a"), gamma, eps, order, told)
    c = c if fault == "q_norm_not_rounded" else _bf16(c)
    q = _q_b(a, c, order, fault)
    q = (q if fault == "q_b_not_rounded" else _bf16(q)).unflatten(1, (a.heads, -1))
    nope, pe = q[..., : a.nope], q[..., a.nope :]
    if fault == "halves_swapped":
        nope, pe = q[..., a.rope :], q[..., : a.rope]
    absorbed = torch.stack([_absorb(a, nope[:, h], h, order, fault) for h in range(a.heads)], 1)
    absorbed = absorbed if fault == "absorbed_not_rounded" else _bf16(absorbed)
    return torch.cat([_bf16(pe), absorbed] if fault == "rope_first" else [absorbed, _bf16(pe)], -1)


def _q_b(a: MlaQueryArguments, c: Tensor, order: Order, fault: str) -> Tensor:
    if fault == "k_tail_lost":
        return order.matmul(c[:, :-64], a.w_q[:, :-64])
    if fault in ("split_twice", "bf16_partials"):
        parts = zip(c.tensor_split(4, -1), a.w_q.float().tensor_split(4, -1), strict=True)
        partials = [x @ w.T for x, w in parts]
        if fault == "split_twice":
            return torch.stack([*partials, partials[2]]).sum(0)
        return torch.stack([_bf16(p) for p in partials]).sum(0)
    return order.matmul(c, a.w_q)


def _absorb(a: MlaQueryArguments, nope: Tensor, head: int, order: Order, fault: str) -> Tensor:
    """nope [row, nope] times W_UK[head]: [row, latent]."""
    w = a.w_uk[(head + 1) % a.heads if fault == "w_uk_next_head" else head].float()
    if fault == "w_uk_transposed":
        w = w.contiguous().reshape(a.latent, a.nope).T
    if fault == "nope_group_lost":
        nope, w = nope[:, :-16], w[:-16]
    if fault == "absorb_bf16_accumulate":
        total = torch.zeros(len(nope), a.latent, device=nope.device)
        for x, part in zip(nope.split(16, 1), w.split(16, 0), strict=True):
            total = _bf16(total + x @ part)
        return total
    return order.matmul(nope, w.T)


def _e4m3(x: Tensor, fault: str) -> Tensor:
    """Bytes of FP32 values in E4M3."""
    most = 240.0 if fault == "clamped_at_240" else 448.0
    clamped = x.clamp(-most, most)
    if fault == "wraps":  # a cast without saturation
        clamped = torch.where(x.abs() > 464, float("nan"), clamped)
    if fault == "nan_dropped":
        clamped = x.nan_to_num(nan=-448.0).clamp(-448.0, 448.0)
    if fault == "e4m3_truncated":
        # 20 of FP32's 23 fraction bits are dropped: towards zero in the normal range.
        bits = clamped.contiguous().view(torch.int32) & ~0xFFFFF
        clamped = torch.where(clamped.abs() >= 2.0**-6, bits.view(torch.float32), clamped)
    if fault == "ties_away":
        clamped = clamped * (1 + 2.0**-20)
    if fault == "subnormals_flushed":
        clamped = torch.where(clamped.abs() < 2.0**-6, clamped * 0, clamped)
    if fault == "minus_zero_lost":
        clamped = clamped + 0.0
    return clamped.to(torch.float8_e4m3fn).view(torch.uint8)


def _scale_of(a: MlaQueryArguments, what: str, fault: str) -> float:
    q, k = (float(1 / torch.tensor(scale, dtype=torch.float32)) for scale in (a.q_scale, a.k_scale))
    if fault == "q_scale_multiplied":
        q = a.q_scale
    if fault == "k_scale_missing":
        k = 1.0
    if fault == "scales_swapped":
        q, k = k, q
    return float(torch.tensor(q if what == "query" else k, dtype=torch.float32))


def _scaled(a: MlaQueryArguments, x: Tensor, what: str, fault: str) -> Tensor:
    scaled = x * _scale_of(a, what, fault)
    if fault == "rope_unscaled":
        scaled[..., a.latent :] = x[..., a.latent :]
    return scaled


def _write_query(a: MlaQueryArguments, query: Tensor, fault: str) -> None:
    stored = _e4m3(_scaled(a, query, "query", fault), fault)
    if fault == "rope_unwritten":
        stored[:, -1, a.latent :] = 0x7F
    a.query.copy_(stored)
    if fault == "query_beyond_the_row":
        behind = a.query.storage_offset() + a.query[0].numel()
        a.query.as_strided((1,), (1,), behind).fill_(0)


def _keys(a: MlaQueryArguments, order: Order, fault: str) -> Tensor:
    """Bytes of every row's key, [row, latent + rope]."""
    gamma = torch.ones_like(a.kv_norm) if fault == "kv_gamma_missing" else a.kv_norm
    eps = 1e-6 if fault == "kv_eps_1e-6" else a.eps
    told = fault if fault in ("eps_times_width", "kv_gamma_in_bf16") else ""
    latent = _bf16(_normalised(a.part("kv"), gamma.float(), eps, order, told))
    keys = _scaled(a, torch.cat([latent, a.part("k_pe").float()], -1), "keys", fault)
    if fault in ("rope_clamped_like_latent", "shared_latent_scale"):
        most = float(keys[:, : a.latent].abs().amax())
        rope = keys[:, a.latent :]
        # A scale fitted to the latent part maps its largest value to 448; what is larger saturates.
        fitted = (rope * (448 / most)).clamp(-448, 448).to(torch.float8_e4m3fn).float() * (most / 448)
        keys[:, a.latent :] = rope.clamp(-most, most) if fault == "rope_clamped_like_latent" else fitted
    if fault == "nan_spreads":
        keys = keys + 0 * keys.roll(1, 0)
    return _e4m3(keys, fault)


def _insert(a: MlaQueryArguments, keys: Tensor, fault: str) -> None:
    pages, page, _ = a.cache.shape
    slot = a.slot.clone()
    if fault == "null_slot_wraps":
        slot = slot % (pages * page)
    if fault == "null_slot_clamped":
        slot = slot.clamp(min=0)
    if fault == "padding_rows_packed":
        order = torch.argsort((slot < 0).int(), stable=True)
        slot = slot[order]
    at = {"page_rounded_up": 1 << (page - 1).bit_length()}.get(fault, page)
    for row in range(len(slot)):
        if slot[row] < 0:
            continue
        number, place = int(slot[row]) // at, int(slot[row]) % at
        if fault == "last_place_off" and place == page - 1:
            place -= 1
        if fault == "page_offset_32_bits":
            number %= 2
        # A place beyond the page is a place of the next one, as addresses have it.
        number, place = number + place // page, place % page
        width = a.latent - 16 if fault == "latent_tail_stale" else a.cache.shape[2]
        a.cache[number % pages, place, :width] = keys[row, :width]
        if fault == "key_beyond_the_place":
            following = a.cache[number, (place + 1) % page]
            following[0] = following[0] ^ 1
    if fault == "rows_beyond_insert":  # where the arena's poison behind the slots points
        a.cache[a.free_slot // page, a.free_slot % page] = keys[-1]


def faults() -> Iterator[Fault]:
    """Every fault, in its regime at the sizes of the subject."""
    sizes = {"heads": 3, "rank": 1536, "nope": 128, "rope": 64, "latent": 512}
    for name, (what, kind, regime) in FAULTS.items():
        page = 48 if regime == "page_edges" else 32
        case = Case.of("mla_query", regime, 7, rows=4, **sizes, page=page)
        yield Fault(name, what, case, "stock", partial(run, order=LIBRARY, fault=name), kind)
