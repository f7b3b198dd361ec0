"""Repetition at the end of a reply: the shortest period that its last tokens have, in linear time.

What this catches: a reply that ends in a block of any length said again and again, and one token for ever
(NaN logits become token 0, "!!!!": report B169). What it cannot catch: loops that change a little each time
(a counter); ``novelty`` falls then. A loop that the model leaves again counts only in ``longest_run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TIMES = 3  # a block said twice may be a quotation
COVERED = 48  # tokens; tables and rulers repeat for fewer
ENDS = 1  # tokens that may follow the loop: the end-of-text token
NGRAM, TAIL = 8, 2048


@dataclass(frozen=True)
class Loop:
    """The last ``covered`` tokens (up to an end token) repeat with ``period``; both 0 if there is no loop."""

    period: int = 0
    covered: int = 0

    def __bool__(self) -> bool:
        return self.period > 0


def final_loop(tokens: Sequence[int] | np.ndarray, times: int = TIMES, covered: int = COVERED) -> Loop:
    """The loop in which a reply ends: the shortest period p whose repetition covers at least ``covered``
    tokens and ``times`` periods. One end token may follow it. O(tokens).
    """
    last, *rest = np.asarray(tokens).tolist()[::-1] or [-1]
    for shift, extent in enumerate(self_overlap(rest)):
        if shift == 0:
            continue
        needed = max(covered, times * shift)
        # With the last token, if it continues the repetition; else without it: one end token may follow.
        if rest[shift - 1] == last and shift + 1 + extent >= needed:
            return Loop(shift, shift + 1 + extent)
        if extent and shift + extent >= needed:
            return Loop(shift, shift + extent)
    return Loop()


def self_overlap(sequence: Sequence[int]) -> list[int]:
    """For each shift p the length of the longest common prefix of ``sequence`` and ``sequence[p:]`` (0 for p
    = 0).

    The Z algorithm (D. Gusfield, Algorithms on Strings, Trees and Sequences, 1997, 1.4).
    """
    n = len(sequence)
    out = [0] * n
    left = right = 0
    for i in range(1, n):
        length = 0
        if i < right:
            length = out[i - left]
            if length < right - i:
                out[i] = length
                continue
            length = right - i
        while i + length < n and sequence[length] == sequence[i + length]:
            length += 1
        out[i] = length
        if i + length > right:
            left, right = i, i + length
    return out


@dataclass(frozen=True)
class Run:
    """The longest run of one token, and the run at the end (up to an end token) with its token, or -1."""

    longest: int = 0
    final: int = 0
    token: int = -1


def runs(tokens: Sequence[int] | np.ndarray) -> Run:
    """Runs of equal tokens."""
    array = np.asarray(tokens)
    if not len(array):
        return Run()
    starts = np.flatnonzero(np.r_[True, array[1:] != array[:-1]])
    lengths = np.diff(np.r_[starts, len(array)])
    last = len(lengths) - 1
    if last and lengths[last] <= ENDS and lengths[last - 1] > lengths[last]:
        last -= 1
    return Run(int(lengths.max()), int(lengths[last]), int(array[starts[last]]))


def novelty(tokens: Sequence[int] | np.ndarray, ngram: int = NGRAM, tail: int = TAIL) -> float:
    """Share of distinct n-grams among those of the last ``tail`` tokens; NaN for fewer than 2 n tokens."""
    array = np.asarray(tokens, np.int64)[-tail:]
    if len(array) < 2 * ngram:
        return float("nan")
    windows = np.lib.stride_tricks.sliding_window_view(array, ngram)
    return len(np.unique(windows, axis=0)) / len(windows)
