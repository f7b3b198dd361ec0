"""BF16 rows to MXFP8, a program a tile of blocks: what the subject's plan and experts do to the latent.

One pass: a tile of ``BLOCKS`` blocks of 32 is read once, its maxima give the scale bytes, the rescaled
elements the E4M3 bytes. Nothing is shared between programs.

What this cannot show: the subject's plan kernel does this beside the routing, in the same launch.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis, programmatic
from kernels_under_test.triton_portable.mx import quantise_tile
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.moe.quantize import MxQuantizeArguments

# Blocks a program: one row of the latent (112 blocks) in a few programs, or whole in the interpreter.
BLOCKS, WARPS = 16, 2
INTERPRETED_BLOCKS = 128


@triton.jit
def mx_quantize_kernel(
    x, codes, scales, stride_x, stride_codes, stride_scales, blocks,
    FLOOR: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(1).to(tl.int64)
    quantise_tile(
        x + row * stride_x, codes + row * stride_codes, scales + row * stride_scales, tl.program_id(0),
        blocks, FLOOR, BLOCKS,
    )  # fmt: skip


def reason(width: int) -> str | None:
    """Why a row of this width cannot be quantised, or None."""
    return None if width % 32 == 0 else f"rows must be whole blocks of 32; the width is {width}"


def mx_quantize(a: MxQuantizeArguments) -> None:
    """codes[B, L], scales[B, L / 32] of BF16 x[B, L]; any B, L a multiple of 32. Rows may lie apart."""
    need_dense_last_axis(x=a.x, codes=a.codes, scales=a.scales)
    rows, width = a.x.shape
    if why := reason(width):
        raise UserError(why)
    size = INTERPRETED_BLOCKS if interpreted(a.x) else BLOCKS
    mx_quantize_kernel[triton.cdiv(width // 32, size), rows](
        a.x, a.codes, a.scales, a.x.stride(0), a.codes.stride(0), a.scales.stride(0), width // 32,
        FLOOR=a.rule == "floor", BLOCKS=size, num_warps=WARPS, **programmatic(a.x),
    )  # fmt: skip


def _supports(case: Case) -> str | None:
    return reason(case["width"])


TABLE = (Route(rows=1 << 30, kernels=("mx_quantize_kernel",), settings={"blocks": BLOCKS, "warps": WARPS}),)
OPERATIONS = {
    "mx_quantize": {
        "function": mx_quantize,
        "kernels": lambda case: ("mx_quantize_kernel",),
        "table": TABLE,
        "supports": _supports,
    },
}
