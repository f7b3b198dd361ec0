"""Sharded latent attention in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel: keys are assigned to ranks position by
position, each rank attends to its own with all heads, and the rows are merged by their log-sums. ``stock``
rounds every rank's corrected row before the sum; ``specialized`` adds in FP32 in rank order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.mla.dcp_arguments import MlaDcpArguments
from validation.faults.fault import Fault
from validation.faults.mla_attention_step import attend
from validation.faults.orders import LIBRARY, Order

_BASE = {"requests": 3, "tokens": 1, "ranks": 4, "heads": 2, "page": 32, "length": 300, "interleave": 1}
_CASES: dict[str, tuple[str, dict[str, int]]] = {
    "typical": ("typical", {}),
    "chunks": ("typical", {"interleave": 4}),
    "verify": ("typical", {"tokens": 4}),
    "unequal": ("unequal", {}),
    "peaked": ("peaked", {}),
    "flat": ("flat", {}),
    "short": ("short", {"requests": 6, "tokens": 3, "ranks": 8}),
    "boundaries": ("boundaries", {"requests": 6}),
    "padding": ("padding", {"requests": 4}),
    "poisoned": ("poisoned", {"requests": 6}),
    "nan": ("nan_request", {}),
    "wide": ("wide_offsets", {"ranks": 2}),
}

# Fault -> (what is wrong, its kind, where it is planted).
FAULTS = {
    "interleave_ignored": ("ownership in turns of one position", "F48", "chunks"),
    "causal_by_local_position": ("rows see all local keys but the last new ones", "F48", "verify"),
    "causal_missing": ("every row sees all local keys", "F31", "verify"),
    "causal_short": ("a row does not see its own position", "F31", "verify"),
    "causal_of_first": ("all rows of a request have the bound of the first", "F31", "verify"),
    "global_length": ("local shards read to the full length", "F48", "typical"),
    "one_local_key_less": ("the last local key of every rank is left out", "F48", "typical"),
    "own_shard_only": ("a head is merged from its owner's shard alone", "F48", "typical"),
    "same_shard_everywhere": ("every rank attends to rank 0's keys", "F48", "typical"),
    "empty_shard_weighs": ("a shard without keys has log-sum 0 and a zero row", "F48", "short"),
    "empty_row_nan": ("a row without local keys is 0 / 0, and weighed 0", "F48", "short"),
    "empty_row_stale": ("a row without local keys takes part with the row before", "F08", "short"),
    "first_row_unmasked": ("a row without local keys sees the first local one", "F24", "short"),
    "last_page_lost": ("the partial last page of every shard is left out", "F24", "boundaries"),
    "lone_key_of_a_page": ("a local page with one key is left out", "F05", "boundaries"),
    "one_key_more": ("one position behind the last local key is attended to", "F24", "boundaries"),
    "table_of_rank_0": ("all ranks use rank 0's block table", "F01", "typical"),
    "heads_of_other_rank": ("heads are handed to the next owner", "F01", "typical"),
    "k_scale_missing": ("rows are not multiplied with k_scale", "F18", "typical"),
    "q_scale_missing": ("the softmax scale lacks q_scale", "F18", "typical"),
    "merge_equal": ("shards merged with equal weights", "F07", "unequal"),
    "merge_by_counts": ("shards weighed by their number of keys", "F07", "unequal"),
    "merge_natural": ("log2 sums merged with natural exponentials", "F02", "unequal"),
    "sums_natural": ("natural log sums merged with base two", "F02", "unequal"),
    "sums_without_maximum": ("log-sums lack the maximum", "F07", "unequal"),
    "merge_without_maximum": ("exponentials of the log-sums without their maximum", "F07", "peaked"),
    "not_normalised": ("weighed relative to the largest, not divided by their sum", "F07", "unequal"),
    "shard_lost": ("the last rank's shard is not merged", "F07", "unequal"),
    "shard_twice": ("one rank's shard is merged twice", "F07", "unequal"),
    "sum_of_other_row": ("log-sums of the head before", "F07", "unequal"),
    "sums_bf16": ("log-sums stored in BF16", "F06", "flat"),
    "sum_bf16": ("rows added in BF16, rank by rank", "F06", "flat"),
    "rows_not_rounded": ("rank rows keep FP32", "F06", "flat"),
    "weights_bf16": ("the ranks' weights in BF16", "F06", "flat"),
    "padding_not_zero": ("rows of padding requests hold the last live row", "F08", "padding"),
    "padding_nan": ("rows of padding requests are 0 / 0", "F45", "padding"),
    "tail_unmasked": ("all of the last local page is attended to", "F04", "poisoned"),
    "weights_times_mask": ("unowned positions weighed 0 instead of left out", "F51", "poisoned"),
    "nan_to_all_heads": ("one maximum for all heads: a NaN reaches them all", "F51", "nan"),
    "offset_32_bits": ("byte offsets of ranks wrap at 2**31", "F50", "wide"),
}  # fmt: skip


def faults() -> Iterator[Fault]:
    for number, (name, (what, kind, place)) in enumerate(FAULTS.items()):
        regime, special = _CASES[place]
        case = Case.of("mla_dcp", regime, 40 + number % 4, **(_BASE | special))
        profile = ("stock", "specialized")[number % 2]
        function = partial(run, order=LIBRARY, fault=name, profile=profile)
        yield Fault(name, what, case, profile, function, kind)


def run(a: MlaDcpArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """One sharded attention step, in place, wrong in the way ``fault`` says."""
    query = a.query.view(torch.float8_e4m3fn).float()
    stale = torch.ones_like(query[0, :, :512])
    for row in range(query.shape[0]):
        request, t = divmod(row, a.tokens)
        total = int(a.totals[request])
        if total == 0:
            empty = {"padding_not_zero": 1.0, "padding_nan": float("nan")}.get(fault, 0.0)
            a.out[row] = empty * stale
            continue
        rows, sums, counts = [], [], []
        for rank in range(a.ranks):
            local = _local(a, rank, total, t, fault)
            values, log_sum = _shard(a, query[row], rank, request, local, order, fault)
            if local == 0:
                values, log_sum = _empty(values, log_sum, stale, fault)
            rows.append(values)
            sums.append(log_sum)
            counts.append(local)
        stale = rows[0]
        merged = _merged(torch.stack(rows), torch.stack(sums), counts, order, fault, profile)
        a.out[row] = merged.roll(merged.shape[0] // a.ranks, 0) if fault == "heads_of_other_rank" else merged


def _local(a: MlaDcpArguments, rank: int, total: int, t: int, fault: str) -> int:
    """How many keys of ``rank`` row ``t`` sees: those of positions before its bound that are the rank's."""
    page = a.cache.shape[2]
    turn = 1 if fault == "interleave_ignored" else a.interleave
    owner = torch.arange(total) // turn % a.ranks
    bound = total - a.tokens + 1 + t
    bound -= fault == "causal_short"
    bound = total if fault == "causal_missing" else bound
    bound = total - a.tokens + 1 if fault == "causal_of_first" else bound
    local = int((owner[: max(bound, 0)] == rank).sum())
    mine = int((owner == rank).sum())
    if fault == "causal_by_local_position":
        return max(mine - a.tokens + 1 + t, 0)
    if fault == "last_page_lost" and local > page:
        return local - local % page
    changed = {
        "global_length": min(bound, a.block_table.shape[2] * page),
        "one_local_key_less": max(local - 1, 0),
        "first_row_unmasked": max(local, 1),
        "one_key_more": local + 1,
        "lone_key_of_a_page": local - 1 if local % page == 1 and local > 1 else local,
    }
    return changed.get(fault, local)


