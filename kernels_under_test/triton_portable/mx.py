"""MX formats in registers: scale rules, E4M3 and E2M1, as ``tl`` functions of the quantising kernels.

Everything here is exact or rounds once, by the subject's appendix A. What this cannot show: the subject's
block-scaled tensor-core instruction, which takes codes and scales as they are.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def block_maximum(x, axis: tl.constexpr):
    """max |x| along ``axis``, NaN ignored (0 if there is nothing else)."""
    return tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=axis)


@triton.jit
def scale_code(largest, FLOOR: tl.constexpr):
    """E8M0 code (int32) of a block with the FP32 maximum ``largest``."""
    pattern = largest.to(tl.int32, bitcast=True)
    exponent = pattern >> 23
    if FLOOR:
        code = tl.where(exponent == 255, 254, tl.maximum(exponent - 8, 0))
    else:
        raised = exponent - 8 + tl.where((pattern & 0x7FFFFF) > 0x600000, 1, 0)
        code = tl.where(exponent == 0, 0, tl.minimum(tl.maximum(raised, 0), 254))
    return code


@triton.jit
def rescale(code):
    """2**(127 - code) in FP32; 0 from code 254 on."""
    return tl.where(code >= 254, 0, (254 - code) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_value(code):
    """2**(code - 127) in FP32, for codes below 255; code 255 is NaN. ``code`` int32"""
    normal = tl.where(code == 255, 0x7FC00000, code << 23)
    return tl.where(code == 0, 1 << 22, normal).to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(x):
    """FP32 to E4M3: nearest, ties to even, saturating at 448; NaN stays NaN. Bytes (uint8)"""
    bounded = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))
    return bounded.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def quantise_tile(x, codes, scales, tile, blocks, FLOOR: tl.constexpr, BLOCKS: tl.constexpr):
    """BF16 of one row at ``x`` to E4M3 bytes and E8M0 bytes: BLOCKS blocks of 32 columns from tile * BLOCKS
    on, of ``blocks`` in all."""
    block = tile * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    live = (block < blocks)[:, None] & (column >= 0)
    v = tl.load(x + column, mask=live, other=0.0).to(tl.float32)
    code = scale_code(block_maximum(v, 1), FLOOR)
    tl.store(scales + block, code.to(tl.uint8), mask=block < blocks)
    tl.store(codes + column, to_e4m3(v * rescale(code)[:, None]), mask=live)
