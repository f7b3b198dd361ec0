"""MXFP8 quantisation through vLLM's Triton kernel, which its ROCm path launches for activations.

vLLM's: the largest element of each block, the scale by ``ceil(log2(largest / 448))``, the conversion. Ours:
the copies into ``codes`` and ``scales``. On NVIDIA GPUs vLLM takes a compiled kernel or plain torch with
the same formula.

A block that holds an infinity gets the scale 2**127 here, which flushes its other elements; the subject's
kernels take the exponent field of infinity less 8, 2**120. No rule covers such a block: those cases are not
served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels_under_test.vllm_release import modules
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.moe.quantize import MxQuantizeArguments

_quantize = modules.module(modules.MX_QUANTIZE)._mxfp8_e4m3_quantize_triton


def supports(case: Case) -> str | None:
    from validation.numerics.blocks import RULES

    if RULES[case["rule"]] != "no_saturation":
        return "vllm raises the scale so that nothing saturates"
    return (
        "vllm gives a block with an infinity the scale 2**127, not 2**120" if case.regime == "huge" else None
    )


@implements(
    "mx_quantize", provider="vllm_triton", profile="specialized", requires=("triton",), supports=supports
)
def mx_quantize(a: MxQuantizeArguments) -> None:
    """codes[row, column], scales[row, column / 32] of x[row, column]."""
    codes, scales = _quantize(a.x)
    a.codes.copy_(codes.view(torch.uint8))
    a.scales.copy_(scales)