def _shard(
    a: MlaDcpArguments, query: Tensor, rank: int, request: int, local: int, order: Order, fault: str
) -> tuple[Tensor, Tensor]:
    """One rank's row [head, 512], rounded to BF16, and its log2 sum [head]; zeros and -inf without keys."""
    if local == 0:
        return torch.zeros_like(query[:, :512]), torch.full_like(query[:, 0], -torch.inf)
    keys = _keys(a, rank, request, local, fault)
    scale = 192**-0.5 * a.k_scale * (1.0 if fault == "q_scale_missing" else a.q_scale)
    scores = order.matmul(query, keys) * (scale * math.log2(math.e))
    if fault == "weights_times_mask":
        scores = torch.where(torch.isnan(keys).all(-1), -torch.inf, scores)
    inner = "maximum_of_all_heads" if fault == "nan_to_all_heads" else ""
    row, log_sum = attend(scores, keys[:, :512], order, True, inner)
    row = row if fault == "k_scale_missing" else row * a.k_scale
    if fault == "sums_natural":
        log_sum = log_sum * math.log(2)
    if fault == "sums_without_maximum":
        log_sum = log_sum - scores.amax(-1)
    if fault == "sums_bf16":
        log_sum = log_sum.bfloat16().float()
    return (row if fault == "rows_not_rounded" else row.bfloat16().float()), log_sum


