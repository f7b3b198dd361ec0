"""Arguments on the GPU with nothing around them: every tensor an allocation of its own size.

The arena's red zones and poison are memory that was written; a tool would take reads of it for right. Here
what a kernel must write is not written, and neither are the gaps between the rows of a strided tensor.

Needs PYTORCH_NO_CUDA_MEMORY_CACHING=1, or PyTorch hands out parts of larger blocks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from validation.contracts import contract_named
from validation.contracts.contract import Case, tensor_specs


def arguments(case: Case, device: str = "cuda") -> Any:
    """The arguments of a case, drawn on the CPU and placed on the GPU."""
    contract = contract_named(case.op)
    clean = contract.build(case)
    strides = contract.strides(clean)
    placed = {}
    for name, spec in tensor_specs(clean).items():
        value = getattr(clean, name)
        if value is not None:
            placed[name] = bare(value, strides.get(name), device)
            if spec.access != "write":
                placed[name].copy_(value)
    return dataclasses.replace(clean, **placed)


def bare(like: Tensor, strides: tuple[int, ...] | None, device: str) -> Tensor:
    """Unwritten memory for a tensor, of exactly the bytes from its first element to its last."""
    if strides is None:
        return torch.empty(like.shape, dtype=like.dtype, device=device)
    reach = sum((n - 1) * s for n, s in zip(like.shape, strides, strict=True))
    span = reach + 1 if like.numel() else 0
    return torch.empty(span, dtype=like.dtype, device=device).as_strided(like.shape, strides)
