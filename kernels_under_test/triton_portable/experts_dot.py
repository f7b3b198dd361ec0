"""Products of E2M1 weights and E4M3 activations on tensor cores, block by block of 32, without shared memory.

Both kinds of code are exact in FP16. A thread holds whole blocks (16 bytes) of two weight rows, moves the
bits of its codes to where a pair of FP16 has them, and gives its pairs to ``mma`` as they are: it
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
# Where a pair of FP16 has sign, exponent and mantissa of E2M1 times 2**-14, denormal or not.
_FIELDS = "0x8E008E00"
# All bits of a byte but its sign.
_MAGNITUDES = "0x7F7F7F7F"
# What brings the magnitudes and the signs of nibbles 1, 3, 5, 7 and of 0, 2, 4, 6 to these places of a byte.
_ODD = ("shr.b32 part, {0}, 3;", "mov.b32 sign, {0};")
_EVEN = ("shl.b32 part, {0}, 1;", "shl.b32 sign, {0}, 4;")


def _moved(word: str, pairs: list[str]) -> list[str]:
    """Instructions that make four FP16 pairs of a word of eight E2M1 codes, pair i of nibbles i and i + 4.

    Two steps, for every other nibble each: magnitudes and signs go to where the upper byte of an FP16 has
    them, in all four bytes at once (0xE4 takes the bits of the first where the mask has ones, of the second
    elsewhere); then two bytes at a time become a pair. Shifts to the left may become multiplications, which
    another pipe takes."""
    lines = []
    for moves, lower, upper in ((_ODD, pairs[1], pairs[3]), (_EVEN, pairs[0], pairs[2])):
        lines += [move.format(word) for move in moves]
        lines += [f"lop3.b32 part, part, sign, {_MAGNITUDES}, 0xE4;", f"and.b32 {upper}, part, {_FIELDS};"]
        lines += ["shl.b32 part, part, 8;", f"and.b32 {lower}, part, {_FIELDS};"]
    return lines


def _program() -> str:
    """$0 to $3: sums; $4 to $7 and $8 to $11: words of the top and the bottom row; then the
    activations' four pairs of word 0 to 3: two that an instruction takes are neighbours of one load."""
    top, bottom = [f"t{i}" for i in range(4)], [f"b{i}" for i in range(4)]
    lines = [f".reg .b32 part, sign, {', '.join(top + bottom)};"]
    lines += [f"mov.f32 ${i}, 0f00000000;" for i in range(4)]
    for word in range(4):
        lines += _moved(f"${4 + word}", top) + _moved(f"${8 + word}", bottom)
        for first in (0, 2):
            a = ", ".join((top[first], bottom[first], top[first + 1], bottom[first + 1]))
            b = f"${12 + 4 * word + first}, ${13 + 4 * word + first}"
            lines.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{$0, $1, $2, $3}}, {{{a}}}, {{{b}}}, "
                "{$0, $1, $2, $3};"
            )
    return "{\n" + "\n".join(lines) + "\n}"


SUMS = tl.constexpr(_program())
CONSTRAINTS = tl.constexpr(",".join(["=&f"] * 4 + ["r"] * 24))
RAISED = tl.constexpr(2.0**7)  # the activations, as far as FP16 goes
LOWERED = tl.constexpr(2.0**7)  # what the sums lack


@triton.jit
def hold_order():
    """Loads above it are asked for before anything below it is computed: the assembler would rather move
    them down to where they are used."""
    if ASSEMBLED:
        tl.inline_asm_elementwise(
            "bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r", [0], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _mine(pairs, zeros, one, two, inside):
    """What a thread gives to ``mma``: pairs of the four words of a block. Where another thread's block is
    multiplied it takes zeros from memory: no register has to be cleared."""
    lane = tl.arange(0, one.shape[0]) % 32
    # Column n of the other operand comes from the threads of row n: block n / 2 of activation row n % 2.
    column = lane // 4
    mine = (column // 2 == lane % 4) & inside
    block = tl.where(mine, pairs + tl.where(column % 2 == 0, one, two), zeros)
    at = block[:, None] + tl.arange(0, 4)[None, :]
    return tl.load(at), tl.load(at + 4), tl.load(at + 8), tl.load(at + 12)


@triton.jit
def _codes(words):
    """FP32 of the eight E2M1 codes of each word, times 2**-14. [items, 4, 2] to [items, 4, 2, 8]"""
    code = words[:, :, :, None] >> (4 * tl.arange(0, 8)[None, None, None, :])
    pattern = ((code & 7) << 22) | ((code & 8) << 28)
    return pattern.to(tl.float32, bitcast=True) * 2.0**112


@triton.jit
def _halves(pairs, row, inside):
    """FP32 of the activations that those codes are multiplied with: of every eight, pair i holds numbers i
    and i + 4. Rows [items, 2] to [items, 4, 2, 8]"""
    word = tl.arange(0, 4)[None, :, None, None]
    number = tl.arange(0, 8)[None, None, None, :]
    at = pairs + row[:, None, :, None] + 4 * word + number % 4
    both = tl.load(at, mask=inside[:, None, None, None], other=0)
    return (both >> (16 * (number // 4))).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def activations(pairs, zeros, one, two, inside):
    """Blocks of two activation rows for ``block_sums``, which may use them for many weight rows. ``pairs``:
    words that ``store_pairs`` left; ``one``, ``two`` [items]: where the blocks begin there; ``zeros``: 16
    words of zero. A block that is not ``inside`` is zero."""
    if ASSEMBLED:
        held = _mine(pairs, zeros, one, two, inside)
    else:
        held = _halves(pairs, tl.join(one, two), inside)
    return held


@triton.jit
def block_sums(top, bottom, held):
    """Sums over blocks of 32 of the products of codes, times 2**-7; FP32 [items, 4]: top row times activation
    row one, top times two, bottom times one, bottom times two. ``top``, ``bottom`` [items, 4]: weight words;
    ``held``: of ``activations``."""
    if ASSEMBLED:
        total = tl.inline_asm_elementwise(
            SUMS, CONSTRAINTS, [top, bottom, held[0], held[1], held[2], held[3]], tl.float32,
            is_pure=True, pack=4,
        )  # fmt: skip
    else:
        # By plain arithmetic: [items, word, weight row, activation row, code].
        products = _codes(tl.join(top, bottom))[:, :, :, None, :] * held[:, :, None, :, :]
        total = tl.reshape(tl.sum(tl.sum(products, axis=4), axis=1), [top.shape[0], 4])
    return total


@triton.jit
def block_scale(code):
    """2**(code - 127) in FP32 as ``scale_value`` has it: the maximum is for code 0, and what is infinite
    (code 255) becomes NaN, by few instructions of the integer pipe."""
    power = tl.maximum(code.to(tl.int32) << 23, 1 << 22).to(tl.float32, bitcast=True)
    return tl.fma(power, 0.0, power)


@triton.jit
def store_pairs(codes, scale, pairs, factors, block, live):
    """Blocks of E4M3 codes [BLOCKS, 32] as FP16, times 2**7, activations i and i + 4 of every eight side
    by side, and their scales (E8M0 codes ``scale``) as FP32."""
    k = tl.arange(0, 32)
    place = (k // 8 * 4 + k % 4) * 2 + k % 8 // 4
    to = pairs + block[:, None] * 32 + place[None, :]
    tl.store(to, codes.to(tl.float8e4nv, bitcast=True).to(tl.float16) * RAISED, mask=live[:, None])
    tl.store(factors + block, scale_value(scale), mask=live)
