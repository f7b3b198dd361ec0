"""The acts of a mailbox protocol as one kernel that reads them from a table.

A lane is one program: 64 columns of every rank's mailboxes, so that 112 of them exchange the subject's whole
row of 7,168, as its o-projection does. For every step and act of its table a lane publishes a payload to its
peers (to all of them, to the owner of each column, or its own columns to all), polls until no word that it
judges is the sentinel, or re-arms. It draws what it publishes, knows what must arrive, and compares every
word; the sum over ranks is added in FP32 in rank order, rounded once, and can be what a later act publishes.
Results are folded into a state per lane, from which a hash a step is logged.

Every wait is bounded. What goes wrong is noted once a lane (step, act, source, parity, word, expected and
found); a lane whose wait ran out makes no further act.

Catches: words that are stale, early, erased, torn or somebody else's; a publication that never comes. Cannot
catch: a wrong word that equals the right one; faults of a kernel that is not this one.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl

from kernels_under_test.exchanges.waiting import delay, host_fields, host_waits, torn
from kernels_under_test.exchanges.words import (
    due,
    high_half,
    low_half,
    mailbox,
    mixed,
    paired,
    payload,
    publishable,
)

# Fields of an act (int32), in this order; the script writes them (validation.stress.script): verb, base, use,
# clears, advance, parities, rows, key, relays, whole, to_owners, slots, canonical, judge_all, folded, staged,
# turn, stage, pulled, fenced, late, sentinel, holds, launch. Verbs: 1 publish, 2 poll, 3 read, 4 re-arm.
FIELDS = tl.constexpr(24)

# Fields of a lane's record (int32), which validation.stress.outcome reads: wrong words, kind of what went
# wrong first (1 wrong word, 2 hang), its step, act, source, parity, word, what was expected and found; waits
# passed; the step and act that the lane is at.
RECORD = tl.constexpr(16)
LATE_EVERY = tl.constexpr(4)  # steps: in one of them a publication that was overtaken is late
POISON = tl.constexpr(0xDEADBEEF)


@triton.jit
def fields_of(table, act, ON_GPU: tl.constexpr):
    """All fields of an act, in their order."""
    if ON_GPU:
        at = table + act * FIELDS
        fields = (
            tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5),
            tl.load(at + 6), tl.load(at + 7), tl.load(at + 8), tl.load(at + 9), tl.load(at + 10),
            tl.load(at + 11), tl.load(at + 12), tl.load(at + 13), tl.load(at + 14), tl.load(at + 15),
            tl.load(at + 16), tl.load(at + 17), tl.load(at + 18), tl.load(at + 19),
            tl.load(at + 20), tl.load(at + 21).to(tl.uint32, bitcast=True), tl.load(at + 22),
        )  # fmt: skip
    else:
        fields = host_fields(act)  # type: ignore[assignment]
    return fields


@triton.jit
def fence(ON_GPU: tl.constexpr, THREADS: tl.constexpr):
    """What this thread stored is performed for all ranks before what it stores next."""
    if ON_GPU:
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.u32 $0, $1;", "=r,r", [tl.arange(0, THREADS)], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def summed(seed, step, publication, index, sentinel, holds, RANKS: tl.constexpr, ON_GPU: tl.constexpr):
    """The word that every rank must make of all ranks' payloads."""
    first = due(seed, step, publication, 0, index, sentinel, holds, ON_GPU)
    low, high = low_half(first), high_half(first)
    for source in tl.static_range(1, RANKS):
        word = due(seed, step, publication, source, index, sentinel, holds, ON_GPU)
        low += low_half(word)
        high += high_half(word)
    return paired(low, high)


@triton.jit
def note(record, kind, step, act, source, parity, at, expected, found):
    """The first thing that goes wrong in a lane."""
    if tl.load(record + 1) == 0:
        tl.store(record + 1, kind)
        tl.store(record + 2, step)
        tl.store(record + 3, act)
        tl.store(record + 4, source)
        tl.store(record + 5, parity)
        tl.store(record + 6, at)
        tl.store(record + 7, expected.to(tl.int32, bitcast=True))
        tl.store(record + 8, found.to(tl.int32, bitcast=True))


