"""Exchanges of real tensors over Lamport mailboxes: all-reduce in one and two shots, reduce-scatter,
all-gather.

Words are pairs of BF16 values in row order; a program has BLOCK of them, of every rank's mailbox. A mailbox
is re-armed by its reader right after the poll, and calls that follow each other alternate between two
parities, which the caller bakes in, as the subject's layers do (kimi_k3_ops.md, section 4.2). Sums are FP32
in rank order, rounded once, -0 made +0. Two shots: the owner of a part of each block sums it and sends the
sum to all.

A wait is bounded: when it runs out, ``late`` counts it and the result is whatever was there.

What this cannot do: multicast; ranks of more than one host; a block that is not a multiple of the ranks.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from kernels_under_test.exchanges.waiting import host_waits
from kernels_under_test.exchanges.words import SENTINEL, canonical, high_half, low_half, mailbox, paired

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 40_000_000  # looks of a compiled wait: longer than it takes a peer to compile
THREADS = tl.constexpr(128)  # of a compiled program
BLOCKS = {True: 512, False: 4096}  # words of a program, by whether it is compiled


@triton.jit
def waited(at, live, late, spins, ON_GPU: tl.constexpr, EMPTY: tl.constexpr = SENTINEL):
    """Words once none is the sentinel, ``EMPTY``."""
    word = tl.load(at, mask=live, other=0, volatile=True)
    missing = tl.sum((word == EMPTY).to(tl.int32), 0)
    tries = 0
    while (missing > 0) & (tries < spins):
        word = tl.load(at, mask=live, other=0, volatile=True)
        missing = tl.sum((word == EMPTY).to(tl.int32), 0)
        tries += 1
        if not ON_GPU:
            tries = host_waits(tries, spins)
    if missing > 0:
        tl.atomic_add(late, 1)
    if ON_GPU and at.shape[0] < THREADS:
        # Several threads hold a copy of each word, and each copy is a load of its own: one warp may see a
        # word arrive, and re-arm it, before another has looked. So nobody leaves before all have seen all.
        tl.debug_barrier()
        word = tl.load(at, mask=live, other=0, volatile=True)
        tl.debug_barrier()
    return word


@triton.jit
def received(at, live, late, spins, ON_GPU: tl.constexpr, EMPTY: tl.constexpr = SENTINEL):
    """Words once none is the sentinel; the mailbox is re-armed."""
    word = waited(at, live, late, spins, ON_GPU, EMPTY)
    tl.store(at, tl.full(word.shape, EMPTY, tl.uint32), mask=live)
    return word


@triton.jit
def added(own, start, slot_words, at, live, late, spins, RANKS: tl.constexpr, ON_GPU: tl.constexpr):
    """The canonical sum over all slots, in rank order."""
    word = received(own + start + at, live, late, spins, ON_GPU)
    low, high = low_half(word), high_half(word)
    for source in tl.static_range(1, RANKS):
        word = received(own + start + source * slot_words + at, live, late, spins, ON_GPU)
        low += low_half(word)
        high += high_half(word)
    return paired(low, high)


@triton.jit(do_not_specialize=["rank", "spins"])
def one_shot_kernel(
    x, out, peers, late, start, slot_words, words, rank, spins,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """out = sum over ranks of x, both [words]: every rank sends all of its words to all."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < words
    word = canonical(tl.load(x + at, mask=live, other=0).to(tl.uint32, bitcast=True))
    for i in tl.static_range(RANKS):
        target = (rank + i) % RANKS
        tl.store(mailbox(peers, target) + start + rank * slot_words + at, word, mask=live)
    total = added(mailbox(peers, rank), start, slot_words, at, live, late, spins, RANKS, ON_GPU)
    tl.store(out + at, total.to(tl.int32, bitcast=True), mask=live)


