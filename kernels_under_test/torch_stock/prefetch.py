"""The stock step has no prefetch controller: nothing is fetched ahead, and the weights are read when
needed."""

from __future__ import annotations

import torch

from validation.contracts.prefetch import PrefetchArguments
from validation.providers import implements


@implements("prefetch", provider="torch", profile="stock")
def prefetch(a: PrefetchArguments) -> None:
    """planned = 0; out[range] = bf16(x . weight of that range)."""
    a.planned.zero_()
    for position, number in enumerate(a.order.tolist()):
        size = int(a.sizes[number])
        products = a.weights[number, :size].float() * a.x[:size].float()
        a.out[position] = products.sum(dtype=torch.float32)