@triton.jit
def publish(peers, own, word, start, stage, whole, to_owners, staged, turn, skew, rank, step, act, lane,
            live, row, column, owner, within, RANKS: tl.constexpr, ON_GPU: tl.constexpr):  # fmt: skip
    """Store this rank's words into its slot at every peer, now and then in two parts.

    ``start``: the slot's first word. ``within`` [words]: places in a slot. Whole rows go to all; else columns
    go to their owner, or this rank's own columns to all.
    """
    if staged > 0:
        # Another thread may read a word than wrote it: the compiler chooses for each access by itself.
        tl.store(own + stage + within, word, mask=live)
        tl.debug_barrier()
        word = tl.load(own + stage + within, mask=live, other=0, volatile=True)
        tl.debug_barrier()
    in_parts = torn(skew, rank, step, act, lane, ON_GPU)
    first = column % 4 == 0
    if in_parts > 1:
        first = row < in_parts
    for i in tl.static_range(RANKS):
        # Each rank begins with another peer, so that nobody is always the last to be served.
        target = (rank + i) % RANKS
        goes = live & ((owner == tl.where(to_owners > 0, target, rank)) | (whole > 0))
        to = mailbox(peers, (target + turn) % RANKS) + start + within
        if in_parts > 0:
            tl.store(to, word, mask=goes & first)
            delay(skew, rank, step, act, lane, 2 + i, ON_GPU)
            tl.store(to, word, mask=goes & (first == 0))
        else:
            tl.store(to, word, mask=goes)
        delay(skew, rank, step, act, lane, 12 + i % 8, ON_GPU)
    if staged > 0:
        tl.store(own + stage + within, tl.full(within.shape, POISON, tl.uint32), mask=live)
        tl.debug_barrier()


@triton.jit
def arrived(at, live, judged, sentinel, spins, ON_GPU: tl.constexpr):
    """The words at an address once none that is judged is the sentinel, and how many still are."""
    word = tl.load(at, mask=live, other=0, volatile=True)
    missing = tl.sum((judged & (word == sentinel)).to(tl.int32), 0)
    tries = 0
    while (missing > 0) & (tries < spins):
        word = tl.load(at, mask=live, other=0, volatile=True)
        missing = tl.sum((judged & (word == sentinel)).to(tl.int32), 0)
        tries += 1
        if not ON_GPU:
            tries = host_waits(tries, spins)
    return word, missing


@triton.jit
def taken(peers, own, record, start, slots, stage, whole, to_owners, judge_all, waits, pulled, publication,
          relayed, relays, sentinel, holds, seed, alive, source, parity, skew, rank, step, act, lane, spins,
          live, row, column, owner, within, index, COLUMNS: tl.constexpr, ON_GPU: tl.constexpr):  # fmt: skip
    """Wait for one source's words and compare them: the words (0 where none are due), and whether they
    came."""
    mine = live & ((owner == tl.where(to_owners > 0, rank, source)) | (whole > 0))
    judged = mine
    if judge_all == 0:
        judged = mine & (column % 4 == 0)
    if waits == 0:
        judged = mine & (column < 0)
    word, missing = arrived(
        own + (start + source * slots) + within, mine, judged, sentinel, spins * alive, ON_GPU
    )
    if pulled > 0:
        delay(skew, rank, step, act, lane, 24, ON_GPU)
        word = tl.load(mailbox(peers, source) + stage + within, mask=mine, other=0, volatile=True)
    expected = relayed
    if relays < 0:
        expected = due(seed, step, publication, source, index, sentinel, holds, ON_GPU)
    different = mine & (word != expected)
    count = tl.sum(different.to(tl.int32), 0)
    if missing > 0:
        first = tl.min(tl.where(judged & (word == sentinel), row * COLUMNS + column, 1 << 30), 0)
        nothing = tl.sum(index * 0, 0)
        note(record, 2, step, act, source, parity, first, nothing, nothing)
        alive = 0
    elif count > 0:
        first = tl.min(tl.where(different, row * COLUMNS + column, 1 << 30), 0)
        at_first = (row * COLUMNS + column) == first
        wanted = tl.sum(tl.where(at_first, expected, 0), 0)
        got = tl.sum(tl.where(at_first, word, 0), 0)
        note(record, 1, step, act, source, parity, first, wanted, got)
        tl.store(record, tl.load(record) + count)
    return word, alive


@triton.jit
def poll(peers, own, record, start, slots, stage, whole, to_owners, judge_all, waits, pulled, publication,
         relays, sentinel, holds, seed, alive, parity, skew, rank, step, act, lane, spins,
         live, row, column, owner, within, index,
         RANKS: tl.constexpr, COLUMNS: tl.constexpr, ON_GPU: tl.constexpr):  # fmt: skip
    """Take every source's words in rank order: their sum, or the union of their columns; and whether all
    came."""
    relayed = index * 0
    if relays >= 0:
        relayed = summed(seed, step, relays, index, sentinel, holds, RANKS, ON_GPU)
    word, alive = taken(
        peers, own, record, start, slots, stage, whole, to_owners, judge_all, waits, pulled, publication,
        relayed, relays, sentinel, holds, seed, alive, 0, parity, skew, rank, step, act, lane, spins, live,
        row, column, owner, within, index, COLUMNS, ON_GPU,
    )  # fmt: skip
    low, high, union = low_half(word), high_half(word), word
    for source in range(1, RANKS):
        word, alive = taken(
            peers, own, record, start, slots, stage, whole, to_owners, judge_all, waits, pulled, publication,
            relayed, relays, sentinel, holds, seed, alive, source, parity, skew, rank, step, act, lane, spins,
            live, row, column, owner, within, index, COLUMNS, ON_GPU,
        )  # fmt: skip
        low += low_half(word)
        high += high_half(word)
        union = union | word
    found = union
    if (whole > 0) | (to_owners > 0):
        found = paired(low, high)
    return found, alive


