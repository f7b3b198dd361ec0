"""The one ``Release`` of this process, and which modules of vLLM are executed in it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from kernels_under_test import interpreter
from kernels_under_test.vllm_release import stand_ins
from kernels_under_test.vllm_release.tree import Release, find

_K3 = "vllm.models.kimi_k3.nvidia.ops"
_FLA = "vllm.third_party.flash_linear_attention.ops"
_DETERMINISM = "vllm.model_executor.determinism"

ATTN_RES = f"{_K3}.attn_res"
KDA = f"{_K3}.third_party.kda.fused_recurrent"
GATED_NORM = f"{_FLA}.kda"
CONVOLUTION = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
BATCH_INVARIANT = f"{_DETERMINISM}.batch_invariant"
MX_QUANTIZE = "vllm.model_executor.layers.quantization.utils.mxfp8_utils"
DCP = "vllm.v1.attention.ops.dcp"
FUSED_MOE = "vllm.model_executor.layers.fused_moe.fused_moe"
MLA_DECODE = "vllm.v1.attention.ops.triton_decode_attention"
MATH = "vllm.utils.math_utils"
TOPK = "vllm.third_party.triton_kernels.topk_details._topk_forward"
REJECTION = "vllm.v1.sample.rejection_sampler"

REAL = (
    REJECTION,
    TOPK,
    MLA_DECODE,
    FUSED_MOE,
    FUSED_MOE.replace("fused_moe.fused_moe", "fused_moe.activation"),
    DCP,
    MX_QUANTIZE,
    ATTN_RES,
    KDA,
    CONVOLUTION,
    BATCH_INVARIANT,
    f"{_DETERMINISM}.batch_invariant_configs",
    *(
        f"{_FLA}.{name}"
        for name in (
            "chunk_delta_h", "cumsum", "fused_recurrent", "index", "kda", "l2norm", "op", "solve_tril",
            "utils",
        )
    ),
    MATH,
)  # fmt: skip
CONSTANTS = ("vllm.v1.attention.backends.utils",)


@cache
def release() -> Release:
    """Raises Unavailable where there is no vLLM of the right version."""
    finish = stand_ins.late if interpreter.device() == "cpu" else lambda module: None
    return Release(find(), REAL, CONSTANTS, stand_ins.stand_ins(), finish)


def module(name: str) -> ModuleType:
    """One executed module of vLLM."""
    return release().module(name)
