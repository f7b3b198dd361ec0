"""Exchanges fused with what comes before and after them, as in the subject's decode step.

``oproj_kernel`` (kimi_k3_ops.md, section 3.11): this rank's partial of the o-projection is rounded, published
to all ranks, and every rank adds all partials: one launch, two parities, re-armed right after the poll.

``tail_kernel`` (section 3.17): latent partials go to all ranks and shared rows to their column's owner; every
program waits for the whole latent row, norms it (squares rounded to BF16), multiplies it with its columns of
the up-projection, adds the shared rows' sum, and publishes its columns to all ranks. Three parities: a launch
re-arms those of the launch before, off the critical path. ``out_kernel`` is the reader of its result.

Values lie in words of two BF16, also the weights; sums are FP32, over ranks in rank order. Programs of
``tail_kernel`` wait for words that others of the same launch publish, so all must fit on the device at once;
interpreted, programs run one after another, and there is one.

What this cannot do: tensor cores (a row or a few), programmatic launches, multicast.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from kernels_under_test.exchanges.collectives import PATIENCE, THREADS, added, received, waited
from kernels_under_test.exchanges.words import (
    SENTINEL,
    canonical,
    high_half,
    low_half,
    mailbox,
    paired,
    rounded,
)

if TYPE_CHECKING:
    from torch import Tensor

TILES = {True: 8, False: 256}  # words of a program's columns, by whether it is compiled


@triton.jit
def as_bf16(x):
    """FP32 values rounded to BF16, as FP32."""
    return low_half(rounded(x))


@triton.jit
def product(weight, low, high, row, depth, live, DEPTH: tl.constexpr):
    """FP32 products of weight rows [TILE] with one row given by its even and odd columns [DEPTH]."""
    at = tl.arange(0, DEPTH)
    there = live[:, None] & (at < depth)[None, :]
    w = tl.load(weight + row[:, None] * depth + at[None, :], mask=there, other=0).to(tl.uint32, bitcast=True)
    return tl.sum(low_half(w) * low[None, :] + high_half(w) * high[None, :], axis=1)


@triton.jit(do_not_specialize=["rank", "spins"])
def oproj_kernel(
    y, weight, out, peers, late, start, slot_words, rows, words, depth, rank, spins,
    RANKS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """out [rows, words] = sum over ranks of bf16(y [rows, depth] weight [2 words, depth]^T)."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live, k = at < words, tl.arange(0, DEPTH)
    for row in range(rows):
        x = tl.load(y + row * depth + k, mask=k < depth, other=0).to(tl.uint32, bitcast=True)
        even = product(weight, low_half(x), high_half(x), 2 * at, depth, live, DEPTH)
        odd = product(weight, low_half(x), high_half(x), 2 * at + 1, depth, live, DEPTH)
        word = paired(even, odd)
        for i in tl.static_range(RANKS):
            to = mailbox(peers, (rank + i) % RANKS) + start + rank * slot_words
            tl.store(to + row * words + at, word, mask=live)
    for row in range(rows):
        place = row * words + at
        total = added(mailbox(peers, rank), start, slot_words, place, live, late, spins, RANKS, ON_GPU)
        tl.store(out + place, total.to(tl.int32, bitcast=True), mask=live)


