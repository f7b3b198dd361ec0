"""The MoE tail in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel, in the steps ``_latent_sum``, ``_norm``,
``_up`` and ``_finish``. In the profile ``specialized`` ranks and slots are added in order and squares rounded
to BF16; in ``stock`` the given order of summation holds everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

if TYPE_CHECKING:
    from validation.contracts.moe.tail import MoeTailArguments

# Fault -> (what is wrong, kind, regime of the case in which it must be seen).
FAULTS = {
    "rank_left_out": ("the last rank's latent partial is not added", "F08", "typical"),
    "rank_twice": ("rank 0's latent partial is added twice", "F15", "typical"),
    "rank_order_reversed": ("latent partials added from the last rank to the first", "F06", "cancelling"),
    "latent_in_bf16": ("the latent sum rounds to BF16 at every rank", "F06", "cancelling"),
    "z_not_rounded": ("the norm works on the FP32 sum", "F12", "typical"),
    "squares_not_rounded": ("squares summed in FP32", "F12", "one_sided"),
    "square_sum_bf16": ("the sum of squares is kept in BF16 between K slices", "F06", "typical"),
    "eps_1e-6": ("eps 1e-6 for 1e-5", "F12", "small"),
    "eps_outside_root": ("eps added after the root", "F12", "small"),
    "eps_missing": ("no eps: a row of zeros becomes NaN", "F12", "zero"),
    "mean_over_padded": ("mean over the next power of two of columns", "F04", "typical"),
    "k_tail_not_in_norm": ("the last 8 columns are missing from the norm", "F04", "typical"),
    "gamma_plus_one": ("gamma taken as 1 + w", "F12", "typical"),
    "gamma_shifted": ("gamma shifted by one column", "F01", "typical"),
    "normed_before_gamma": ("z * inv is rounded to BF16 before gamma", "F12", "typical"),
    "normed_not_rounded": ("the up-projection reads the norm in FP32", "F12", "typical"),
    "slice_lost": ("one K slice of the up-projection is not added", "F08", "typical"),
    "slice_bf16": ("K slices of the up-projection are rounded to BF16", "F06", "typical"),
    "other_ranks_up": ("one rank's W_up shard is its neighbour's", "F01", "one_hot"),
    "up_rows_swizzled": ("groups of 8 rows of W_up exchanged", "F21", "one_hot"),
    "up_not_rounded": ("the shared sum is added to the FP32 up-projection", "F12", "typical"),
    "shared_not_rounded": ("the shared sum is not rounded before it is added", "F12", "typical"),
    "shared_in_bf16": ("the shared sum rounds to BF16 at every rank", "F06", "typical"),
    "shared_lost": ("one rank's shared partial is not added", "F08", "typical"),
    "shared_columns_off": ("the shared sum of the neighbouring rank's columns is added", "F24", "typical"),
    "square_overflows": ("squares of z in FP16 range", "F03", "huge"),
    "minus_zero_unfilled": ("a -0.0 latent row is taken for one that has not arrived", "F36", "zero"),
    "nan_spreads": ("a row's NaN reaches the next row", "F51", "nan_row"),
    "nan_dropped": ("NaN partials count as 0", "F51", "nan_row"),
    "last_odd_row": ("the last of an odd number of rows repeats the one before", "F05", "typical"),
    "rows_swapped": ("two rows of a pair exchanged", "F16", "typical"),
    "pad_row_read": ("the last row is read one row further, beyond the step", "F45", "typical"),
    "stale_fragment": ("8 columns of one row keep the old output", "F08", "typical"),
    "writes_past_row": ("8 columns beyond the last row's end are written", "F09", "typical"),
    "slot_left_out": ("the last expert slot is not combined", "F08", "combine"),
    "slots_of_next_row": ("slots of the next row are combined", "F16", "combine"),
    "slots_in_bf16": ("slots accumulated in BF16", "F06", "combine"),
    "combined_not_rounded": ("the combined slots enter the rank sum in FP32", "F12", "combine"),
    "weights_swapped": ("weights of two slots exchanged", "F16", "combine"),
    "weights_normalised": ("weights divided by their sum", "F15", "combine"),
    "own_mailbox_read": ("the own rank's mailbox is read instead of its slots", "F08", "combine"),
    "small_form_squares": ("the larger batch's path rounds no squares", "F31", "one_sided"),
    "two_ranks_fewer": ("dispatched for half the ranks", "F53", "typical"),
    "offset_32_bit": ("the third rank's offset wraps at 2**31", "F50", "wide_offsets"),
}


def run(a: MoeTailArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """The tail, in place, wrong in the way ``fault`` says."""
    in_order = profile == "specialized"
    z = _latent_sum(a, order, fault, in_order)
    normed = _norm(a, z, order, fault, rounded=profile != "stock")
    up = _up(a, normed, order, fault)
    _finish(a, up, order, fault, in_order)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _chain(parts: list[Tensor], rounded: bool = False) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = _bf16(total + part) if rounded else total + part
    return total


def _latent_sum(a: MoeTailArguments, order: Order, fault: str, in_order: bool) -> Tensor:
    parts = list(a.latent.float().unbind(0))
    if a.own_rank >= 0 and fault != "own_mailbox_read":
        parts[a.own_rank] = _combined(a, order, fault, in_order)
    if fault == "offset_32_bit":
        parts[2] = parts[0]
    if fault == "minus_zero_unfilled":
        missing = ((a.latent == 0) & torch.signbit(a.latent)).any(-1)
        parts = [torch.where(m[:, None], p.roll(1, 0), p) for m, p in zip(missing, parts, strict=True)]
    if fault == "nan_dropped":
        parts = [p.nan_to_num(0.0) for p in parts]
    if fault == "pad_row_read":
        parts = [torch.cat([p[:-1], _beyond(a.latent[r])[None]]) for r, p in enumerate(parts)]
    parts = _ranks(parts, fault)
    if in_order or fault:
        total = _chain(parts, rounded=fault == "latent_in_bf16")
    else:
        total = order.sum(torch.stack(parts), 0)
    return total if fault == "z_not_rounded" else _bf16(total)


def _ranks(parts: list[Tensor], fault: str) -> list[Tensor]:
    if fault == "rank_left_out":
        return parts[:-1]
    if fault == "rank_twice":
        return [*parts, parts[0]]
    if fault == "rank_order_reversed":
        return parts[::-1]
    return parts[: len(parts) // 2] if fault == "two_ranks_fewer" else parts


def _beyond(rows: Tensor) -> Tensor:
    """The row that lies one pitch behind the last one in memory."""
    last = rows[-1]
    return last.as_strided(last.shape, (1,), last.storage_offset() + rows.stride(0)).float()


def _combined(a: MoeTailArguments, order: Order, fault: str, in_order: bool) -> Tensor:
    weights = a.weights.float()
    slots = a.rows.unflatten(0, (-1, weights.shape[1])).float()
    if fault == "slots_of_next_row":
        slots = slots.roll(-1, 0)
    if fault == "weights_swapped":
        weights = weights[:, [1, 0, *range(2, weights.shape[1])]]
    if fault == "weights_normalised":
        weights = weights / weights.sum(-1, keepdim=True)
    terms = slots * weights.unsqueeze(-1)
    parts = list(terms.unbind(1))[: -1 if fault == "slot_left_out" else None]
    total = _chain(parts, fault == "slots_in_bf16") if in_order or fault else order.sum(terms, 1)
    return total if fault == "combined_not_rounded" else _bf16(total)


def _norm(a: MoeTailArguments, z: Tensor, order: Order, fault: str, rounded: bool) -> Tensor:
    squares = z * z
    if fault == "square_overflows":
        squares = squares.clamp(max=65504.0)
    if rounded and fault not in ("squares_not_rounded", "small_form_squares"):
        squares = _bf16(squares)
    if fault == "k_tail_not_in_norm":
        squares = squares[:, :-8]
    total = order.sum(squares, -1)[:, None]
    if fault == "square_sum_bf16":
        total = _chain([part.sum(-1, keepdim=True) for part in squares.split(32, -1)], rounded=True)
    width = z.shape[-1]
    if fault == "mean_over_padded":
        width = 1 << width.bit_length()
    mean = total * (1.0 / width)
    eps = {"eps_1e-6": 1e-6, "eps_missing": 0.0}.get(fault, a.eps)
    inverse = 1 / (torch.sqrt(mean) + eps) if fault == "eps_outside_root" else torch.rsqrt(mean + eps)
    gamma = a.gamma.float()
    if fault == "gamma_plus_one":
        gamma = 1 + gamma
    if fault == "gamma_shifted":
        gamma = gamma.roll(1)
    scaled = _bf16(z * inverse) if fault == "normed_before_gamma" else z * inverse
    return scaled * gamma if fault == "normed_not_rounded" else _bf16(scaled * gamma)


def _up(a: MoeTailArguments, normed: Tensor, order: Order, fault: str) -> Tensor:
    shards = [shard.float() for shard in a.up.unbind(0)]
    if fault == "other_ranks_up":
        shards[1] = shards[0]
    if fault == "up_rows_swizzled":
        shards[0] = torch.cat([shards[0][8:16], shards[0][:8], shards[0][16:]])
    weight = torch.cat(shards)
    if fault in ("slice_lost", "slice_bf16"):
        parts = [x @ w.T for x, w in zip(normed.chunk(8, -1), weight.chunk(8, -1), strict=True)]
        up = _chain(parts[:-1]) if fault == "slice_lost" else _chain([_bf16(p) for p in parts])
    else:
        up = order.matmul(normed, weight)
    return up if fault == "up_not_rounded" else _bf16(up)


def _finish(a: MoeTailArguments, up: Tensor, order: Order, fault: str, in_order: bool) -> None:
    parts = list(a.shared.float().unbind(0))
    if fault == "shared_lost":
        parts = parts[1:]
    if in_order or fault:
        shared = _chain(parts, rounded=fault == "shared_in_bf16")
    else:
        shared = order.sum(torch.stack(parts), 0)
    if fault != "shared_not_rounded":
        shared = _bf16(shared)
    if fault == "shared_columns_off":
        shared = shared.roll(a.up.shape[1], -1)
    out = (up + shared + 0.0).bfloat16()
    if fault == "nan_spreads":
        out[out.isnan().any(-1).roll(1, 0)] = float("nan")
    a.out.copy_(_rows(out, fault) + 0.0)
    if fault == "writes_past_row":
        last = a.out[-1]
        last.as_strided((8,), (1,), last.storage_offset() + last.shape[0]).zero_()


def _rows(out: Tensor, fault: str) -> Tensor:
    if fault == "last_odd_row" and out.shape[0] % 2:
        out[-1] = out[-2]
    if fault == "rows_swapped":
        out[:2] = out[:2].flip(0)
    if fault == "stale_fragment":
        out[0, 8:16] = out[1, 8:16]
    return out


def faults() -> Iterator[Fault]:
    """Each fault with eight ranks (three where offsets are wide), three or five rows, small widths."""
    for name, (what, kind, regime) in FAULTS.items():
        shape = {"ranks": 3 if regime == "wide_offsets" else 8, "rows": 5, "latent": 512, "channels": 48}
        case = Case.of("moe_tail", regime, 7, **shape, own=2 if regime == "combine" else -1)
        function = partial(run, order=LIBRARY, fault=name, profile="specialized")
        yield Fault(name, what, case, "specialized", function, kind)
