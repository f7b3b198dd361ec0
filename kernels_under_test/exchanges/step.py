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
from kernels_under_test.exchanges.waiting import delay, torn
from kernels_under_test.exchanges.words import SENTINEL, canonical, mailbox

if TYPE_CHECKING:
    from torch import Tensor

BLOCKS = {True: 512, False: 4096}  # words of a program, by whether it is compiled
HANG = tl.constexpr(2)


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
    RANKS: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr, AT_ONCE: tl.constexpr,
    ON_GPU: tl.constexpr,
):  # fmt: skip
    """out[source, row, word] = x of every source. ``x_target``: words from what goes to one rank to what goes
    to the next, 0 if all get the same. ``clock``: [steps run, step]; ``record``: [16], as ``acts`` has it.
    ``cleared_words``: of each slot of the other parity that are cleared before anything is published."""
    program = tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    live = at < rows * words
    row, column = at // words, at % words
    count, step = tl.load(clock), tl.load(clock + 1)
    tl.store(record + 10, step)
    tl.store(record + 11, act)
    patience = spins
    if tl.load(record + 1) == HANG:
        patience = 0
    own = mailbox(peers, rank)
    empty = tl.full([BLOCK], SENTINEL, tl.uint32)
    pitch = RANKS * slot_words
    parity = (use + count * advance) % parities
    place = tl.multiple_of(start + parity * pitch, 16)
    cleared = start + ((clears + count * advance) % parities) * pitch
    delay(skew, rank, count, act, program, 0, ON_GPU)
    for source in tl.static_range(RANKS):
        tl.store(own + cleared + source * slot_words + at, empty, mask=at < cleared_words)
    in_parts = torn(skew, rank, count, act, program, ON_GPU)
    first = at % 4 == 0
    if in_parts > 1:
        first = at < in_parts
    for i in tl.static_range(RANKS):
        # Each rank begins with another peer, so that nobody is always the last to be served.
        target = (rank + i) % RANKS
        word = tl.load(x + target * x_target + row * x_row + column, mask=live, other=0)
        word = publishable(word.to(tl.uint32, bitcast=True), PAIRS)
        to = mailbox(peers, target) + place + rank * slot_words + at
        if in_parts > 0:
            tl.store(to, word, mask=live & first)
            delay(skew, rank, count, act, program, 2 + i, ON_GPU)
            tl.store(to, word, mask=live & (first == 0))
        else:
            tl.store(to, word, mask=live)
        delay(skew, rank, count, act, program, 12 + i % 8, ON_GPU)
    for source in tl.static_range(RANKS):
        slot = own + place + source * slot_words + at
        word, missing = arrived(slot, live, live, patience, ON_GPU)
        if missing > 0:
            gap = tl.min(tl.where(live & (word == SENTINEL), at, 1 << 30), 0)
            nothing = tl.sum(word * 0, 0)
            note(record, HANG, step, act, source, parity, gap, nothing, nothing)
            patience = 0
        if AT_ONCE:
            tl.store(slot, empty, mask=live)
        to = out + source * out_source + row * out_row + column
        tl.store(to, word.to(tl.int32, bitcast=True), mask=live)
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
    block = BLOCKS[on_gpu]
    options: dict[str, Any] = {"num_warps": 4} if on_gpu else {}
    step_kernel[triton.cdiv(max(rows * words, turn.cleared_words), block),](
        x, out, wires.peers, wires.record, wires.clock, wires.skew, turn.start, wires.slot_words, rows, words,
        turn.cleared_words, x.stride(0) if x.dim() == 3 else 0, x.stride(-2), out.stride(0), out.stride(1),
        wires.rank, turn.act, turn.use, turn.clears, turn.advance, turn.parities, wires.spins,
        RANKS=wires.ranks, BLOCK=block, PAIRS=pairs, AT_ONCE=turn.at_once, ON_GPU=on_gpu, **options,
    )  # fmt: skip

