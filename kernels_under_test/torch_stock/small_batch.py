"""A MoE layer in the stock order: the stock operations of its stages, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels_under_test.torch_stock import experts, moe_front, moe_tail, mx_quantize, route, shared_expert
from validation.contracts.moe import small_batch as stages
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.moe.small_batch import SmallBatchArguments


@implements("small_batch", provider="torch", profile="stock")
def small_batch(a: SmallBatchArguments) -> None:
    """Everything that ranks publish, and what every rank ends with."""
    moe_front.moe_front(stages.front_arguments(a))
    route.route(stages.route_arguments(a, a.logits))
    x = mx_quantize.quantized(a.latent.float(), "no_saturation")
    for rank in range(a.ranks):
        experts.experts(stages.experts_arguments(a, rank, x, a.ids, a.weights))
    shared_expert.shared_expert(stages.shared_arguments(a))
    moe_tail.moe_tail(stages.tail_arguments(a, a.routed, a.shared))
