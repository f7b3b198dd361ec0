"""Routing in plain PyTorch: sigmoid, biased top-k, gather, renormalise, scale.

``torch.topk`` alone takes NaN for the largest key, and the plain form of the stock path leaves out the 1e-20;
the contract does neither, so NaN keys are lowered first and the sum gets its term. Ties come out in any order
and the 16 are not sorted, as in the stock path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.moe.route import RouteArguments

TINY = 1e-20


@implements("route", provider="torch", profile="stock")
def route(a: RouteArguments) -> None:
    """ids[row, slot] and weights[row, slot] = s / (sum s + 1e-20) * scale."""
    scores = torch.sigmoid(a.logits)
    keys = scores + a.bias
    keys = torch.where(torch.isnan(keys), float("-inf"), keys)
    ids = keys.topk(a.top, dim=-1, sorted=False).indices
    picked = scores.gather(-1, ids)
    if a.renormalise:
        picked = picked / (picked.sum(-1, keepdim=True) + TINY)
    a.ids.copy_(ids)
    a.weights.copy_(picked * a.scale)
