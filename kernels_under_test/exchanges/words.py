"""32-bit words of a mailbox: payloads drawn from a counter, what a writer makes canonical, sums of BF16.

A word holds two BF16 values, the even column in its low half: the sentinel is (low +0, high -0), so a writer
makes every -0 half +0. Or it holds four FP8 values, or an FP32 log sum: the sentinel is all ones, which a
writer of FP8 never has, and a log sum that is NaN, infinite or of a shard without keys becomes -3e38
(kimi_k3_ops.md, table 4.1).

A payload is a hash of seed, step, publication, rank and position: any bit pattern, and once in 64 words one
that is hard: either sentinel, -0 in either or both halves, NaN with payload bits, infinities, zero. Once in
16 rows of a lane all words are the sentinel, as a shard without keys or a row of padding may leave them.

What this cannot show: payloads of a real model, whose values lie closer together.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import triton
import triton.language as tl

Function = TypeVar("Function", bound=Callable[..., Any])
SENTINEL = tl.constexpr(0x80000000)
NEGATIVE_ZERO = tl.constexpr(0x8000)
LOW = tl.constexpr(0xFFFF)
HIGH = tl.constexpr(0xFFFF0000)
NAN = tl.constexpr(0x7FFF)
# What words hold (validation.stress.script.HOLDS); 0 is pairs of BF16.
BYTES, LOG_SUMS = tl.constexpr(1), tl.constexpr(2)
ALL_ONES = tl.constexpr(0xFFFFFFFF)
# The log sum of a shard without keys, -3e38, as a number and as FP32 bits.
NO_KEYS, NO_KEYS_BITS = tl.constexpr(-3e38), tl.constexpr(0xFF61B1E6)
COLUMN_BITS = tl.constexpr(5)  # of an index: 32 words of a lane's row (validation.stress.layout.COLUMNS)
ROW_KEY = tl.constexpr(0x5BD1E995)  # keeps what is drawn for a row apart from what is drawn for a word


@triton.jit
def mailbox(peers, rank):
    """The mailboxes of a rank, as this one addresses them."""
    return tl.multiple_of(tl.load(peers + rank).to(tl.pointer_type(tl.uint32)), 16)


@triton.jit
def mixed(x):
    """A permutation of 32-bit words with low bias (Wellons, "Prospecting for hash functions", lowbias32)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def drawn(seed, step, publication, source, index, sentinel):
    """The raw payload word at ``index`` that rank ``source`` publishes. uint32, any shape of ``index``."""
    key = seed + tl.cast(step, tl.uint32) * 0x9E3779B1
    key += tl.cast(publication, tl.uint32) * 0x85EBCA77 + tl.cast(source, tl.uint32) * 0xC2B2AE3D
    key = mixed(key)
    word = mixed(key + index * 0x9E3779B9)
    hard = (word >> 26) == 21
    kind = word & 7
    word = tl.where(hard & (kind == 0), 0x80000000, word)
    word = tl.where(hard & (kind == 1), 0x80008000, word)
    word = tl.where(hard & (kind == 2), 0x00008000, word)
    word = tl.where(hard & (kind == 3), 0xFFFFFFFF, word)
    word = tl.where(hard & (kind == 4), 0x7FC17F81, word)
    word = tl.where(hard & (kind == 5), 0, word)
    word = tl.where(hard & (kind == 6), 0x7F800000, word)
    word = tl.where(hard & (kind == 7), 0xFF800000, word)
    return tl.where((mixed(key ^ ROW_KEY ^ (index >> COLUMN_BITS)) & 15) == 0, sentinel, word)


@triton.jit
def payload(seed, step, publication, source, index, sentinel, ON_GPU: tl.constexpr):
    """``drawn``; an interpreted kernel has the host draw it, in a tenth of the time."""
    if ON_GPU:
        word = drawn(seed, step, publication, source, index, sentinel)
    else:
        word = host_drawn(seed, step, publication, source, index, sentinel)
    return word


@triton.jit
def due(seed, step, publication, source, index, sentinel, holds, ON_GPU: tl.constexpr):
    """What must arrive of that payload: its canonical words, drawn as ``payload`` draws them."""
    if ON_GPU:
        word = publishable(drawn(seed, step, publication, source, index, sentinel), holds)
    else:
        word = host_due(seed, step, publication, source, index, sentinel, holds)
    return word


@triton.jit
def publishable(word, holds):
    """The word that a writer publishes, by what words hold."""
    found = canonical(word)
    if holds == BYTES:
        found = canonical_bytes(word)
    elif holds == LOG_SUMS:
        found = canonical_log_sum(word)
    return found


