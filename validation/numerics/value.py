"""A tensor of predictions: mean, variance of the smooth noise, and the rare jumps.

Operators build the prediction of the result; ``validation.numerics.arithmetic`` says which noise each adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

FP32_BITS = 24


class Operations(Protocol):
    """What the operators of a value are carried out by: an arithmetic."""

    def add(self, a: Value, b: Value | Tensor | float) -> Value: ...
    def multiply(self, a: Value, b: Value | Tensor | float) -> Value: ...
    def divide(self, a: Value, b: Value | Tensor | float) -> Value: ...


@dataclass
class Value:
    """float64 tensors of one shape. ``variance`` None: exactly known. ``jump`` is the largest single jump.

    ``bits``: significand bits that the mean is known to need; the product of two BF16 values needs 16, so
    FP32 holds it without rounding.
    """

    ar: Operations
    mean: Tensor
    variance: Tensor | None = None
    jump_variance: Tensor | None = None
    jump: Tensor | None = None
    bits: int = FP32_BITS

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    def parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.variance, self.jump_variance, self.jump

    def map(self, view: Any) -> Value:
        """Apply a function that only rearranges elements (index, reshape, expand) to every part."""
        variance, jump_variance, jump = (None if part is None else view(part) for part in self.parts())
        return Value(self.ar, view(self.mean), variance, jump_variance, jump, self.bits)

    def __getitem__(self, index: Any) -> Value:
        return self.map(lambda part: part[index])

    def reshape(self, *shape: int) -> Value:
        return self.map(lambda part: part.reshape(*shape))

    def unsqueeze(self, dim: int) -> Value:
        return self.map(lambda part: part.unsqueeze(dim))

    def __add__(self, other: Value | Tensor | float) -> Value:
        return self.ar.add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Value:
        return Value(self.ar, -self.mean, *self.parts(), bits=self.bits)

    def __sub__(self, other: Value) -> Value:
        return self.ar.add(self, -other)

    def __mul__(self, other: Value | Tensor | float) -> Value:
        return self.ar.multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value) -> Value:
        return self.ar.divide(self, other)


def accumulate(*terms: Tensor | None) -> Tensor | None:
    """Sum of the terms that are there; None if none is."""
    present = [term for term in terms if term is not None]
    if not present:
        return None
    total = present[0]
    for term in present[1:]:
        total = total + term
    return total


def largest(*terms: Tensor | None) -> Tensor | None:
    """Element-wise maximum of the terms that are there (broadcasting); None if none is."""
    present = [term for term in terms if term is not None]
    if not present:
        return None
    top = present[0]
    for term in present[1:]:
        top = torch.maximum(*torch.broadcast_tensors(top, term))
    return top


def scaled(part: Tensor | None, factor: Tensor) -> Tensor | None:
    return None if part is None else part * factor