def _keys(a: MlaDcpArguments, rank: int, request: int, local: int, fault: str) -> Tensor:
    page = a.cache.shape[2]
    position = torch.arange(local, device=a.cache.device)
    if fault in ("tail_unmasked", "weights_times_mask"):
        position = torch.arange(-(-local // page) * page, device=a.cache.device)
    of = 0 if fault == "table_of_rank_0" else rank
    if fault in ("same_shard_everywhere", "offset_32_bits"):
        rank = of = 0  # rank 1 begins 2**31 bytes behind rank 0
    table = a.block_table[of, request].long()
    place = (position // page).clamp(max=len(table) - 1)
    return a.cache[rank, table[place], position % page].view(torch.float8_e4m3fn).float()


def _empty(values: Tensor, log_sum: Tensor, stale: Tensor, fault: str) -> tuple[Tensor, Tensor]:
    if fault == "empty_shard_weighs":
        return values, torch.zeros_like(log_sum)
    if fault == "empty_row_nan":
        return torch.full_like(values, torch.nan), log_sum
    if fault == "empty_row_stale":
        return stale, torch.zeros_like(log_sum)
    return values, log_sum


def _merged(rows: Tensor, sums: Tensor, counts: list[int], order: Order, fault: str, profile: str) -> Tensor:
    """Rows [rank, head, 512] weighed by 2**sums [rank, head]. BF16 [head, 512]"""
    weights = _weights(sums, counts, order, fault)
    if fault == "shard_lost":
        weights = torch.cat([weights[:-1], torch.zeros_like(weights[-1:])])
    if fault == "own_shard_only":
        owner = torch.arange(rows.shape[1]) * rows.shape[0] // rows.shape[1]
        return rows[owner, torch.arange(rows.shape[1])].bfloat16()
    if fault == "shard_twice":
        weights = torch.cat([weights[:1], 2 * weights[1:2], weights[2:]])
    if fault == "weights_bf16":
        weights = weights.bfloat16().float()
    terms = weights[..., None] * rows
    if profile == "stock":
        return order.sum(terms.bfloat16().float(), 0).bfloat16()
    total = terms[0]
    for term in terms[1:]:
        total = total + term
        if fault == "sum_bf16":
            total = total.bfloat16().float()
    return total.bfloat16()


def _weights(sums: Tensor, counts: list[int], order: Order, fault: str) -> Tensor:
    """Share of every rank [rank, head]."""
    if fault == "sum_of_other_row":
        sums = sums.roll(1, 1)
    if fault == "merge_equal":
        return (sums > -torch.inf).float() / max(sum(c > 0 for c in counts), 1)
    if fault == "merge_by_counts":
        return (torch.tensor(counts, device=sums.device) / sum(counts))[:, None].expand_as(sums)
    top = torch.zeros_like(sums[0]) if fault == "merge_without_maximum" else sums.amax(0)
    weights = torch.exp(sums - top) if fault == "merge_natural" else torch.exp2(sums - top)
    return weights if fault == "not_normalised" else weights / order.sum(weights, 0)