@triton.jit
def canonical_bytes(word):
    """FP8 E4M3: 0x7F for 0xFF, the NaN that conversions give."""
    for i in tl.static_range(4):
        word = tl.where(((word >> (8 * i)) & 0xFF) == 0xFF, word ^ (0x80 << (8 * i)), word)
    return word


@triton.jit
def canonical_log_sum(word):
    """FP32: -3e38 for NaN, infinities, and anything as low."""
    x = word.to(tl.float32, bitcast=True)
    return tl.where((x > NO_KEYS) & (x < float("inf")), word, NO_KEYS_BITS)


@triton.jit
def canonical(word):
    """+0 for -0 in either half."""
    word = tl.where((word & LOW) == NEGATIVE_ZERO, word & HIGH, word)
    return tl.where((word & HIGH) == SENTINEL, word & LOW, word)


@triton.jit
def low_half(word):
    """FP32 value of the even column."""
    return (word << 16).to(tl.float32, bitcast=True)


@triton.jit
def high_half(word):
    """FP32 value of the odd column."""
    return (word & HIGH).to(tl.float32, bitcast=True)


@triton.jit
def rounded(x):
    """BF16 bits of an FP32 value: nearest even, every NaN 0x7FFF (PTX cvt.rn.bf16.f32). uint32."""
    bits = x.to(tl.uint32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, nearest, NAN)


@triton.jit
def paired(low, high):
    """One canonical word of two FP32 sums, each rounded once."""
    return canonical(rounded(low) | (rounded(high) << 16))


def asked(function: Function) -> Function:
    """Mark what an interpreted kernel calls of its host: the compiler passes over it."""
    function.__triton_builtin__ = True  # type: ignore[attr-defined]
    return function


def number(x: Any) -> int:
    """A Python integer of an interpreted scalar."""
    return int(x.handle.data.item()) if hasattr(x, "handle") else int(x)


def host_mixed(x: Any) -> Any:
    """``mixed`` of a numpy array of uint32."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


def drawn_words(seed: int, step: int, publication: int, source: int, index: Any, sentinel: int) -> Any:
    """``drawn`` of a numpy array of uint32: its twin on the host."""
    import numpy as np

    key = seed + step * 0x9E3779B1 + publication * 0x85EBCA77 + source * 0xC2B2AE3D
    with np.errstate(over="ignore"):
        mixed_key = host_mixed(np.array([key & 0xFFFFFFFF], np.uint32))
        word = host_mixed(mixed_key + index * np.uint32(0x9E3779B9))
        empty = host_mixed(mixed_key ^ np.uint32(ROW_KEY.value) ^ (index >> COLUMN_BITS.value)) & 15 == 0
    hard = np.flatnonzero((word >> 26) == 21)
    values = [0x80000000, 0x80008000, 0x00008000, 0xFFFFFFFF, 0x7FC17F81, 0, 0x7F800000, 0xFF800000]
    word[hard] = np.array(values, np.uint32)[word[hard] & 7]
    word[empty] = sentinel
    return word


def publishable_words(word: Any, holds: int) -> Any:
    """``publishable`` of a numpy array of uint32, in place."""
    import numpy as np

    if holds == BYTES.value:
        values = word.view(np.uint8)
        values[values == 0xFF] = 0x7F
    elif holds == LOG_SUMS.value:
        x = word.view(np.float32)
        word[~((x > np.float32(NO_KEYS.value)) & (x < np.inf))] = NO_KEYS_BITS.value
    else:
        word[(word & 0xFFFF) == 0x8000] &= 0xFFFF0000
        word[(word & 0xFFFF0000) == 0x80000000] &= 0xFFFF
    return word


@asked
def host_due(
    seed: Any, step: Any, publication: Any, source: Any, index: Any, sentinel: Any, holds: Any
) -> Any:
    """What an interpreted kernel expects."""
    words = _drawn(seed, step, publication, source, index, sentinel)
    return _tensor(publishable_words(words, number(holds)), index)


@asked
def host_drawn(seed: Any, step: Any, publication: Any, source: Any, index: Any, sentinel: Any) -> Any:
    """What an interpreted kernel gets from ``drawn_words``."""
    return _tensor(_drawn(seed, step, publication, source, index, sentinel), index)


def _drawn(seed: Any, step: Any, publication: Any, source: Any, index: Any, sentinel: Any) -> Any:
    counters = (number(seed), number(step), number(publication), number(source))
    return drawn_words(*counters, index.handle.data, number(sentinel))


def _tensor(words: Any, index: Any) -> Any:
    """Words as an interpreted kernel has them, in the shape of ``index``."""
    from triton.runtime.interpreter import TensorHandle

    return tl.core.tensor(TensorHandle(words, tl.uint32), index.type)
