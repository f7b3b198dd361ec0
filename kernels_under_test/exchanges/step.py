"""One exchange of a decode step: rows of this rank go to all ranks, or to the owners of their columns.

A launch publishes, waits for the words of all sources, and puts them where the step's next operation reads
them; what is added is added there, as the subject's readers add what lies in their own mailbox. Parity and
re-arm are those of the mailbox's protocol (``validation.sync.kimi_k3``): which parity, which one is cleared,
by how much a step advances them. The number of the step is read from memory, so that a captured launch
counts on when it is replayed. A re-arm is due right after the poll, or is left to the mailbox's next launch,
which clears before it publishes.

Skew comes from ``waiting``: delays before and between stores, publications in two parts. Every wait is
bounded. The first wait of a rank that runs out is recorded, and no wait of the rank lasts after that.

Catches: nothing by itself; a wrong word shows in what the step leaves. Cannot do: multicast; rows that are
not whole words of two BF16 values or one FP32 value.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from kernels_under_test.exchanges.acts import arrived, note
from kernels_under_test.exchanges.waiting import delay, host_delay, torn
from kernels_under_test.exchanges.words import SENTINEL, canonical, mailbox

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 256  # words of a compiled program; an interpreted one has all
HANG = tl.constexpr(2)


@triton.jit
def paused(skew, rank, count, act, program, phase: tl.constexpr, ON_GPU: tl.constexpr):
    """A delay, if one is drawn."""
    if ON_GPU:
        delay(skew, rank, count, act, program, phase, ON_GPU)
    else:
        host_delay(rank, count, act, program, phase)


@triton.jit
def publishable(word, PAIRS: tl.constexpr):
    """+0 for -0: in either half of a pair of BF16 values, or as an FP32 value."""
    if PAIRS:
        sent = canonical(word)
    else:
        sent = tl.where(word == SENTINEL, 0, word)
    return sent


@triton.jit(do_not_specialize=["rank", "act", "use", "clears", "advance", "parities", "spins"])
def step_kernel(
    x, out, peers, record, clock, skew, start, slot_words, rows, words, cleared_words,
    x_target, x_row, out_source, out_row, rank, act, use, clears, advance, parities, spins,
    RANKS: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr,
    OWN_PARTS: tl.constexpr, AT_ONCE: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """out[source, row, word] = x of every source.

    ``OWN_PARTS``: each rank gets a part of its own, ``x_target`` words behind that of the rank before.
    ``clock``: [steps run, step]; ``record``: [16], as ``acts`` has it. ``cleared_words``: of each slot of the
    other parity that are cleared before anything is published. ``SLOTS``: a power of two of at least
    ``RANKS``."""
    program = tl.program_id(0)
    count, step = tl.load(clock), tl.load(clock + 1)
    tl.store(record + 10, step)
    tl.store(record + 11, act)
    own = mailbox(peers, rank)
    pitch = RANKS * slot_words
    parity = (use + count * advance) % parities
    place = tl.multiple_of(start + parity * pitch, 16)
    # All slots of this program's words, side by side: waited for, received and cleared together.
    every = tl.arange(0, SLOTS * BLOCK)
    source, word_of = every // BLOCK, program * BLOCK + every % BLOCK
    slot = own + source * slot_words + word_of
    empty = tl.full([SLOTS * BLOCK], SENTINEL, tl.uint32)
    if cleared_words > 0:
        cleared = start + ((clears + count * advance) % parities) * pitch
        tl.store(slot + cleared, empty, mask=(source < RANKS) & (word_of < cleared_words))
    at = program * BLOCK + tl.arange(0, BLOCK)
    live, read = at < rows * words, x + (at // words) * x_row + at % words
    paused(skew, rank, count, act, program, 0, ON_GPU)
    in_parts = torn(skew, rank, count, act, program, ON_GPU)
    first = at % 4 == 0
    if in_parts > 1:
        first = at < in_parts
    word = publishable(tl.load(read, mask=live, other=0).to(tl.uint32, bitcast=True), PAIRS)
    for i in tl.static_range(RANKS):
        # Each rank begins with another peer, so that nobody is always the last to be served.
        target = (rank + i) % RANKS
        if OWN_PARTS:
            word = tl.load(read + target * x_target, mask=live, other=0).to(tl.uint32, bitcast=True)
            word = publishable(word, PAIRS)
        to = mailbox(peers, target) + place + rank * slot_words + at
        if in_parts > 0:
            tl.store(to, word, mask=live & first)
            paused(skew, rank, count, act, program, 2 + i, ON_GPU)
            tl.store(to, word, mask=live & (first == 0))
        else:
            tl.store(to, word, mask=live)
        paused(skew, rank, count, act, program, 12 + i % 8, ON_GPU)
    patience = tl.where(tl.load(record + 1) == HANG, 0, spins)
    due = (source < RANKS) & (word_of < rows * words)
    word, missing = arrived(slot + place, due, due, SENTINEL, patience, ON_GPU)
    if missing > 0:
        gap = tl.min(tl.where(due & (word == SENTINEL), every, 1 << 30), 0)
        nothing = tl.sum(word * 0, 0)
        note(record, HANG, step, act, gap // BLOCK, parity, program * BLOCK + gap % BLOCK, nothing, nothing)
    if AT_ONCE:
        tl.store(slot + place, empty, mask=due)
    to = out + source * out_source + (word_of // words) * out_row + word_of % words
    tl.store(to, word.to(tl.int32, bitcast=True), mask=due)
    if program == 0:
        tl.store(record + 9, tl.load(record + 9) + 1)


@dataclass(frozen=True)
class Wires:
    """What every exchange of a rank shares. ``peers``: addresses [ranks]; ``record`` [16], ``clock`` [2] and
    ``skew`` [8] int32; ``slot_words``: of one source's slot; ``spins``: looks of a wait."""

    peers: Tensor
    record: Tensor
    clock: Tensor
    skew: Tensor
    slot_words: int
    rank: int
    ranks: int
    spins: int


