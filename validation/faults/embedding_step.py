"""The embedding in plain torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel: it looks every token up in the joined table,
in FP32, and adds the ranks in the given order. Both profiles round alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.vocabulary.embedding import EmbeddingArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, kind, regime of its case).
FAULTS = {
    "next_row": ("the row after the one named", "F01", "typical"),
    "columns_rolled": ("columns shifted by one", "F01", "typical"),
    "last_columns_lost": ("the last 8 columns are zero", "F05", "typical"),
    "last_token_lost": ("the last token's row is zero", "F05", "typical"),
    "rank_copy_unwritten": ("the last rank's copy is not written", "F08", "typical"),
    "row_beyond_written": ("one row too many is written", "F09", "typical"),
    "repeated_id_lost": ("the second of two equal ids gets zeros", "F16", "typical"),
    "last_rank_left_out": ("the last rank is not summed", "F48", "edges"),
    "rank_zero_twice": ("rank 0 is summed twice", "F48", "typical"),
    "own_part_kept": ("rank 1 ends with its own part instead of the sum", "F48", "typical"),
    "end_inclusive": ("a shard also owns the first row of the next", "F48", "edges"),
    "shard_starts_late": ("a shard's first row is owned by nobody", "F24", "edges"),
    "shard_of_true_vocab": ("shards start at multiples of the unpadded vocabulary's share", "F24", "edges"),
    "last_id_refused": ("the vocabulary's last id counts as invalid", "F24", "edges"),
    "negative_is_row_zero": ("negative ids are clamped to row 0", "F23", "invalid"),
    "negative_from_the_end": ("negative ids count from the end of the vocabulary", "F16", "invalid"),
    "padding_read": ("ids in the padding of the vocabulary are looked up", "F04", "invalid"),
    "beyond_is_last_row": ("ids beyond the vocabulary are clamped to its last row", "F16", "invalid"),
    "invalid_unwritten": ("rows of invalid ids keep old memory", "F08", "invalid"),
    "invalid_repeats_row": ("an invalid id repeats the row before it", "F45", "invalid"),
    "ids_cut_to_32_bits": ("ids are cut to 32 bits before they are checked", "F50", "invalid"),
    "masked_by_product": ("rows of other ranks are multiplied by 0 instead of left out", "F51", "poison"),
    "row_stride_of_width": ("rows are taken to be dense", "F01", "poison"),
    "fp16_sum": ("the sum goes through FP16", "F06", "extreme"),
    "subnormals_flushed": ("subnormal values become zero", "F06", "extreme"),
    "largest_clamped": ("the sum saturates at 2**126", "F06", "extreme"),
    "negative_zero_kept": ("-0.0 is copied where it is summed", "F36", "negative_zero"),
    "zero_made_negative": ("rows of zeros arrive as -0.0", "F36", "negative_zero"),
    "nan_replaced": ("NaN becomes 0", "F51", "nan_row"),
    "nan_spreads": ("a row with a NaN spoils the row after it", "F51", "nan_row"),
    "read_as_int64": ("int32 ids are read in pairs as int64", "F53", "narrow"),
    "wrong_ids_field": ("the ids of the other width are read", "F53", "narrow"),
    "id_stride_ignored": ("ids with gaps are read densely", "F01", "strided"),
    "offset_wraps": ("row offsets wrap at 2**31 elements", "F50", "wide_offsets"),
}


def run(a: EmbeddingArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """out, in place, wrong in the way ``fault`` says."""
    ranks = a.weight.shape[0]
    tokens = _tokens(a, fault)
    parts = torch.stack([_part(a, tokens, rank, fault) for rank in range(ranks)])
    total = _total(parts, order, fault)
    total = _spoiled(a, tokens, total, fault)
    for rank in range(ranks):
        if fault == "rank_copy_unwritten" and rank == ranks - 1:
            continue
        if fault == "own_part_kept" and rank == 1:
            a.out[rank] = parts[rank].bfloat16()
            continue
        kept = torch.zeros_like(tokens, dtype=torch.bool)
        if fault == "invalid_unwritten":
            kept = (tokens < 0) | (tokens >= a.org_vocab)
        a.out[rank, ~kept] = total[~kept]
    if fault == "row_beyond_written":
        _, rows, width = a.out.shape
        beyond = a.out[-1].as_strided((width,), (1,), a.out[-1].storage_offset() + rows * a.out.stride(1))
        beyond.copy_(total[0])


def _tokens(a: EmbeddingArguments, fault: str) -> Tensor:
    tokens = a.tokens
    if fault == "wrong_ids_field":
        tokens = a.ids if a.narrow else a.ids32
    if fault == "id_stride_ignored":
        tokens = tokens.as_strided(tokens.shape, (1,))
    if fault == "read_as_int64":
        low = tokens[0::2].long()
        high = torch.cat([tokens[1::2].long(), low.new_zeros(len(low) - len(tokens[1::2]))])
        pairs = low + (high << 32)
        tokens = torch.cat([pairs, pairs])[: len(tokens)]
    tokens = tokens.long()
    if fault == "negative_is_row_zero":
        tokens = tokens.clamp(min=0)
    if fault == "negative_from_the_end":
        tokens = torch.where((tokens < 0) & (tokens >= -a.org_vocab), tokens + a.org_vocab, tokens)
    if fault == "beyond_is_last_row":
        tokens = tokens.clamp(max=a.org_vocab - 1)
    if fault == "ids_cut_to_32_bits":
        tokens = tokens.to(torch.int32).long()
    if fault == "next_row":
        tokens = torch.where((tokens >= 0) & (tokens + 1 < a.org_vocab), tokens + 1, tokens)
    return tokens


def _part(a: EmbeddingArguments, tokens: Tensor, rank: int, fault: str) -> Tensor:
    """What one rank contributes. FP32 [token, column]"""
    ranks, shard, _ = a.weight.shape
    first = rank * shard
    if fault == "shard_of_true_vocab":
        first = rank * (a.org_vocab // ranks)
    end = first + shard + (fault == "end_inclusive")
    start = first + (fault == "shard_starts_late")
    last = ranks * shard if fault == "padding_read" else a.org_vocab - (fault == "last_id_refused")
    mine = (tokens >= max(start, 0)) & (tokens < min(end, last))
    local = (tokens - first).clamp(0, shard - 1)
    if fault == "offset_wraps":
        local = (local * a.weight.stride(1) % 2**31) // a.weight.stride(1)
    rows = _rows(a.weight[rank], local, fault)
    if fault == "masked_by_product":
        return rows * mine[:, None]
    return torch.where(mine[:, None], rows, torch.zeros_like(rows))


def _rows(shard: Tensor, local: Tensor, fault: str) -> Tensor:
    if fault == "row_stride_of_width":
        shard = shard.as_strided(shard.shape, (shard.shape[1], 1))
    return shard[local].float()


def _total(parts: Tensor, order: Order, fault: str) -> Tensor:
    """The sum over ranks, rounded. BF16 [token, column]"""
    if len(parts) == 1:
        return parts[0].bfloat16()
    if fault == "last_rank_left_out":
        parts = parts[:-1]
    if fault == "rank_zero_twice":
        parts = torch.cat([parts, parts[:1]])
    if fault == "fp16_sum":
        return order.sum(parts.half().float(), 0).half().bfloat16()
    total = order.sum(parts, 0)
    if fault == "negative_zero_kept":
        negative = (torch.signbit(parts) & (parts == 0)).any(0) & (total == 0)
        total = torch.where(negative, torch.full_like(total, -0.0), total)
    if fault == "zero_made_negative":
        empty = (total == 0).all(1, keepdim=True)
        total = torch.where(empty, torch.full_like(total, -0.0), total)
    if fault == "subnormals_flushed":
        total = torch.where(total.abs() < 2.0**-126, torch.zeros_like(total), total)
    if fault == "largest_clamped":
        total = total.clamp(-(2.0**126), 2.0**126)
    return total.bfloat16()


def _spoiled(a: EmbeddingArguments, tokens: Tensor, total: Tensor, fault: str) -> Tensor:
    total = total.clone()
    if fault == "columns_rolled":
        total = total.roll(1, 1)
    if fault == "last_columns_lost":
        total[:, -8:] = 0
    if fault == "last_token_lost":
        total[-1] = 0
    if fault == "nan_replaced":
        total = torch.where(total.isnan(), torch.zeros_like(total), total)
    if fault == "nan_spreads":
        spoiled = total.isnan().any(1).roll(1)
        total[spoiled] = float("nan")
    if fault == "repeated_id_lost":
        earlier = (tokens[:, None] == tokens[None, :]).tril(-1).any(1)
        total[earlier] = 0
    if fault == "invalid_repeats_row":
        invalid = (tokens < 0) | (tokens >= a.org_vocab)
        total = torch.where(invalid[:, None], total.roll(1, 0), total)
    return total


def faults() -> Iterator[Fault]:
    """Every fault in the case where it must be noticed."""
    for name, (what, kind, regime) in FAULTS.items():
        shape = {"rows": 11, "ranks": 8, "shard": 24, "width": 72, "org": 187}
        if regime == "edges":
            shape |= {"rows": 26}
        if regime == "wide_offsets":
            shape = {"rows": 3, "ranks": 2, "shard": 4, "width": 40, "org": 7}
        case = Case.of("embedding", regime, 7, **shape)
        yield Fault(name, what, case, "stock", partial(run, order=LIBRARY, fault=name), kind)
