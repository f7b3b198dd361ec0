"""BF16 matrix products that keep their partial sums in FP32.

PyTorch lets cuBLAS round the partial sums of a split-K product to BF16
(``torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction``, on by default). On an H200 that
happens, for one, to [6, 32] x [32, 200] with a row pitch that is no multiple of 8: 464 of 1,200 results were
off their grid point. The profiles here declare FP32 sums, so the providers turn it off around their products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fp32_partial_sums() -> Iterator[None]:
    """Within, BF16 products add in FP32 to the end; the process's setting is put back after."""
    setting = torch.backends.cuda.matmul
    before = setting.allow_bf16_reduced_precision_reduction
    setting.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        setting.allow_bf16_reduced_precision_reduction = before
