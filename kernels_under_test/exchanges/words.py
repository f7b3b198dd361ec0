"""32-bit words of a mailbox: payloads drawn from a counter, what a writer canonicalises, sums of BF16 pairs.

A word holds two BF16 values, the even column in its low half. The sentinel is (low +0, high -0), so a writer
makes every -0 half +0 (kimi_k3_ops.md, table 4.1). A payload is a hash of seed, step, publication, rank and
position: any bit pattern, and once in 64 words one that is hard: the sentinel itself, -0 in either or both
halves, NaN with payload bits, all ones, zero.

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
def drawn(seed, step, publication, source, index):
    """The raw payload word at ``index`` that rank ``source`` publishes. uint32, any shape of ``index``."""
    key = seed + tl.cast(step, tl.uint32) * 0x9E3779B1
    key += tl.cast(publication, tl.uint32) * 0x85EBCA77 + tl.cast(source, tl.uint32) * 0xC2B2AE3D
    word = mixed(mixed(key) + index * 0x9E3779B9)
    hard = (word >> 26) == 21
    kind = word & 7
    word = tl.where(hard & (kind == 0), 0x80000000, word)
    word = tl.where(hard & (kind == 1), 0x80008000, word)
    word = tl.where(hard & (kind == 2), 0x00008000, word)
    word = tl.where(hard & (kind == 3), 0xFFFFFFFF, word)
    word = tl.where(hard & (kind == 4), 0x7FC17F81, word)
    return tl.where(hard & (kind == 5), 0, word)


@triton.jit
def payload(seed, step, publication, source, index, ON_GPU: tl.constexpr):
    """``drawn``; an interpreted kernel has the host draw it, in a tenth of the time."""
    if ON_GPU:
        word = drawn(seed, step, publication, source, index)
    else:
        word = host_drawn(seed, step, publication, source, index)
    return word


@triton.jit
def due(seed, step, publication, source, index, ON_GPU: tl.constexpr):
    """What must arrive of that payload: its canonical words, drawn as ``payload`` draws them."""
    if ON_GPU:
        word = canonical(drawn(seed, step, publication, source, index))
    else:
        word = host_due(seed, step, publication, source, index)
    return word


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


def drawn_words(seed: int, step: int, publication: int, source: int, index: Any) -> Any:
    """``drawn`` of a numpy array of uint32: its twin on the host."""
    import numpy as np

    key = seed + step * 0x9E3779B1 + publication * 0x85EBCA77 + source * 0xC2B2AE3D
    with np.errstate(over="ignore"):
        word = host_mixed(host_mixed(np.array([key & 0xFFFFFFFF], np.uint32)) + index * np.uint32(0x9E3779B9))
    hard = np.flatnonzero((word >> 26) == 21)
    values = np.array([0x80000000, 0x80008000, 0x00008000, 0xFFFFFFFF, 0x7FC17F81, 0, 0, 0], np.uint32)
    kinds = word[hard] & 7
    word[hard[kinds < 6]] = values[kinds[kinds < 6]]
    return word


def canonical_words(word: Any) -> Any:
    """``canonical`` of a numpy array of uint32."""
    word[(word & 0xFFFF) == 0x8000] &= 0xFFFF0000
    word[(word & 0xFFFF0000) == 0x80000000] &= 0xFFFF
    return word


@asked
def host_due(seed: Any, step: Any, publication: Any, source: Any, index: Any) -> Any:
    """What an interpreted kernel expects."""
    from triton.runtime.interpreter import TensorHandle

    words = drawn_words(number(seed), number(step), number(publication), number(source), index.handle.data)
    words = canonical_words(words)
    return tl.core.tensor(TensorHandle(words, tl.uint32), index.type)


@asked
def host_drawn(seed: Any, step: Any, publication: Any, source: Any, index: Any) -> Any:
    """What an interpreted kernel gets from ``drawn_words``."""
    from triton.runtime.interpreter import TensorHandle

    words = drawn_words(number(seed), number(step), number(publication), number(source), index.handle.data)
    return tl.core.tensor(TensorHandle(words, tl.uint32), index.type)
