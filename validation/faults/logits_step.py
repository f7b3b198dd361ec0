"""The final norm and the logits in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel in the given summation order. Both profiles
round alike: the norm once, the product, and the scaled logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.vocabulary.logits import LogitsArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, kind, regime of its case, norm: 0 of the sampled rows, 1 of all, 2 done before).
FAULTS = {
    "eps_1e-6": ("norm eps 1e-6 for 1e-5", "F12", "typical", 0),
    "eps_missing_at_zero": ("norm without eps: a row of zeros divides by 0", "F12", "zero_row", 0),
    "eps_outside_root": ("eps added after the square root", "F12", "small", 0),
    "mean_of_padded_width": ("mean over the next power of two of columns", "F12", "typical", 0),
    "gamma_plus_one": ("gamma taken as 1 + w", "F12", "typical", 0),
    "gamma_shifted": ("gamma shifted by one column", "F01", "typical", 0),
    "cast_twice": ("normalised row rounded before gamma and after it", "F12", "typical", 1),
    "norm_not_rounded": ("normalised rows kept in FP32 for the product", "F06", "typical", 0),
    "squares_bf16": ("sum of squares in BF16, chunk by chunk", "F06", "outliers", 0),
    "normalised_twice": ("rows that are normalised already are normalised again", "F12", "typical", 2),
    "not_normalised": ("all rows counted as normalised, but they are not", "F12", "typical", 0),
    "hidden_not_written": ("normalised rows are not given back", "F08", "typical", 1),
    "hidden_only_wanted": ("only the wanted rows are normalised", "F08", "typical", 1),
    "last_chunk_lost": ("rows beyond the last whole chunk of 4 stay as they were", "F05", "typical", 1),
    "hidden_in_place": ("the mixture is overwritten by the normalised rows", "F09", "typical", 0),
    "first_rows": ("the first rows instead of the wanted ones", "F16", "unwanted", 0),
    "rows_sorted": ("wanted rows in ascending order", "F16", "typical", 0),
    "row_after": ("the row after each wanted one", "F45", "unwanted", 0),
    "repeat_dropped": ("a row wanted twice gets zeros the second time", "F16", "unwanted", 0),
    "unwanted_leak": ("the norm's sum also takes the row after", "F51", "unwanted", 0),
    "nan_spreads": ("a NaN row spoils every sample", "F51", "nan_row", 0),
    "nan_removed": ("NaN logits become 0", "F51", "nan_row", 0),
    "bf16_accumulate": ("accumulator rounded to BF16 every 512 of K", "F06", "typical", 0),
    "bf16_partials": ("split-K partials stored in BF16", "F06", "cancelling", 0),
    "fp16_logits": ("logits pass through FP16", "F06", "typical", 0),
    "truncated": ("stored by truncation", "F06", "typical", 0),
    "last_k_lost": ("the last 8 of K are not added", "F04", "typical", 2),
    "split_twice": ("a quarter of K is added twice", "F05", "typical", 0),
    "k_swizzled": ("two columns of lm_head swapped", "F01", "one_hot", 2),
    "groups_swizzled": ("two groups of 8 of K swapped in lm_head only", "F21", "one_hot", 2),
    "shards_swapped": ("the shards of ranks 0 and 1 change places", "F48", "typical", 0),
    "last_shard_repeated": ("the last rank gives the shard of the rank before", "F48", "typical", 0),
    "copy_rounded_again": ("one rank's copy goes through E4M3", "F48", "typical", 0),
    "copy_one_ulp": ("one logit of the last rank's copy is one step off", "F48", "typical", 0),
    "copy_unwritten": ("the last rank's copy is not written", "F08", "typical", 0),
    "padding_joined": ("every shard gives up its own share of the padding", "F24", "padded_vocab", 0),
    "padding_written": ("the padded vocabulary is written too", "F09", "padded_vocab", 0),
    "padding_read": ("the last logit is that of the first padding row", "F04", "padded_vocab", 0),
    "last_tile_lost": ("the last 8 logits are zero", "F05", "typical", 0),
    "scale_before_rounding": ("scale applied to the FP32 sums", "F15", "typical", 0),
    "scale_twice": ("scale applied twice", "F15", "typical", 0),
    "scale_inverted": ("logits divided by the scale", "F15", "typical", 0),
    "scale_missing": ("scale not applied", "F15", "typical", 0),
    "one_sample_other_path": ("one sample of many is computed with truncated products", "F31", "typical", 0),
    "offset_wraps": ("row offsets of lm_head wrap at 2**31 elements", "F50", "wide_offsets", 0),
}


def run(a: LogitsArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """hidden and out, in place, wrong in the way ``fault`` says."""
    rows = _wanted(a, order, _indices(a, fault), fault)
    head = _head(a, fault)
    logits = _stored(_product(rows, head, order, fault), a, fault)
    if fault == "repeat_dropped":
        logits[-1] = 0
    if fault == "nan_removed":
        logits = torch.where(logits.isnan(), torch.zeros_like(logits), logits)
    if fault == "nan_spreads":
        logits[:] = torch.where(logits.isnan().any(), torch.full_like(logits, float("nan")), logits)
    if fault == "last_tile_lost":
        logits[:, -8:] = 0
    _publish(a, logits, fault)


def _indices(a: LogitsArguments, fault: str) -> Tensor:
    wanted = a.rows_wanted
    if fault == "first_rows":
        return torch.arange(len(wanted), device=wanted.device)
    if fault == "rows_sorted":
        return wanted.sort().values
    return (wanted + 1) % len(a.x) if fault == "row_after" else wanted


def _wanted(a: LogitsArguments, order: Order, wanted: Tensor, fault: str) -> Tensor:
    """The rows that are multiplied by lm_head. FP32 [sample, column]"""
    if a.norm == "done":
        return _normed(a, a.x[wanted], order, fault) if fault == "normalised_twice" else a.x[wanted].float()
    if fault == "not_normalised":
        return a.x[wanted].float()
    if a.norm == "sampled":
        x = a.x[wanted]
        if fault == "unwanted_leak":
            x = x + 0.0 * a.x[(wanted + 1) % len(a.x)]
        rows = _normed(a, x, order, fault)
        if fault == "hidden_in_place":
            a.x[wanted] = rows.bfloat16()
        return rows
    every = _normed(a, a.x, order, fault)
    given = torch.zeros(len(a.x), dtype=torch.bool, device=a.x.device)
    if fault == "hidden_only_wanted":
        given[wanted] = True
    elif fault == "last_chunk_lost":
        given[: len(a.x) // 4 * 4] = True
    elif fault != "hidden_not_written":
        given[:] = True
    a.hidden[given] = every[given].bfloat16()
    return every[wanted]


def _normed(a: LogitsArguments, x: Tensor, order: Order, fault: str) -> Tensor:
    x = x.float()
    width = x.shape[-1]
    if fault == "mean_of_padded_width":
        width = 1 << (width - 1).bit_length()
    mean = _squares(x, order, fault)[:, None] * (1.0 / width)
    eps = 1e-6 if fault == "eps_1e-6" else 0.0 if fault == "eps_missing_at_zero" else a.eps
    inverse = 1 / (mean.sqrt() + eps) if fault == "eps_outside_root" else torch.rsqrt(mean + eps)
    gamma = torch.ones_like(x[0]) if fault == "normalised_twice" else a.gamma.float()
    if fault == "gamma_plus_one":
        gamma = gamma + 1
    if fault == "gamma_shifted":
        gamma = gamma.roll(1)
    normed = x * inverse
    if fault == "cast_twice":
        normed = normed.bfloat16().float()
    normed = normed * gamma
    return normed if fault == "norm_not_rounded" else normed.bfloat16().float()


def _squares(x: Tensor, order: Order, fault: str) -> Tensor:
    squares = x * x
    if fault != "squares_bf16":
        return order.sum(squares, -1)
    total = torch.zeros_like(squares[:, 0])
    for chunk in squares.split(64, -1):
        total = (total + chunk.sum(-1)).bfloat16().float()
    return total


def _head(a: LogitsArguments, fault: str) -> Tensor:
    """lm_head of the whole vocabulary. FP32 [token, column]"""
    ranks, shard, width = a.weight.shape
    weight = a.weight
    if fault == "offset_wraps":
        stride = weight.stride(1)
        weight = weight[:, (torch.arange(shard, device=weight.device) * stride % 2**31) // stride]
    if fault in ("shards_swapped", "last_shard_repeated"):
        order = list(range(ranks))
        order[0], order[1] = (1, 0) if fault == "shards_swapped" else (0, 1)
        order[-1] = ranks - 2 if fault == "last_shard_repeated" else order[-1]
        weight = weight[order]
    if fault == "padding_joined":
        share = a.org_vocab // ranks
        kept = torch.cat([weight[:, :share].reshape(-1, width), weight[-1, share:]])
        return kept[: a.org_vocab].float()
    head = weight.reshape(-1, width).float()
    if fault == "padding_read":
        return torch.cat([head[: a.org_vocab - 1], head[a.org_vocab : a.org_vocab + 1]])
    head = head[: a.org_vocab]
    if fault == "k_swizzled":
        head = head.clone()
        head[:, 0::2], head[:, 1::2] = head[:, 1::2].clone(), head[:, 0::2].clone()
    if fault == "groups_swizzled":
        head = head.unflatten(1, (-1, 2, 8)).flip(2).flatten(1)
    return head


def _product(x: Tensor, head: Tensor, order: Order, fault: str) -> Tensor:
    if fault == "bf16_accumulate":
        total = torch.zeros(len(x), len(head), device=x.device)
        for part_x, part_w in zip(x.split(512, -1), head.split(512, -1), strict=True):
            total = (total + part_x @ part_w.T).bfloat16().float()
        return total
    if fault in ("bf16_partials", "split_twice"):
        parts = [p @ w.T for p, w in zip(x.tensor_split(4, -1), head.tensor_split(4, -1), strict=True)]
        if fault == "bf16_partials":
            parts = [p.bfloat16().float() for p in parts]
        return torch.stack([*parts, *(parts[1:2] if fault == "split_twice" else ())]).sum(0)
    if fault == "last_k_lost":
        x, head = x[:, :-8], head[:, :-8]
    total = order.matmul(x, head)
    if fault == "one_sample_other_path":
        total[0] = _cut(total[0])
    return total


def _cut(x: Tensor) -> Tensor:
    """FP32 cut to BF16 without rounding."""
    return (x.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)


def _stored(total: Tensor, a: LogitsArguments, fault: str) -> Tensor:
    """Rounded, then scaled and rounded again where there is a scale. BF16"""
    if fault == "truncated":
        total = _cut(total)
    if fault == "fp16_logits":
        total = total.half().float()
    scale = {"scale_twice": a.scale**2, "scale_inverted": 1 / a.scale, "scale_missing": 1.0}.get(
        fault, a.scale
    )
    if fault == "scale_before_rounding":
        return (total * scale).bfloat16()
    logits = total.bfloat16()
    return logits if scale == 1.0 else (logits.float() * scale).bfloat16()


def _publish(a: LogitsArguments, logits: Tensor, fault: str) -> None:
    """Every rank's copy."""
    ranks = len(a.out)
    for rank in range(ranks):
        if fault == "copy_unwritten" and rank == ranks - 1:
            continue
        a.out[rank] = logits
    if fault == "copy_rounded_again":
        a.out[1] = logits.float().to(torch.float8_e4m3fn).bfloat16()
    if fault == "copy_one_ulp":
        a.out[-1, 0].view(torch.int16)[3] ^= 1
    if fault == "padding_written":
        padded = a.weight.shape[0] * a.weight.shape[1]
        whole = a.out[0].as_strided((len(logits), padded), a.out.stride()[1:], a.out.storage_offset())
        whole[:, a.org_vocab :] = 0


def faults() -> Iterator[Fault]:
    """Every fault in the case where it must be noticed."""
    for name, (what, kind, regime, norm) in FAULTS.items():
        shape = {"rows": 6, "wanted": 5, "ranks": 8, "shard": 24, "width": 1008, "org": 187}
        scale = 3 if name.startswith("scale") else 0
        if regime == "one_hot":
            shape |= {"rows": 6, "wanted": 6}
        if regime == "padded_vocab":
            shape |= {"org": 160}
        if regime == "wide_offsets":
            shape |= {"ranks": 1, "shard": 4, "org": 3, "width": 320}
        case = Case.of("logits", regime, 7, **shape, norm=norm, scale=scale)
        yield Fault(name, what, case, "stock", partial(run, order=LIBRARY, fault=name), kind)
