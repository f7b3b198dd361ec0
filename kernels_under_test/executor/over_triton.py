"""The specialised executor over the provider ``triton``, with the next layer's input projection fetched into
L2.

On a GPU prepared batches are CUDA graphs; elsewhere the same schedule runs in the interpreter, side work as
late as its joins allow.

What it cannot show: whether fetching pays (it changes no result; a fetch that writes would be seen).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels_under_test.executor.specialised import Design, Whole
from kernels_under_test.triton_portable import prefetch
from validation.step.executor import provider
from validation.subjects.kimi_k3.operation import Binding

MOST = 1 << 20  # bytes of one rank's projection that are fetched


def whole(device: str) -> Whole:
    """The executor ``triton, prepared``."""
    one = provider("triton")
    design = Design(fetch=fetch_projection)
    return Whole(f"triton, prepared on {device}", one.profile, one.run, one.launching, design=design)


def fetch_projection(binding: Binding, layer: int) -> Callable[[], None]:
    """The fetch of a layer's input projection, its table of ranges made once, ahead of any capture."""
    weight = binding.weight(layer, "in_proj")
    each = weight[0].numel() * weight.element_size()
    size = min(each, MOST) // prefetch.GRANULE * prefetch.GRANULE
    ranges = [(rank * each, size) for rank in range(len(weight))]
    table = torch.tensor(ranges, dtype=torch.int64, device=weight.device)
    return lambda: prefetch.fetch(weight, table)