@triton.jit(do_not_specialize=["rank", "spins"])
def two_shot_kernel(
    x, out, peers, late, start, gather, slot_words, words, rank, spins,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """The same sum: each rank sends every owner its part, and the owner sends the sum to all."""
    first = tl.program_id(0) * BLOCK
    part = tl.arange(0, BLOCK // RANKS)
    for i in tl.static_range(RANKS):
        target = (rank + i) % RANKS
        at = first + target * (BLOCK // RANKS) + part
        word = canonical(tl.load(x + at, mask=at < words, other=0).to(tl.uint32, bitcast=True))
        tl.store(mailbox(peers, target) + start + rank * slot_words + at, word, mask=at < words)
    own = mailbox(peers, rank)
    mine = first + rank * (BLOCK // RANKS) + part
    total = added(own, start, slot_words, mine, mine < words, late, spins, RANKS, ON_GPU)
    for i in tl.static_range(RANKS):
        target = (rank + i) % RANKS
        tl.store(mailbox(peers, target) + gather + mine, total, mask=mine < words)
    at = first + tl.arange(0, BLOCK)
    word = received(own + gather + at, at < words, late, spins, ON_GPU)
    tl.store(out + at, word.to(tl.int32, bitcast=True), mask=at < words)


@triton.jit(do_not_specialize=["rank", "spins"])
def reduce_scatter_kernel(
    x, out, peers, late, start, slot_words, words, rank, spins,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """out [words] = sum over ranks of x[rank] of x [ranks, words]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < words
    for i in tl.static_range(RANKS):
        target = (rank + i) % RANKS
        word = canonical(tl.load(x + target * words + at, mask=live, other=0).to(tl.uint32, bitcast=True))
        tl.store(mailbox(peers, target) + start + rank * slot_words + at, word, mask=live)
    total = added(mailbox(peers, rank), start, slot_words, at, live, late, spins, RANKS, ON_GPU)
    tl.store(out + at, total.to(tl.int32, bitcast=True), mask=live)


@triton.jit(do_not_specialize=["rank", "spins"])
def all_gather_kernel(
    x, out, peers, late, start, slot_words, words, rank, spins,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """out [ranks, words] = x [words] of every rank."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < words
    word = canonical(tl.load(x + at, mask=live, other=0).to(tl.uint32, bitcast=True))
    for i in tl.static_range(RANKS):
        target = (rank + i) % RANKS
        tl.store(mailbox(peers, target) + start + rank * slot_words + at, word, mask=live)
    own = mailbox(peers, rank)
    for source in tl.static_range(RANKS):
        word = received(own + start + source * slot_words + at, live, late, spins, ON_GPU)
        tl.store(out + source * words + at, word.to(tl.int32, bitcast=True), mask=live)


KERNELS = {
    "one_shot": one_shot_kernel,
    "reduce_scatter": reduce_scatter_kernel,
    "all_gather": all_gather_kernel,
}


def exchange(
    name: str, x: Tensor, out: Tensor, peers: Tensor, late: Tensor, rank: int, ranks: int,
    start: int, gather: int, slot_words: int,
) -> None:  # fmt: skip
    """Launch one exchange of int32 words. ``start`` and ``gather``: first word of this call's parity.

    ``x`` and ``out``: [words]; for reduce-scatter x is [ranks, words], for all-gather out is.
    """
    on_gpu = x.device.type == "cuda"
    block = BLOCKS[on_gpu]
    words = min(x.numel(), out.numel())
    options: dict[str, Any] = {"RANKS": ranks, "BLOCK": block, "ON_GPU": on_gpu}
    options |= {"num_warps": THREADS.value // 32} if on_gpu else {}
    grid = (triton.cdiv(words, block),)
    if name == "two_shot":
        two_shot_kernel[grid](
            x, out, peers, late, start, gather, slot_words, words, rank, PATIENCE, **options
        )  # fmt: skip
        return
    KERNELS[name][grid](x, out, peers, late, start, slot_words, words, rank, PATIENCE, **options)
