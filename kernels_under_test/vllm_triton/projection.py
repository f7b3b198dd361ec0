"""Projections through vLLM's persistent Triton matmul, the one that it runs in its batch-invariant mode.

vLLM's: the product with FP32 accumulation in one chain of K tiles of 64, whatever the batch, and the
rounding to BF16. Ours: the copy of the returned matrix into ``out``. Kimi K3 itself takes other matmuls
(skinny, split-K, cuBLAS), all compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels_under_test.vllm_release import modules
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.arguments import ProjectionArguments

_matmul = modules.module(modules.BATCH_INVARIANT).matmul_persistent


@implements("projection", provider="vllm_triton", profile="specialized", requires=("triton",))
def projection(a: ProjectionArguments) -> None:
    """y = bf16(x W^T)."""
    a.out.copy_(_matmul(a.x, a.weight.T))
