"""Products of E2M1 weights and E4M3 activations on tensor cores, block by block of 32, without shared memory.

Both kinds of code are exact in FP16. A thread holds whole blocks (16 bytes) of two weight rows, moves the
bits of two codes at a time to where a pair of FP16 has them, and gives its pairs to ``mma`` as they are: it
does not matter which of a row's columns stand where along K, as long as the activations stand there too. The
eight columns of the other operand are four blocks of two activation rows, each zero where another thread's
block is multiplied: so a thread receives the sums of its own blocks, and both block scales are applied once a
block, in FP32. Codes and products are exact.

The instruction is one of a warp, and its operands are where Triton's layout has put them: of a tile [items,
4], thread ``lane`` of a warp holds the items that are ``lane`` modulo 32; item ``4 * row + block`` is a block
of a row. ``LAYOUT`` is that layout; a test compiles the kernels and compares. What this cannot show: the
subject's block-scaled instruction.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.mx import scale_value

# The interpreter has no assembler.
ASSEMBLED = tl.constexpr(device() == "cuda")
LAYOUT = "sizePerThread = [1, 4], threadsPerWarp = [32, 1], warpsPerCTA = [{warps}, 1], order = [1, 0]"
# A nibble's exponent and mantissa go to bits 9 to 11, its sign to bit 15, for nibbles i and i + 4 of a word:
# E2M1 times 2**-14, denormal or not. (How far they are shifted left; right if negative.)
_MOVES = ((9, 12), (5, 8), (1, 4), (-3, 0))


def _moved(word: str, pairs: list[str]) -> list[str]:
    """Instructions that make four FP16 pairs of a word of eight E2M1 codes."""
    lines = []
    for (magnitude, sign), pair in zip(_MOVES, pairs, strict=True):
        shift = (
            f"shl.b32 part, {word}, {magnitude};" if magnitude > 0 else f"shr.u32 part, {word}, {-magnitude};"
        )
        lines += [shift, "and.b32 part, part, 0x0E000E00;"]
        lines += [f"shl.b32 {pair}, {word}, {sign};"] if sign else [f"mov.b32 {pair}, {word};"]
        lines += [f"lop3.b32 {pair}, {pair}, 0x80008000, part, 0xEA;"]
    return lines


def _program() -> str:
    """$0 to $3: sums; $4 to $7 and $8 to $11: words of the top and the bottom row; then four pairs of the
    activations of word 0 to 3, the first pairs of all words before the second ones."""
    top, bottom = [f"t{i}" for i in range(4)], [f"b{i}" for i in range(4)]
    lines = [f".reg .b32 part, {', '.join(top + bottom)};"]
    lines += [f"mov.f32 ${i}, 0f00000000;" for i in range(4)]
    for word in range(4):
        lines += _moved(f"${4 + word}", top) + _moved(f"${8 + word}", bottom)
        for first in (0, 2):
            a = ", ".join((top[first], bottom[first], top[first + 1], bottom[first + 1]))
            b = ", ".join(f"${12 + 4 * (first + i) + word}" for i in range(2))
            lines.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{$0, $1, $2, $3}}, {{{a}}}, {{{b}}}, "
                "{$0, $1, $2, $3};"
            )
    return "{\n" + "\n".join(lines) + "\n}"


SUMS = tl.constexpr(_program())
CONSTRAINTS = tl.constexpr(",".join(["=&f"] * 4 + ["r"] * 24))
LOWERED = tl.constexpr(2.0**14)


@triton.jit
def _on_tensor_cores(top, bottom, pairs, one, two, inside):
    """See ``block_sums``; words are those of a warp's threads."""
    lane = tl.arange(0, top.shape[0]) % 32
    # Column n of the other operand comes from the threads of row n: block n / 2 of activation row n % 2.
    column = lane // 4
    at = pairs + tl.where(column % 2 == 0, one, two)[:, None] + tl.arange(0, 4)[None, :]
    mine = ((column // 2 == lane % 4) & inside)[:, None]
    a = tl.load(at, mask=mine, other=0)
    b = tl.load(at + 4, mask=mine, other=0)
    c = tl.load(at + 8, mask=mine, other=0)
    d = tl.load(at + 12, mask=mine, other=0)
    return tl.inline_asm_elementwise(
        SUMS, CONSTRAINTS, [top, bottom, a, b, c, d], tl.float32, is_pure=True, pack=4
    )


@triton.jit
def _code(word, number: tl.constexpr):
    """FP32 of one of eight E2M1 codes, times 2**-14."""
    code = word >> (4 * number)
    pattern = ((code & 7) << 22) | ((code & 8) << 28)
    return pattern.to(tl.float32, bitcast=True) * 2.0**112


@triton.jit
def _half(word, number: tl.constexpr):
    """FP32 of one FP16 of a pair."""
    return (word >> (16 * number)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _sum(words, at, inside):
    """Sums [items] of the blocks of one weight row and one activation row, by plain arithmetic."""
    total = tl.zeros(words.shape, dtype=tl.float32)
    for i in tl.static_range(4):
        pair = tl.load(at + 4 * i, mask=inside, other=0)
        total += _code(words, i) * _half(pair, 0) + _code(words, i + 4) * _half(pair, 1)
    return tl.sum(total, axis=1)


@triton.jit
def block_sums(top, bottom, pairs, one, two, inside):
    """Sums over blocks of 32 of the products of codes, times 2**-14; FP32 [items, 4]: top row times
    activation row one, top times two, bottom times one, bottom times two.

    ``top``, ``bottom`` [items, 4]: weight words; ``pairs``: words that ``store_pairs`` left; ``one``, ``two``
    [items]: where the activations' block begins there. A block that is not ``inside`` gives 0."""
    if ASSEMBLED:
        total = _on_tensor_cores(top, bottom, pairs, one, two, inside)
    else:
        word, live = tl.arange(0, 4)[None, :], inside[:, None]
        at_one, at_two = pairs + one[:, None] + word, pairs + two[:, None] + word
        total = tl.where(word == 0, _sum(top, at_one, live)[:, None], 0.0)
        total = tl.where(word == 1, _sum(top, at_two, live)[:, None], total)
        total = tl.where(word == 2, _sum(bottom, at_one, live)[:, None], total)
        total = tl.where(word == 3, _sum(bottom, at_two, live)[:, None], total)
    return total


@triton.jit
def store_pairs(codes, scale, pairs, factors, block, live):
    """Blocks of E4M3 codes [BLOCKS, 32] as FP16, activations i and i + 4 of every eight side by side, and
    their scales (E8M0 codes ``scale``) as FP32."""
    k = tl.arange(0, 32)
    place = (k % 4 * 4 + k // 8) * 2 + k % 8 // 4
    to = pairs + block[:, None] * 32 + place[None, :]
    tl.store(to, codes.to(tl.float8e4nv, bitcast=True).to(tl.float16), mask=live[:, None])
    tl.store(factors + block, scale_value(scale), mask=live)