@dataclass(frozen=True)
class Turn:
    """One use of a mailbox in a step: its number among the step's exchanges, its first word, its parity and
    the one it clears as ``(use + steps run * advance) % parities``; ``cleared_words`` of each slot (0: the
    reader re-arms at once, unless ``at_once`` is false)."""

    act: int
    start: int
    use: int
    clears: int
    advance: int
    parities: int
    cleared_words: int = 0
    at_once: bool = True


def exchange(wires: Wires, turn: Turn, x: Tensor, out: Tensor) -> None:
    """Publish x and receive out [ranks, rows, columns] from all. x is [rows, columns], or [ranks, rows,
    columns] where each rank gets its own. BF16 of an even number of columns, or FP32; rows may lie apart."""
    pairs = x.dtype == torch.bfloat16
    x, out = x.view(torch.int32), out.view(torch.int32)
    _, rows, words = out.shape
    if rows * words > wires.slot_words:
        raise ValueError(f"{rows} rows of {words} words do not fit a slot of {wires.slot_words}")
    on_gpu = x.device.type == "cuda"
    most = max(rows * words, turn.cleared_words)
    block = BLOCK if on_gpu else triton.next_power_of_2(most)
    options: dict[str, Any] = {"num_warps": 4} if on_gpu else {}
    step_kernel[triton.cdiv(most, block),](
        x, out, wires.peers, wires.record, wires.clock, wires.skew, turn.start, wires.slot_words, rows, words,
        turn.cleared_words, x.stride(0) if x.dim() == 3 else 0, x.stride(-2), out.stride(0), out.stride(1),
        wires.rank, turn.act, turn.use, turn.clears, turn.advance, turn.parities, wires.spins,
        RANKS=wires.ranks, SLOTS=triton.next_power_of_2(wires.ranks), BLOCK=block, PAIRS=pairs,
        OWN_PARTS=x.dim() == 3, AT_ONCE=turn.at_once, ON_GPU=on_gpu, **options,
    )  # fmt: skip
