"""The exchange of a latent attention whose cache is sharded over the ranks, fused with its merge.

``dcp_kernel`` (kimi_k3_ops.md, section 3.10): every rank has attended with all heads over its own shard. Each
row and its log sum go to the owner of the head; the owner waits for all ranks' and adds their rows by weights
of the log sums, in rank order and FP32, with the functions of ``triton_portable.mla_dcp``. What a shard
without keys left is not looked at: its rank publishes zeros and the log sum -3e38. Two mailboxes of two
parities, re-armed right after use.

What this cannot do: the value up-projection and the gate that follow; the query's own exchange.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kernels_under_test.exchanges.collectives import PATIENCE, received, waited
from kernels_under_test.exchanges.fused import Boxes
from kernels_under_test.exchanges.words import (
    ALL_ONES,
    NO_KEYS_BITS,
    canonical,
    canonical_log_sum,
    high_half,
    low_half,
    mailbox,
    paired,
)
from kernels_under_test.triton_portable.mla_dcp import NOTHING, exponential, normaliser

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit(do_not_specialize=["rank", "spins"])
def dcp_kernel(
    x, log_sums, lengths, totals, out, peers, late, row_box, sum_box, slot_words, tokens, heads, words, rank,
    spins, RANKS: tl.constexpr, WORDS: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """out [rows, heads, words] = the merged rows of this rank's heads; 0 where ``totals`` has no keys.

    ``x`` [rows, RANKS * heads, words] and ``log_sums`` [rows, RANKS * heads], FP32 bits, are what attention
    over this rank's shard gave; ``lengths`` and ``totals`` [rows // tokens] count its keys and all ranks'.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    at, one = tl.arange(0, WORDS), tl.arange(0, 1)
    live, place = at < words, row * heads + head
    any_keys = tl.load(lengths + row // tokens) > 0
    for i in tl.static_range(RANKS):
        target = (rank + i) % RANKS
        source = (row * RANKS + target) * heads + head
        word = canonical(tl.load(x + source * words + at, mask=live, other=0).to(tl.uint32, bitcast=True))
        total = canonical_log_sum(tl.load(log_sums + source + one).to(tl.uint32, bitcast=True))
        to = mailbox(peers, target) + rank * slot_words
        tl.store(to + row_box + place * words + at, tl.where(any_keys, word, 0), mask=live)
        tl.store(to + sum_box + place + one, tl.where(any_keys, total, NO_KEYS_BITS))
    own, there = mailbox(peers, rank), one < 1
    largest, weight = tl.full([1], NOTHING, tl.float32), tl.zeros([1], tl.float32)
    for source in tl.static_range(RANKS):
        sums = own + sum_box + source * slot_words + place + one
        total = waited(sums, there, late, spins, ON_GPU, ALL_ONES).to(tl.float32, bitcast=True)
        largest = tl.maximum(largest, total)
    for source in tl.static_range(RANKS):
        sums = own + sum_box + source * slot_words + place + one
        total = waited(sums, there, late, spins, ON_GPU, ALL_ONES).to(tl.float32, bitcast=True)
        weight += exponential(total, largest)
    low, high, scale = tl.zeros([WORDS], tl.float32), tl.zeros([WORDS], tl.float32), normaliser(weight)
    for source in tl.static_range(RANKS):
        slot = own + source * slot_words
        total = received(slot + sum_box + place + one, there, late, spins, ON_GPU, ALL_ONES)
        share = exponential(total.to(tl.float32, bitcast=True), largest) * scale
        word = received(slot + row_box + place * words + at, live, late, spins, ON_GPU)
        low += share * low_half(word)
        high += share * high_half(word)
    merged = tl.where(tl.load(totals + row // tokens) > 0, paired(low, high), 0)
    tl.store(out + place * words + at, merged.to(tl.int32, bitcast=True), mask=live)


def merge(
    boxes: Boxes, x: Tensor, log_sums: Tensor, lengths: Tensor, totals: Tensor, out: Tensor, partial: int,
    lse: int,
) -> None:  # fmt: skip
    """out = all ranks' rows of this rank's heads, merged: int32 words, shapes as in ``dcp_kernel``.

    ``partial`` and ``lse``: first words of this call's parity. A row's tokens are those of one request.
    """
    rows, heads, words = out.shape
    dcp_kernel[rows, heads](
        x, log_sums, lengths, totals, out, boxes.peers, boxes.late, partial, lse, boxes.slot_words,
        rows // lengths.shape[0], heads, words, boxes.rank, PATIENCE, RANKS=boxes.ranks,
        WORDS=triton.next_power_of_2(words), **boxes.options(x),
    )  # fmt: skip