@triton.jit
def rearm(own, start, slots, rows, sentinel, row, within, RANKS: tl.constexpr):
    """Store the sentinel into every slot of a parity of this rank's own mailbox."""
    for slot in tl.static_range(RANKS):
        if (slot == 0) | (slots > 0):
            empty = tl.full(within.shape, sentinel, tl.uint32)
            tl.store(own + (start + slot * slots) + within, empty, mask=row < rows)


@triton.jit(
    do_not_specialize=["rank", "seed", "steps", "spins", "logs"],
    do_not_specialize_on_alignment=["starts", "counts", "batches"],
)
def acts_kernel(
    peers, table, starts, counts, batches, clock, skew, state, log, records,
    rank, seed, steps, spins, logs,
    RANKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
    CHUNK_COLUMNS: tl.constexpr, THREADS: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """Steps clock[0], clock[0] + 1, ... of one rank: acts starts[i] to starts[i] + counts[i] of each.

    ``peers``: addresses [ranks]. ``batches``: rows [steps]. ``state`` [lanes, rows, columns] and ``log``
    [steps since clock[1], lanes] where ``logs``. ``records``: [lanes, 16].
    """
    lane = tl.program_id(0)
    seed = seed.to(tl.uint32)
    word = tl.arange(0, ROWS * COLUMNS)
    row, column = word // COLUMNS, word % COLUMNS
    within = (row * LANES + lane) * COLUMNS + column
    index, owner = within.to(tl.uint32), column // CHUNK_COLUMNS
    record, own = records + lane * RECORD, mailbox(peers, rank)
    first_step, logged_from = tl.load(clock), tl.load(clock + 1)
    kept = state + lane * ROWS * COLUMNS + word
    held = tl.load(kept).to(tl.uint32, bitcast=True)
    carry = index * 0
    alive = tl.where(tl.load(record + 1) == 2, 0, 1)
    i = 0
    while (i < steps) & (alive > 0):
        step, batch = first_step + i, tl.load(batches + i)
        live = row < batch
        act = tl.load(starts + i)
        last = act + tl.load(counts + i)
        while (act < last) & (alive > 0):
            (
                verb, base, use, clears, advance, parities, rows, publication, relays, whole, to_owners,
                slots, is_canonical, judge_all, folded, staged, turn, stage, pulled, fenced, late, sentinel,
                holds,
            ) = fields_of(table, act, ON_GPU)  # fmt: skip
            tl.store(record + 10, step)
            tl.store(record + 11, act)
            delay(skew, rank, step, act, lane, 0, ON_GPU)
            for _ in range(tl.where(step % LATE_EVERY == 1, late, 0)):
                delay(skew, rank, step, act, lane, 3, ON_GPU)
            parity = (use + step * advance) % parities
            start = tl.multiple_of(base + parity * (RANKS * ROWS * LANES * COLUMNS), 16)
            if verb == 1:
                # All threads' re-arms come before any thread's publication.
                tl.debug_barrier()
                if fenced > 0:
                    fence(ON_GPU, THREADS)
                if relays < 0:
                    carry = payload(seed, step, publication, rank, index, sentinel, ON_GPU)
                if is_canonical > 0:
                    carry = publishable(carry, holds)
                publish(
                    peers, own, carry, start + rank * slots, stage, whole, to_owners, staged, turn, skew,
                    rank, step, act, lane, live, row, column, owner, within, RANKS, ON_GPU,
                )  # fmt: skip
            elif verb == 4:
                cleared = base + ((clears + step * advance) % parities) * (RANKS * ROWS * LANES * COLUMNS)
                live_rows = tl.where(rows > 0, rows, batch)
                rearm(own, cleared, slots, live_rows, sentinel, row, within, RANKS)
            else:
                carry, alive = poll(
                    peers, own, record, start, slots, stage, whole, to_owners, judge_all, 3 - verb, pulled,
                    publication, relays, sentinel, holds, seed, alive, parity, skew, rank, step, act, lane,
                    spins, live, row, column, owner, within, index, RANKS, COLUMNS, ON_GPU,
                )  # fmt: skip
                if folded > 0:
                    held = tl.where(live, held * 0x9E3779B1 + carry, held)
                tl.store(record + 9, tl.load(record + 9) + tl.where(verb == 2, alive, 0))
            act += 1
        if logs > 0:
            digest = tl.sum(mixed(held + index * 0x85EBCA77), 0)
            tl.store(log + (step - logged_from) * LANES + lane, digest.to(tl.int32, bitcast=True))
        i += 1
    tl.store(kept, held.to(tl.int32, bitcast=True))