@triton.jit(do_not_specialize=["rank", "spins"])
def tail_kernel(
    partial, shared, gamma, weight, peers, late, latent, cleared_latent, rs, cleared_rs, out, slot_words,
    rows, depth, words, eps, rank, spins,
    RANKS: tl.constexpr, TILE: tl.constexpr, SLICE: tl.constexpr, DEPTH: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """This rank's part of the tail for ``rows`` rows; its columns of the result go to all ranks' ``out``.

    partial [rows, depth], shared [ranks, rows, words], gamma [depth], weight [2 words, depth]: words.
    """
    own, empty = mailbox(peers, rank), tl.full([TILE], SENTINEL, tl.uint32)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = at < words
    part = tl.program_id(0) * SLICE + tl.arange(0, SLICE)
    inside = part < depth
    for row in range(rows):
        word = tl.load(partial + row * depth + part, mask=inside, other=0).to(tl.uint32, bitcast=True)
        for i in tl.static_range(RANKS):
            target = (rank + i) % RANKS
            to = mailbox(peers, target) + rank * slot_words
            tl.store(to + latent + row * depth + part, canonical(word), mask=inside)
            mine = tl.load(shared + (target * rows + row) * words + at, mask=live, other=0)
            tl.store(to + rs + row * words + at, canonical(mine.to(tl.uint32, bitcast=True)), mask=live)
            none = tl.full([SLICE], SENTINEL, tl.uint32)
            tl.store(own + cleared_latent + i * slot_words + row * depth + part, none, mask=inside)
            tl.store(own + cleared_rs + i * slot_words + row * words + at, empty, mask=live)
    k = tl.arange(0, DEPTH)
    scale = tl.load(gamma + k, mask=k < depth, other=0).to(tl.uint32, bitcast=True)
    for row in range(rows):
        low, high = over_ranks(
            own + latent + row * depth + k, slot_words, k < depth, late, spins, RANKS, ON_GPU
        )
        low, high = as_bf16(low), as_bf16(high)
        squares = tl.sum(as_bf16(low * low) + as_bf16(high * high), 0)
        inverse = 1.0 / tl.sqrt(squares / (2 * depth) + eps)
        low, high = as_bf16(low * inverse * low_half(scale)), as_bf16(high * inverse * high_half(scale))
        even = as_bf16(product(weight, low, high, 2 * at, depth, live, DEPTH))
        odd = as_bf16(product(weight, low, high, 2 * at + 1, depth, live, DEPTH))
        left, right = over_ranks(own + rs + row * words + at, slot_words, live, late, spins, RANKS, ON_GPU)
        word = paired(even + as_bf16(left), odd + as_bf16(right))
        for i in tl.static_range(RANKS):
            to = mailbox(peers, (rank + i) % RANKS) + out
            tl.store(to + (row * RANKS + rank) * words + at, word, mask=live)


@triton.jit
def over_ranks(at, slot_words, live, late, spins, RANKS: tl.constexpr, ON_GPU: tl.constexpr):
    """FP32 sums over all slots, of even and of odd columns; nothing is re-armed."""
    word = waited(at, live, late, spins, ON_GPU)
    low, high = low_half(word), high_half(word)
    for source in tl.static_range(1, RANKS):
        word = waited(at + source * slot_words, live, late, spins, ON_GPU)
        low += low_half(word)
        high += high_half(word)
    return low, high


@triton.jit(do_not_specialize=["rank", "spins"])
def out_kernel(
    out, peers, late, start, words, rank, spins, BLOCK: tl.constexpr, ON_GPU: tl.constexpr
):  # fmt: skip
    """out [words] as all ranks published it; one parity, re-armed at once."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = received(mailbox(peers, rank) + start + at, at < words, late, spins, ON_GPU)
    tl.store(out + at, word.to(tl.int32, bitcast=True), mask=at < words)


@dataclass(frozen=True)
class Boxes:
    """First words of the mailboxes of one call, and what all kernels are told of the ranks."""

    peers: Tensor
    late: Tensor
    rank: int
    ranks: int
    slot_words: int

    def options(self, tensor: Tensor) -> dict[str, Any]:
        """Constants and launch options."""
        on_gpu = tensor.device.type == "cuda"
        return {"ON_GPU": on_gpu, **({"num_warps": THREADS.value // 32} if on_gpu else {})}


def oproj(boxes: Boxes, y: Tensor, weight: Tensor, out: Tensor, start: int) -> None:
    """out = sum over ranks of bf16(y weight^T): int32 words [rows, K/2], [N, K/2] and [rows, N/2]."""
    (rows, depth), words = y.shape, out.shape[1]
    options = boxes.options(y)
    tile = TILES[options["ON_GPU"]]
    oproj_kernel[triton.cdiv(words, tile),](
        y, weight, out, boxes.peers, boxes.late, start, boxes.slot_words, rows, words, depth, boxes.rank,
        PATIENCE, RANKS=boxes.ranks, TILE=tile, DEPTH=triton.next_power_of_2(depth), **options,
    )  # fmt: skip


def tail(
    boxes: Boxes, partial: Tensor, shared: Tensor, gamma: Tensor, weight: Tensor, out: Tensor, eps: float,
    latent: tuple[int, int], rs: tuple[int, int], gathered: int,
) -> None:  # fmt: skip
    """The whole tail into out [rows, N/2] words. ``latent`` and ``rs``: first words of the parity in use and
    of the one to re-arm."""
    (rows, depth), words = partial.shape, shared.shape[2]
    options = boxes.options(partial)
    tile = TILES[options["ON_GPU"]] if options["ON_GPU"] else triton.next_power_of_2(words)
    programs = triton.cdiv(words, tile)
    tail_kernel[programs,](
        partial, shared, gamma, weight, boxes.peers, boxes.late, *latent, *rs, gathered, boxes.slot_words,
        rows, depth, words, eps, boxes.rank, PATIENCE, RANKS=boxes.ranks, TILE=tile,
        SLICE=triton.next_power_of_2(triton.cdiv(depth, programs)), DEPTH=triton.next_power_of_2(depth),
        **options,
    )  # fmt: skip
    out_kernel[triton.cdiv(out.numel(), 1024),](
        out, boxes.peers, boxes.late, gathered, out.numel(), boxes.rank, PATIENCE, BLOCK=1024, **options
    )  # fmt: skip
