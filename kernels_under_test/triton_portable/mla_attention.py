"""Latent attention over a paged FP8 cache: below 16 rows and for verify steps, splits and a merge kernel;
from 16 rows on, one kernel in which a tile's last program merges.

The switch is that of the subject's operation 3.8. The number of splits follows from the batch and the
prepared context alone, never from the lengths of a step, so that a captured graph serves all of them; which
keys a split takes follows from the request's length.

What this cannot show: the subject's libraries' own order of summation, and their programmatic launches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton

from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis, smallest_range
from kernels_under_test.triton_portable.mla_latent import (
    LATENT,
    ROPE,
    mla_counted_kernel,
    mla_merge_kernel,
    mla_split_kernel,
)
from validation.dispatch.table import Route, route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.mla.attention_arguments import MlaAttentionArguments

MOST_TOKENS = 8
MULTIPROCESSORS = 132  # of an H200
MOST_SPLITS = 128
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Tile:
    """Rows and keys that a program holds at a time, warps, and how many programs a multiprocessor holds."""

    rows: int
    keys: int
    warps: int
    resident: int = 1


@dataclass(frozen=True)
class Merge:
    """Rows, splits and columns that a program merges at a time."""

    rows: int
    splits: int
    columns: int = LATENT


# Most rows (tokens * heads) of a request -> tile. Above, a request has several tiles. A tile of 64 keys would
# let two programs share a multiprocessor, but its second product comes out wrong on Hopper with Triton 3.6:
# the cases of ``mla_attention`` fail with it.
TILES = {16: Tile(16, 128, warps=8), 1 << 30: Tile(32, 128, warps=8)}
MERGE, COUNTED_MERGE = Merge(1, 128, 64), Merge(4, 8)
# The interpreter pays by the operation, not by the element: the same kernels in larger tiles, of which there
# are still several.
INTERPRETED = {16: Tile(16, 128, warps=8), 1 << 30: Tile(64, 128, warps=8)}
INTERPRETED_MERGE = {16: Merge(8, 2), 1 << 30: Merge(64, 2)}
INTERPRETED_SPLITS = 3


def tile_of(rows: int, *, interpreted: bool = False) -> Tile:
    """The tile for requests of so many rows."""
    return smallest_range(INTERPRETED if interpreted else TILES, rows)


def splits_of(programs: int, capacity: int, tile: Tile) -> int:
    """In how many splits a request's keys are cut: one wave of programs, at least a block of keys each."""
    wave = MULTIPROCESSORS * tile.resident
    return max(1, min(MOST_SPLITS, wave // programs, triton.cdiv(capacity, tile.keys)))


def mla_attention(a: MlaAttentionArguments) -> None:
    """out[row, head] = bf16(k_scale * softmax(scale * query keys^T) keys[:, :512]) over the row's keys.

    Any number of requests and heads, 1 to 8 tokens, any page size; rows of width 576. Rows and pages may lie
    apart. Rows of requests of length 0 become 0.
    """
    check(a.query, a.cache, a.out, a.tokens)
    need_dense_last_axis(block_table=a.block_table, lengths=a.lengths)
    requests = a.block_table.shape[0]
    chosen = _route(requests * a.tokens, a.tokens)
    counted = chosen.kernels == ("mla_counted_kernel",)
    work = Splits.of(a.query, requests, a.tokens, a.capacity, ranks=1)
    if counted:
        counters = torch.zeros(requests * work.tiles, dtype=torch.int32, device=a.query.device)
        mla_counted_kernel[work.grid](
            *work.inputs(a.query, a.cache, a.block_table, a.lengths), counters, a.out,
            *work.strides(a.query, a.cache[None], a.block_table[None]), a.out.stride(0),
            a.softmax_scale * LOG2_E, a.k_scale, *work.counts(1), 
            MERGE_ROWS=work.merging(COUNTED_MERGE).rows, MERGE_SPLITS=work.merging(COUNTED_MERGE).splits,
            **work.constants(a.cache.shape[1]),
        )  # fmt: skip
        return
    work.attend(a.query, a.cache[None], a.block_table[None], a.lengths, a.softmax_scale, a.k_scale, 1)
    work.merge(a.out[None])


@dataclass(frozen=True)
class Splits:
    """A launch over (tile of rows, split, rank and request), and the memory of its partial results."""

    tile: Tile
    tiles: int
    splits: int
    requests: int
    tokens: int
    heads: int
    ranks: int
    partial: Tensor
    log_sums: Tensor

    @classmethod
    def of(cls, query: Tensor, requests: int, tokens: int, capacity: int, ranks: int) -> Splits:
        """``partial`` [rank * request, split, row, 512], ``log_sums`` [rank * request, split, row]; FP32."""
        heads, rows = query.shape[1], tokens * query.shape[1]
        tile = tile_of(rows, interpreted=interpreted(query))
        tiles = triton.cdiv(rows, tile.rows)
        splits = splits_of(requests * tiles, capacity, tile)
        if interpreted(query):
            splits = min(splits, INTERPRETED_SPLITS)
        shape = (ranks * requests, splits, rows)
        partial = torch.empty(*shape, LATENT, dtype=torch.float32, device=query.device)
        log_sums = torch.empty(shape, dtype=torch.float32, device=query.device)
        return cls(tile, tiles, splits, requests, tokens, heads, ranks, partial, log_sums)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.tiles, self.splits, self.ranks * self.requests

    def inputs(self, query: Tensor, cache: Tensor, table: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        numbers = torch.float8_e4m3fn
        return query.view(numbers), cache.view(numbers), table, lengths, self.partial, self.log_sums

    def strides(self, query: Tensor, cache: Tensor, table: Tensor) -> tuple[int, ...]:
        """``cache`` [rank, page, slot, 576], ``table`` [rank, request, page]."""
        return (*query.stride()[:2], *cache.stride()[:3], *table.stride()[:2])

    def counts(self, interleave: int) -> tuple[int, ...]:
        return self.requests, self.tokens, self.heads, self.ranks, interleave, self.splits

    def constants(self, page: int) -> dict[str, int]:
        tile = {"ROWS": self.tile.rows, "KEYS": self.tile.keys}
        sizes = {"PAGE": page, **tile, "D": LATENT, "D_ROPE": ROPE}
        return sizes | {"num_warps": self.tile.warps}

    def attend(
        self, query: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, scale: float, k_scale: float,
        interleave: int,
    ) -> None:  # fmt: skip
        """Fill the partial results. ``lengths`` [request]: of all ranks together."""
        mla_split_kernel[self.grid](
            *self.inputs(query, cache, table, lengths), *self.strides(query, cache, table),
            scale * LOG2_E, k_scale, *self.counts(interleave), **self.constants(cache.shape[2]),
        )  # fmt: skip

    def merge(self, out: Tensor, log_sums: Tensor | None = None) -> None:
        """``out`` [rank, row, head, 512] BF16; ``log_sums`` [rank * request, token * head] FP32 if given."""
        merge = self.merging(MERGE)
        rows = triton.cdiv(self.tokens * self.heads, merge.rows)
        mla_merge_kernel[rows, LATENT // merge.columns, self.ranks * self.requests](
            self.partial, self.log_sums, out, self.log_sums if log_sums is None else log_sums,
            out.stride(0), out.stride(1), self.requests, self.tokens, self.heads, self.splits,
            ROWS=merge.rows, SPLITS=merge.splits, COLUMNS=merge.columns, D=LATENT,
            LOG_SUMS=log_sums is not None, num_warps=4,
        )  # fmt: skip

    def merging(self, on_device: Merge) -> Merge:
        """How much a program merges at a time: in the interpreter, all that a tile holds."""
        return smallest_range(INTERPRETED_MERGE, self.tile.rows) if interpreted(self.partial) else on_device


def check(query: Tensor, cache: Tensor, out: Tensor, tokens: int) -> None:
    """Raise UserError for shapes that no kernel serves."""
    need_dense_last_axis(query=query, cache=cache, out=out)
    if reason := unsupported(tokens):
        raise UserError(reason)
    if query.shape[-1] != LATENT + ROPE or cache.shape[-1] != LATENT + ROPE:
        found = (query.shape[-1], cache.shape[-1])
        raise UserError(f"query and cache have rows of {found}; they must be {LATENT + ROPE}")
    if out.stride(1) != LATENT:
        raise UserError(f"heads of out must follow each other; their stride is {out.stride(1)}")


def unsupported(tokens: int) -> str | None:
    """Why so many tokens a request are not served, or None."""
    if 1 <= tokens <= MOST_TOKENS:
        return None
    return f"tokens is {tokens}; it must be 1 to {MOST_TOKENS}"


def _route(rows: int, tokens: int) -> Route:
    return route(TABLE, rows, ONE_TOKEN if tokens == 1 else VERIFY)


ONE_TOKEN, VERIFY = "1 token a request", "2 to 8 tokens a request"
_SPLIT = ("mla_split_kernel", "mla_merge_kernel")
TABLE = (
    Route(15, _SPLIT, {"multiprocessors": MULTIPROCESSORS, "most splits": MOST_SPLITS}, ONE_TOKEN),
    Route(
        1 << 30,
        ("mla_counted_kernel",),
        {"multiprocessors": MULTIPROCESSORS, "most splits": MOST_SPLITS},
        ONE_TOKEN,
    ),
    Route(1 << 30, _SPLIT, {"multiprocessors": MULTIPROCESSORS, "most splits": MOST_SPLITS}, VERIFY),
)


def kernels(case: Case) -> tuple[str, ...]:
    """What ``mla_attention`` launches for a case."""
    return _route(case["requests"] * case["tokens"], case["tokens"]).kernels


OPERATIONS = {
    "mla_attention": {
        "function": mla_attention,
        "kernels": kernels,
        "table": TABLE,
        "supports": lambda case: unsupported(case["tokens"]),
    },
}
