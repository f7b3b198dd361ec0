"""Storage formats as exact grids: BF16, FP8 E4M3, E2M1, E8M0, FP32.

Every function works on float64 tensors and is exact: a grid point of these formats, its neighbours and the
midpoints between them are all representable in float64.

Catches: a cast that truncates, wraps instead of saturating, or mishandles subnormals. Cannot catch: what a
backend does inside its accumulators (see ``reductions``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_EXPONENT_BIAS = 1023
_MANTISSA_BITS = 52
_EXPONENT_FIELD = 0x7FF << _MANTISSA_BITS


def exponent(x: Tensor) -> Tensor:
    """floor(log2 |x|) of float64 ``x`` as int64; -1023 for zero and float64 subnormals, 1024 for inf and
    NaN."""
    return ((x.view(torch.int64) >> _MANTISSA_BITS) & 0x7FF) - _EXPONENT_BIAS


def power_of_two(e: Tensor) -> Tensor:
    """2.0**e as float64 for int64 ``e`` within the normal range; exact."""
    return ((e + _EXPONENT_BIAS) << _MANTISSA_BITS).view(torch.float64)


@dataclass(frozen=True)
class Format:
    """A binary floating-point grid.

    ``precision`` counts significand bits with the implicit one; ``emin`` is the exponent of the smallest
    normal number. Values beyond ``maximum`` saturate, or overflow to infinity when ``overflows``.
    """

    name: str
    precision: int
    emin: int
    maximum: float
    overflows: bool
    unsigned_powers: bool = False

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest: 2**-precision."""
        return 2.0**-self.precision

    @property
    def last_midpoint(self) -> float:
        """Between ``maximum`` and the grid point that would come next."""
        return self.maximum + 2.0 ** (math.frexp(self.maximum)[1] - 1 - self.precision)

    def spacing(self, x: Tensor) -> Tensor:
        """Distance of neighbouring grid points in the binade of ``x`` (the ulp). float64, same shape."""
        lowest, highest = ((e + _EXPONENT_BIAS) << _MANTISSA_BITS for e in (self.emin, _EXPONENT_BIAS))
        binade = (x.contiguous().view(torch.int64) & _EXPONENT_FIELD).clamp(min=lowest, max=highest)
        return (binade - ((self.precision - 1) << _MANTISSA_BITS)).view(torch.float64)

    def round(self, x: Tensor) -> Tensor:
        """Round to nearest, ties to even; NaN stays NaN."""
        quantum = self.spacing(x)
        rounded = torch.round(x / quantum) * quantum
        rounded = torch.where(torch.isfinite(x), rounded, x)
        if self.unsigned_powers:
            return rounded.clamp(min=2.0**self.emin, max=self.maximum)
        beyond = rounded.abs() > self.maximum
        limit = float("inf") if self.overflows else self.maximum
        return torch.where(beyond, torch.copysign(torch.full_like(x, limit), x), rounded)

    def neighbours(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The grid points next below and above the grid point ``y``; beyond ``maximum`` one more step."""
        step, size = self.spacing(y), y.abs()
        # In the binade's first point the spacing towards zero is half, except at the bottom of the grid.
        first = step * 2.0 ** (self.precision - 1)
        towards_zero = torch.where((size == first) & (size > 2.0**self.emin), step / 2, step)
        up = torch.where(y < 0, towards_zero, step)
        down = torch.where(y > 0, towards_zero, step)
        return y - down, y + up

    def bracket(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The interval of reals that round to grid point ``y``: midpoints to its neighbours.

        A saturating format maps everything beyond to its largest point (a scale: below its smallest, too);
        an overflowing one maps everything beyond the last midpoint to infinity.
        """
        down, up = self.neighbours(y)
        low, high = (y + down) / 2, (y + up) / 2
        infinity = torch.full_like(y, float("inf"))
        if self.overflows:
            top, bottom = y == infinity, y == -infinity
            low = torch.where(bottom, -infinity, torch.where(top, self.last_midpoint, low))
            high = torch.where(top, infinity, torch.where(bottom, -self.last_midpoint, high))
        else:
            smallest = 2.0**self.emin if self.unsigned_powers else -self.maximum
            high = torch.where(y >= self.maximum, infinity, high)
            low = torch.where(y <= smallest, -infinity, low)
        return low, high


BF16 = Format("bf16", 8, -126, float.fromhex("0x1.fep127"), overflows=True)
FP32 = Format("fp32", 24, -126, float.fromhex("0x1.fffffep127"), overflows=True)
E4M3 = Format("e4m3", 4, -6, 448.0, overflows=False)  # OCP OFP8 E4M3FN, saturating cast
E2M1 = Format("e2m1", 2, 0, 6.0, overflows=False)  # OCP MX FP4 element
E8M0 = Format("e8m0", 1, -127, 2.0**127, overflows=False, unsigned_powers=True)  # OCP MX scale

FORMATS = {f.name: f for f in (BF16, FP32, E4M3, E2M1, E8M0)}


def points(fmt: Format) -> Tensor:
    """All finite grid points of a small format, ascending (E4M3: 253, E2M1: 15, E8M0: 255). float64."""
    if fmt.unsigned_powers:
        return power_of_two(torch.arange(-127, 128)).clone()
    subnormals = torch.arange(0, 2 ** (fmt.precision - 1), dtype=torch.float64) * 2.0 ** (
        fmt.emin - fmt.precision + 1
    )
    top = int(exponent(torch.tensor([fmt.maximum], dtype=torch.float64)))
    significands = 1 + torch.arange(0, 2 ** (fmt.precision - 1), dtype=torch.float64) * 2.0 ** (
        1 - fmt.precision
    )
    normals = torch.cat([significands * 2.0**e for e in range(fmt.emin, top + 1)])
    positive = torch.cat([subnormals, normals[normals <= fmt.maximum]])
    return torch.cat([-positive.flip(0)[:-1], positive])


def shared_exponent(amax: Tensor, *, rule: str, element: Format) -> Tensor:
    """Exponent e of the E8M0 scale 2**e of a block whose largest magnitude is ``amax`` (float64).

    ``floor``: floor(log2 amax) - emax(element), as OCP MX 1.0 section 6.3; ``no_saturation``: one more where
    the scaled maximum exceeds the element's largest point. Clamped to [-127, 127]; 0 maps to -127. An
    infinite maximum is 2**128, its bits in FP32: ``floor`` clamps it to 127.
    """
    top = int(exponent(torch.tensor([element.maximum], dtype=torch.float64)))
    e = exponent(amax.contiguous()) - top
    if rule == "no_saturation":
        finite = torch.isfinite(amax)
        e = torch.where(finite, e, 128 - top)
        e = e + (finite & (amax * power_of_two((-e).clamp(-1022, 1023)) > element.maximum)).long()
    elif rule != "floor":
        raise ValueError(f"unknown scale rule {rule!r}: floor or no_saturation")
    return e.clamp(-127, 127)
