"""Latent attention in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel: the keys of a row are cut into ``order.split``
splits, each with its own maximum, sum and mean, which are merged at the end. ``profile`` ``specialized``
works in base two with log2(e) folded into the scale, ``stock`` with natural exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.mla.attention_arguments import MlaAttentionArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

_BASE = {"requests": 3, "tokens": 1, "heads": 6, "page": 32, "length": 250}
# Where a fault is planted: regime and what is special about the shape.
_CASES: dict[str, tuple[str, dict[str, int]]] = {
    "typical": ("typical", {}),
    "verify": ("typical", {"tokens": 4}),
    "unequal": ("unequal", {}),
    "peaked": ("peaked", {}),
    "flat": ("flat", {"requests": 1, "length": 700}),
    "boundaries": ("boundaries", {"requests": 8}),
    "shared": ("shared_pages", {}),
    "padding": ("padding", {}),
    "poisoned": ("poisoned", {}),
    "nan": ("nan_request", {}),
    "wide": ("wide_offsets", {}),
}

# Fault -> (what is wrong, its kind, where it is planted).
FAULTS = {
    "causal_missing": ("every new token sees all of them", "F31", "verify"),
    "causal_short": ("every row sees one key less: not its own", "F31", "verify"),
    "causal_of_first": ("all rows of a request have the bound of the first", "F31", "verify"),
    "tokens_swapped": ("the rows of a request in reverse order", "F31", "verify"),
    "one_key_more": ("the position behind the last is attended to", "F24", "boundaries"),
    "partial_page_lost": ("the partial last page is left out", "F24", "boundaries"),
    "page_size_halved": ("positions divided by half the page size", "F24", "boundaries"),
    "one_more_page_at_a_boundary": ("at an exact page boundary one page less", "F05", "boundaries"),
    "lone_key_of_a_page": ("a page with one key is left out", "F05", "boundaries"),
    "pages_in_order": ("pages taken to follow the first one", "F24", "shared"),
    "table_of_other_request": ("the block table row of the next request", "F27", "shared"),
    "first_key_lost": ("the first position is left out", "F05", "typical"),
    "scores_latent_only": ("scores over 512 columns for 576", "F01", "typical"),
    "values_shifted": ("values from columns 64 to 576", "F01", "typical"),
    "heads_rotated": ("every head's row goes to the next head", "F01", "typical"),
    "scale_of_width": ("softmax scale 576**-0.5 for 192**-0.5", "F53", "typical"),
    "k_scale_missing": ("the result is not multiplied with k_scale", "F18", "typical"),
    "q_scale_missing": ("the softmax scale lacks q_scale", "F18", "typical"),
    "k_scale_inverted": ("the softmax scale has 1 / k_scale", "F18", "typical"),
    "base_two": ("exponentials of base two without log2(e)", "F02", "typical"),
    "weights_bf16": ("weights rounded to BF16 before the value sum", "F06", "flat"),
    "weights_fp8": ("weights rounded to E4M3 before the value sum", "F06", "flat"),
    "accumulator_bf16": ("value sum rounded to BF16 every 64 keys", "F06", "flat"),
    "scores_bf16": ("scores rounded to BF16", "F06", "typical"),
    "partials_bf16": ("partial rows of the splits stored in BF16", "F06", "typical"),
    "denominator_short": ("the sum of exponentials lacks the last key", "F06", "flat"),
    "merge_equal": ("splits merged with equal weights", "F07", "unequal"),
    "merge_without_maximum": ("splits merged by their sums alone, not their maxima", "F07", "unequal"),
    "merge_wrong_base": ("log-sums of the splits in the other base", "F07", "unequal"),
    "split_lost": ("the last split is not merged", "F07", "unequal"),
    "split_twice": ("one split is merged twice", "F07", "unequal"),
    "split_of_other_head": ("one split's partial row comes from another head", "F07", "unequal"),
    "no_rescale": ("the accumulator is not rescaled at a new maximum", "F07", "unequal"),
    "no_maximum": ("exponentials without the maximum", "F03", "peaked"),
    "weights_times_mask": ("unowned positions weighed 0 instead of left out", "F51", "poisoned"),
    "tail_unmasked": ("all of the last page is attended to", "F04", "poisoned"),
    "padding_unwritten": ("rows of padding requests are not written", "F08", "padding"),
    "rows_after_padding_lost": ("rows behind a padding request hold zeros", "F45", "padding"),
    "maximum_of_all_heads": ("one maximum for all heads: a NaN reaches them all", "F51", "nan"),
    "offset_32_bits": ("byte offsets of pages wrap at 2**31", "F50", "wide"),
}  # fmt: skip


def faults() -> Iterator[Fault]:
    for number, (name, (what, kind, place)) in enumerate(FAULTS.items()):
        regime, special = _CASES[place]
        case = Case.of("mla_attention", regime, 40 + number % 4, **(_BASE | special))
        profile = ("stock", "specialized")[number % 2]
        function = partial(run, order=LIBRARY, fault=name, profile=profile)
        yield Fault(name, what, case, profile, function, kind)


def run(a: MlaAttentionArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """One attention step, in place, wrong in the way ``fault`` says."""
    query = a.query.view(torch.float8_e4m3fn).float()
    for request, length in enumerate(a.lengths.tolist()):
        first = request * a.tokens
        if length == 0:
            if fault != "padding_unwritten":
                a.out[first : first + a.tokens] = 0
            continue
        for t in range(a.tokens):
            keys = _keys(a, request, _seen(a, length, t, fault), fault)
            values = keys[:, 64:] if fault == "values_shifted" else keys[:, :512]
            scores = _scores(a, query[first + t], keys, order, fault, profile)
            row = attend(scores, values, order, profile == "specialized", fault)[0]
            row = row if fault == "k_scale_missing" else row * a.k_scale
            at = first + a.tokens - 1 - t if fault == "tokens_swapped" else first + t
            a.out[at] = row.roll(1, 0) if fault == "heads_rotated" else row
    if fault == "rows_after_padding_lost":
        empty = (a.lengths == 0).nonzero()[0, 0] * a.tokens
        a.out[empty - 1] = 0


def _seen(a: MlaAttentionArguments, length: int, t: int, fault: str) -> int:
    """How many keys row ``t`` sees."""
    page = a.cache.shape[1]
    seen = length - a.tokens + 1 + t
    changed = {
        "causal_missing": length,
        "causal_short": max(seen - 1, 1),
        "causal_of_first": length - a.tokens + 1,
        "one_key_more": seen + 1,
        "partial_page_lost": seen - seen % page or seen,
        "one_more_page_at_a_boundary": seen - page if seen % page == 0 and seen > page else seen,
        "lone_key_of_a_page": seen - 1 if seen % page == 1 and seen > 1 else seen,
    }
    return changed.get(fault, seen)


def _keys(a: MlaAttentionArguments, request: int, seen: int, fault: str) -> Tensor:
    """Keys of the first ``seen`` positions, in FP32."""
    page = a.cache.shape[1]
    position = torch.arange(seen, device=a.cache.device)
    if fault in ("tail_unmasked", "weights_times_mask"):
        position = torch.arange(-(-seen // page) * page, device=a.cache.device)
    if fault == "first_key_lost" and seen > 1:
        position = position[1:]
    unit = page // 2 if fault == "page_size_halved" else page
    row = a.block_table[
        (request + 1) % len(a.lengths) if fault == "table_of_other_request" else request
    ].long()
    place = (position // unit).clamp(max=len(row) - 1)
    pages = row[place]
    if fault == "pages_in_order":
        pages = (row[0] + place) % a.cache.shape[0]
    if fault == "offset_32_bits":
        pages = pages % 2  # pages lie 2**30 bytes apart: page 2 begins at 2**31
    return a.cache[pages, position % unit].view(torch.float8_e4m3fn).float()


def _scores(
    a: MlaAttentionArguments, query: Tensor, keys: Tensor, order: Order, fault: str, profile: str
) -> Tensor:
    """Scaled scores [head, key]; in base two with log2(e) in the scale if specialised."""
    scale = 192**-0.5 * a.q_scale * a.k_scale
    if fault == "scale_of_width":
        scale = 576**-0.5 * a.q_scale * a.k_scale
    if fault == "q_scale_missing":
        scale = 192**-0.5 * a.k_scale
    if fault == "k_scale_inverted":
        scale = 192**-0.5 * a.q_scale / a.k_scale
    if profile == "specialized" and fault != "base_two":
        scale = scale * math.log2(math.e)
    if fault == "base_two" and profile == "stock":
        scale = scale * math.log(2)
    width = 512 if fault == "scores_latent_only" else query.shape[-1]
    scores = order.matmul(query[..., :width], keys[:, :width]) * scale
    if fault == "weights_times_mask":
        unseen = torch.isnan(keys).all(-1)
        scores = torch.where(unseen, -torch.inf, scores)
    return scores.bfloat16().float() if fault == "scores_bf16" else scores


def attend(scores: Tensor, values: Tensor, order: Order, two: bool, fault: str = "") -> tuple[Tensor, Tensor]:
    """Softmax mean of ``values`` [key, d] over the keys [head, d], and log2 of the exponentials' sum [head].

    Split by split, merged with weights relative to the largest maximum.
    """
    exponential = torch.exp2 if two else torch.exp
    count = max(order.split, 4) if fault else order.split
    if fault == "no_rescale":
        return _without_rescale(scores, values, exponential), scores[:, 0]
    maxima, sums, rows = [], [], []
    for s, v in zip(scores.tensor_split(count, -1), values.tensor_split(count, 0), strict=True):
        if s.shape[-1] == 0:
            continue
        top = s.amax(-1, keepdim=True)
        if fault == "maximum_of_all_heads":
            top = scores.amax().expand_as(top)
        if fault == "no_maximum":
            top = torch.zeros_like(top)
        e = exponential(s - top)
        maxima.append(top)
        sums.append(order.sum(e[:, :-1] if fault == "denominator_short" else e, -1)[:, None])
        rows.append(_weighted(e, v, order, fault))
    return _merged(torch.stack(maxima), torch.stack(sums), torch.stack(rows), order, two, fault)


def _weighted(e: Tensor, v: Tensor, order: Order, fault: str) -> Tensor:
    if fault == "weights_bf16":
        e = e.bfloat16().float()
    if fault == "weights_fp8":
        e = e.to(torch.float8_e4m3fn).float()
    if fault == "accumulator_bf16":
        total = torch.zeros(e.shape[0], v.shape[1], device=v.device)
        for part_e, part_v in zip(e.split(64, -1), v.split(64, 0), strict=True):
            total = (total + part_e @ part_v).bfloat16().float()
        return total
    row = e @ v
    return row.bfloat16().float() if fault == "partials_bf16" else row


def _merged(
    maxima: Tensor, sums: Tensor, rows: Tensor, order: Order, two: bool, fault: str
) -> tuple[Tensor, Tensor]:
    """Splits [split, head, ...] in one row. ``sums`` and ``rows`` are relative to ``maxima``."""
    exponential = torch.exp2 if two else torch.exp
    if fault == "merge_wrong_base":
        exponential = torch.exp if two else torch.exp2
    top = maxima.amax(0)
    weights = exponential(maxima - top)
    if fault == "merge_without_maximum":
        weights = torch.ones_like(weights)
    if fault == "merge_equal":
        rows, sums = rows / sums, torch.ones_like(sums)
        weights = torch.ones_like(weights)
    if fault == "split_of_other_head":
        rows[1] = rows[1].roll(1, 0)
    if fault == "split_lost":
        weights[-1] = 0
    if fault == "split_twice":
        weights[1] *= 2
    total = order.sum(weights * sums, 0)
    log_sum = torch.log2(total) + top * (1.0 if two else math.log2(math.e))
    return order.sum(weights * rows, 0) / total, log_sum[:, 0]


def _without_rescale(scores: Tensor, values: Tensor, exponential: object) -> Tensor:
    """Blocks of 32 keys weighed against the largest score so far; what came before is never scaled down."""
    assert callable(exponential)
    top = torch.stack([block.amax(-1) for block in scores.split(32, -1)], -1).cummax(-1).values
    e = exponential(scores - top.repeat_interleave(32, -1)[:, : scores.shape[-1]])
    return (e @ values) / e.sum(-1, keepdim=True)
