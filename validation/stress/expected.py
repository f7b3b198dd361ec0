"""The hashes that a run's first steps must have: the same acts once more on the host, without mailboxes.

Ranks are compared with each other and with quiet runs; what all of them have wrong alike (columns of a row
that are joined wrongly, a result that is not folded, a row too few) only an independent value shows. Raw
payloads come from whoever drew them (``Drawn``); what writers make canonical, sums, places and the fold are
computed here.

What this catches: a runner whose kernel does not do what its table says. What it cannot catch: wrong draws,
which ranks and host share: any words serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from validation.stress.layout import COLUMNS, ROWS, Layout
from validation.stress.schedule import scheduled
from validation.stress.script import CHUNK, FOLDED, HOLDS, Step

if TYPE_CHECKING:
    from validation.stress.job import Job

# Raw payload words, uint32, of (seed, step, publication, source, index [words], sentinel).
Drawn = Callable[[int, int, int, int, Any, int], Any]
FOLD, PLACE = 0x9E3779B1, 0x85EBCA77  # factors of a lane's state and of a word's place in its hash


def hashes(job: Job, layout: Layout, steps: int, drawn: Drawn) -> str:
    """Eight hex digits for each of the first ``steps`` steps of a job without faults."""
    import numpy as np

    schedule, found = scheduled(job, 0, layout, None), ""
    index = np.arange(layout.slot, dtype=np.uint32).reshape(ROWS, layout.lanes, COLUMNS)
    held, weights = np.zeros_like(index), np.arange(layout.lanes, dtype=np.uint32) * 2 + 1
    for step in range(steps):
        live = schedule.batches[step]
        for act in schedule.variants[schedule.variant_of[step]]:
            if act.verb in ("poll", "read") and act.flags & FOLDED:
                word = _received(act, job.seed, step, index[:live], layout.ranks, drawn)
                held[:live] = held[:live] * np.uint32(FOLD) + word
        lanes = _mixed(held + index * np.uint32(PLACE)).sum((0, 2), dtype=np.uint32)
        found += f"{int((lanes * weights).sum(dtype=np.uint32)):08x}"
    return found


def _received(act: Step, seed: int, step: int, index: Any, ranks: int, drawn: Drawn) -> Any:
    """What a reader makes of all ranks' words: the owners' columns side by side, or the sum."""
    import numpy as np

    def sent(key: int, source: int) -> Any:
        word = drawn(seed, step, key, source, index.ravel(), act.sentinel).reshape(index.shape)
        return canonical(word, act.holds)

    if act.spread != CHUNK:
        return _sum([sent(act.key, source) for source in range(ranks)])
    whole = np.zeros_like(index)
    relayed = _sum([sent(act.relays, source) for source in range(ranks)]) if act.relays >= 0 else None
    share = -(-COLUMNS // ranks)
    for source in range(ranks):
        own = slice(source * share, (source + 1) * share)
        whole[..., own] = (sent(act.key, source) if relayed is None else relayed)[..., own]
    return whole


def canonical(word: Any, holds: int) -> Any:
    """What a writer publishes of words [..] (kimi_k3_ops.md, table 4.1): of BF16 pairs +0 for -0; of FP8
    bytes 0x7F for 0xFF; of an FP32 log sum -3e38 for what is no finite number above it."""
    import numpy as np

    word = np.ascontiguousarray(word)
    if holds == HOLDS["log sums"]:
        x, least = word.view(np.float32), np.float32(-3e38)
        return np.where(np.isfinite(x) & (x > least), x, least).view(np.uint32)
    unit, wrong, right = (np.uint8, 0xFF, 0x7F) if holds == HOLDS["bytes"] else (np.uint16, 0x8000, 0)
    parts = word.view(unit)
    return np.where(parts == wrong, unit(right), parts).view(np.uint32)


def _sum(words: list[Any]) -> Any:
    """Words of BF16 pairs added in FP32 in rank order, rounded once; -0 is +0, any NaN 0x7FFF."""
    import numpy as np

    halves = [np.stack([word << 16, word & 0xFFFF0000]).view(np.float32) for word in words]
    with np.errstate(all="ignore"):
        total = halves[0]
        for half in halves[1:]:
            total = total + half
    bits = total.view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    low, high = np.where(np.isnan(total), np.uint32(0x7FFF), nearest)
    return canonical(low | high << 16, HOLDS["pairs"])


def _mixed(x: Any) -> Any:
    """A permutation of 32-bit words with low bias (Wellons, "Prospecting for hash functions", lowbias32)."""
    x = (x ^ x >> 16) * 0x7FEB352D
    x = (x ^ x >> 15) * 0x846CA68B
    return x ^ x >> 16
