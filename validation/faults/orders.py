"""Orders of summation that honest kernels use: the same FP32 additions, arranged differently.

Each order sums FP32 terms along a dimension and multiplies matrices over K. What this cannot represent:
tensor cores' truncating accumulators (only a device has them).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Sum = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Order:
    """``sum(terms, dim)`` in FP32; ``split``: into how many contiguous K ranges a matrix product is cut."""

    name: str
    sum: Sum
    split: int = 1
    reverse: bool = False

    def matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [.., k] @ weight [n, k].T with FP32 accumulation, K range by K range."""
        total: Tensor | None = None
        pieces = list(
            zip(
                x.float().tensor_split(self.split, -1),
                weight.float().tensor_split(self.split, -1),
                strict=True,
            )
        )
        for part_x, part_w in reversed(pieces) if self.reverse else pieces:
            partial = part_x @ part_w.T
            total = partial if total is None else total + partial
        assert total is not None
        return total


def _library(terms: Tensor, dim: int) -> Tensor:
    return terms.sum(dim)


def _chain(terms: Tensor, dim: int) -> Tensor:
    pieces = terms.unbind(dim)
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total


def _pairwise(terms: Tensor, dim: int) -> Tensor:
    terms = terms.movedim(dim, -1)
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = torch.nn.functional.pad(terms, (0, 1))
        terms = terms[..., 0::2] + terms[..., 1::2]
    return terms[..., 0]


def _blocked(width: int) -> Sum:
    """Chains of ``width`` terms side by side, their results in a chain."""

    def add(terms: Tensor, dim: int) -> Tensor:
        terms = terms.movedim(dim, -1)
        terms = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % width)).unflatten(-1, (-1, width))
        return _chain(_chain(terms, -1), -1)

    return add


def _strided(lanes: int) -> Sum:
    """Lane l adds terms l, l + lanes, ...; lanes are added pairwise, as a warp does."""

    def add(terms: Tensor, dim: int) -> Tensor:
        terms = terms.movedim(dim, -1)
        terms = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % lanes)).unflatten(-1, (-1, lanes))
        return _pairwise(_chain(terms, -2), -1)

    return add


def _permuted(add: Sum, seed: int) -> Sum:
    def shuffled(terms: Tensor, dim: int) -> Tensor:
        order = torch.randperm(terms.shape[dim], generator=torch.Generator().manual_seed(seed))
        return add(terms.index_select(dim, order.to(terms.device)), dim)

    return shuffled


def honest_order(seed: int) -> Order:
    """One of the honest orders, drawn by seed: library, chain (up to 256 terms), pairwise, blocked, strided
    lanes, any of them over permuted terms; matrix products cut into 1 to 16 K ranges."""
    draw = random.Random(seed)
    width = draw.choice((8, 16, 32, 64, 128, 256))
    kinds: dict[str, Sum] = {
        "library": _library,
        "pairwise": _pairwise,
        f"blocks of {width}": _blocked(width),
        f"{width} lanes": _strided(width),
    }
    name = draw.choice(sorted(kinds))
    add = kinds[name]
    if draw.random() < 0.5:
        name, add = f"{name}, permuted", _permuted(add, seed)
    return Order(name, add, split=draw.choice((1, 2, 3, 4, 8, 16)), reverse=draw.random() < 0.5)


LIBRARY = Order("library", _library)
