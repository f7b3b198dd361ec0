"""One reference, three readings: ``Exact()``, ``Rounded(profile)``, ``Noise(profile)``.

A contract's reference is written once against this interface (operators on ``Value`` and the methods below).

* ``Exact``: float64, rounding sites are the identity. The truth.
* ``Rounded``: sites round as the profile says, bit for bit; everything between is float64.
* ``Noise``: besides, every element carries the distribution of the rounding error of a backend with that
  profile. FP32 operations add ulp**2 / 12; sums add by their order (``reductions``), functions by their
  documented error (``functions``). A rounding site is conditional: where the incoming noise is far below the
  spacing the rounded value is known, and what is left is a small probability of landing on a neighbour, a
  jump of one spacing.

Errors propagate to first order. Catches nothing by itself. Cannot represent correlations between elements:
the statistics that depend on them carry a declared sharing and a calibrated inflation (``scores``,
``calibrate``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from validation.numerics.formats import BF16, FP32, Format
from validation.numerics.functions import TABLES, variance_in_ulps
from validation.numerics.limits import NEGLIGIBLE, crossing
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction
from validation.numerics.value import FP32_BITS, Value, accumulate, largest, scaled

_BITS = {torch.bfloat16: 8, torch.float32: 24, torch.float16: 11}
# Above this share of the spacing the incoming noise smears the rounding error over the whole grid cell.
_SMEARED = 0.25


def _bits_of(number: float) -> int:
    """Significand bits of a number of FP32."""
    mantissa = abs(math.frexp(number)[0])
    for bits in range(1, FP32_BITS + 1):
        if (mantissa * 2**bits).is_integer():
            return bits
    return FP32_BITS


class Arithmetic:
    """See the module. ``rounds``: sites round; ``noisy``: errors are tracked."""

    def __init__(self, profile: Profile | None, *, rounds: bool, noisy: bool) -> None:
        self.profile = profile
        self.rounds = rounds
        self.noisy = noisy
        self._functions = TABLES[profile.functions] if profile else TABLES["accurate"]

    # -- values ---------------------------------------------------------------------------------------------

    def load(self, tensor: Tensor) -> Value:
        """A tensor read from memory: exactly known."""
        return Value(self, tensor.double(), bits=_BITS.get(tensor.dtype, FP32_BITS))

    def constant(self, number: float, like: Value) -> Value:
        """A number in the code. A backend holds it in FP32, and is off by that everywhere and one way."""
        single = float(torch.tensor(number, dtype=torch.float32))
        held = single if self.rounds else number
        mean = torch.full((), held, dtype=torch.float64, device=like.mean.device)
        return Value(self, mean, bits=_bits_of(single))

    def _lift(self, other: Value | Tensor | float, like: Value) -> Value:
        if isinstance(other, Value):
            return other
        if isinstance(other, Tensor):
            return self.load(other)
        return self.constant(other, like)

    def algebra(self, site: str, default: str) -> str:
        """Which of several formulas, equal in exact arithmetic, the backend uses."""
        return self.profile.algebra.get(site, default) if self.profile else default

    # -- FP32 operations ------------------------------------------------------------------------------------

    def _rounded32(self, mean: Tensor, value: Value, ulps: float = 0.5, extra: Tensor | None = None) -> Value:
        """Add the noise of one FP32 result: ``ulps`` bound of the operation, ``extra`` variance in squared
        ulps."""
        if not self.noisy:
            return Value(self, mean)
        ulp = FP32.spacing(mean)
        in_ulps = variance_in_ulps(ulps) if extra is None else extra
        variance = accumulate(value.variance, ulp * ulp * in_ulps)
        return Value(self, mean, variance, value.jump_variance, value.jump)

    def add(self, a: Value, b: Value | Tensor | float) -> Value:
        b = self._lift(b, a)
        mean = a.mean + b.mean
        if not self.noisy:
            return Value(self, mean)
        carried = Value(
            self,
            mean,
            accumulate(a.variance, b.variance),
            _spread(accumulate(a.jump_variance, b.jump_variance), mean),
            _spread(largest(a.jump, b.jump), mean),
        )
        return self._rounded32(mean, carried)

    def multiply(self, a: Value, b: Value | Tensor | float) -> Value:
        b = self._lift(b, a)
        product = self._product(a, b)
        if min(a.bits, b.bits) == 1:  # a power of two
            product.bits = max(a.bits, b.bits)
        else:
            product.bits = a.bits + b.bits
        if not self.noisy or product.bits <= FP32_BITS:
            return product
        return self._rounded32(product.mean, product)

    def _product(self, a: Value, b: Value) -> Value:
        """a * b with the incoming noise of both and none of its own."""
        mean = a.mean * b.mean
        if not self.noisy:
            return Value(self, mean)
        cross = a.variance * b.variance if a.variance is not None and b.variance is not None else None
        a2, b2 = a.mean * a.mean, b.mean * b.mean
        return Value(
            self,
            mean,
            accumulate(scaled(a.variance, b2), scaled(b.variance, a2), cross),
            accumulate(scaled(a.jump_variance, b2), scaled(b.jump_variance, a2)),
            largest(scaled(a.jump, b.mean.abs()), scaled(b.jump, a.mean.abs())),
        )

    def divide(self, a: Value, b: Value | Tensor | float) -> Value:
        b = self._lift(b, a)
        carried = self._product(a, self.through(b, 1 / b.mean, -1 / (b.mean * b.mean)))
        return self._rounded32(a.mean / b.mean, carried, self._functions["divide"].ulps)

    def square(self, a: Value) -> Value:
        """a * a; the two factors are one, so its error counts twice, not in quadrature."""
        carried = self.through(a, a.mean * a.mean, 2 * a.mean)
        if 2 * a.bits <= FP32_BITS or not self.noisy:
            return carried
        return self._rounded32(carried.mean, carried)

    def through(self, x: Value, mean: Tensor, slope: Tensor) -> Value:
        """First-order propagation of the noise of ``x`` through a function with that value and slope."""
        if not self.noisy:
            return Value(self, mean)
        squared = slope * slope
        return Value(
            self,
            mean,
            scaled(x.variance, squared),
            scaled(x.jump_variance, squared),
            scaled(x.jump, slope.abs()),
        )

    # -- functions ------------------------------------------------------------------------------------------

    def _function(self, name: str, x: Value, mean: Tensor, slope: Callable[[], Tensor]) -> Value:
        if not self.noisy:
            return Value(self, mean)
        carried = self.through(x, mean, slope())
        error = self._functions[name]
        extra = None
        if error.ulps_per_argument:
            worst = error.ulps + error.ulps_per_argument * x.mean.abs()
            extra = (0.25 + (worst - 0.5).clamp(min=0) ** 2) / 3
        return self._rounded32(mean, carried, error.ulps, extra)

    def exp(self, x: Value) -> Value:
        mean = torch.exp(x.mean)
        return self._flushed(self._function("exp", x, mean, lambda: mean))

    def exp2(self, x: Value) -> Value:
        mean = torch.exp2(x.mean)
        return self._flushed(self._function("exp2", x, mean, lambda: mean * math.log(2)))

    def _flushed(self, x: Value) -> Value:
        """``x`` where backends may give 0 for what is below FP32's smallest normal number (``ex2.approx.ftz``
        does): as uncertain there as it is large."""
        if not self.noisy or x.variance is None:
            return x
        below = x.mean.abs() < 2.0**FP32.emin
        lost = torch.where(below, x.mean * x.mean, torch.zeros_like(x.mean))
        return Value(self, x.mean, accumulate(x.variance, lost), x.jump_variance, x.jump, x.bits)

    def log2(self, x: Value) -> Value:
        mean = torch.log2(x.mean)
        return self._function("log", x, mean, lambda: 1 / (x.mean * math.log(2)))

    def tanh(self, x: Value) -> Value:
        """tanh(x) by a library function, or ("exponential") as 1 - 2 / (exp(2 |x|) + 1) with the sign of x,
        which loses relative accuracy near 0: the last difference is of numbers near 1. Its rounding is the
        same for equal arguments, and known where the quotient is far better known than the difference's
        grid: near 1, where 1 + tanh(x) may be all that is left."""
        mean = torch.tanh(x.mean)
        exponential = self.algebra("tanh", "library") == "exponential"
        if not self.noisy:
            return Value(self, FP32.round(mean) if exponential and self.rounds else mean)
        slope = 1 - mean * mean
        if not exponential:
            return self._function("tanh", x, mean, lambda: slope)
        part = 1 - mean.abs()  # 2 / (exp(2 |x|) + 1)
        exp, divide = self._functions["exp"], self._functions["divide"]
        worst = exp.ulps + exp.ulps_per_argument * 2 * x.mean.abs()
        in_ulps = (
            ((0.25 + (worst - 0.5).clamp(min=0) ** 2) / 3) * (1 - part / 2) ** 2
            + variance_in_ulps(0.5)
            + variance_in_ulps(divide.ulps)
        )
        ulp = FP32.spacing(part)
        carried = self.through(x, mean, slope)
        carried.variance = accumulate(carried.variance, ulp * ulp * in_ulps)
        return self._conditionally_rounded(carried, FP32)

    def rsqrt(self, x: Value) -> Value:
        mean = torch.rsqrt(x.mean)
        return self._function("rsqrt", x, mean, lambda: -0.5 * mean / x.mean)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + exp(-x)), error by error; its two halves share exp(-x), so the slope is that of the
        sigmoid."""
        mean = torch.sigmoid(x.mean)
        if not self.noisy:
            return Value(self, mean)
        carried = self.through(x, mean, mean * (1 - mean))
        exp = self._functions["exp"]
        worst = exp.ulps + exp.ulps_per_argument * x.mean.abs()
        # exp's error enters with weight 1 - mean, the addition's with 1, the division's with its own bound.
        in_ulps = (
            ((0.25 + (worst - 0.5).clamp(min=0) ** 2) / 3) * (1 - mean) ** 2
            + variance_in_ulps(0.5)
            + variance_in_ulps(self._functions["divide"].ulps)
        )
        return self._rounded32(mean, carried, extra=in_ulps)

    def silu(self, x: Value) -> Value:
        """x * sigmoid(x), the noise of x counted once with the slope of the whole."""
        gate = self.sigmoid(Value(self, x.mean))
        product = self.multiply(Value(self, x.mean), gate)
        if not self.noisy:
            return product
        carried = self.through(x, product.mean, gate.mean * (1 + x.mean * (1 - gate.mean)))
        return Value(
            self,
            product.mean,
            accumulate(product.variance, carried.variance),
            carried.jump_variance,
            carried.jump,
        )

    def maximum(self, x: Value, dim: int, *, keepdim: bool = False) -> Value:
        """The largest along ``dim`` with the noise of the one that is largest. What is only subtracted and
        cancels (the maximum of a softmax) should be taken from ``mean`` instead."""
        at = x.mean.argmax(dim, keepdim=True)
        top = x.map(lambda part: part.expand(x.shape).gather(dim, at))
        return top if keepdim else top.map(lambda part: part.squeeze(dim))

    def softmax(self, x: Value, dim: int) -> Value:
        """exp(x - max) over its sum; the subtracted maximum cancels, so it carries no noise."""
        top = Value(self, x.mean.amax(dim, keepdim=True))
        e = self.exp(x - top)
        return e / self.sum(e, dim, keepdim=True)

    # -- sums -----------------------------------------------------------------------------------------------

    def sum(self, x: Value, dim: int, *, keepdim: bool = False) -> Value:
        total = x.mean.sum(dim, keepdim=keepdim)
        if not self.noisy:
            return Value(self, total)
        squares = (x.mean * x.mean).sum(dim, keepdim=keepdim)
        return self._reduced(x, total, squares, dim, keepdim, self._sums())

    def dot(self, a: Value, b: Value, dim: int, *, keepdim: bool = False) -> Value:
        """Sum of element-wise products along ``dim`` (fused multiply-adds)."""
        terms = self._product(a, b)
        total = terms.mean.sum(dim, keepdim=keepdim)
        if not self.noisy:
            return Value(self, total)
        squares = (terms.mean * terms.mean).sum(dim, keepdim=keepdim)
        return self._reduced(terms, total, squares, dim, keepdim, self._sums())

    def sum_of_squares(self, x: Value, dim: int, *, keepdim: bool = False) -> Value:
        """Sum of x * x along ``dim``."""
        terms = self.through(x, x.mean * x.mean, 2 * x.mean)
        total = terms.mean.sum(dim, keepdim=keepdim)
        if not self.noisy:
            return Value(self, total)
        squares = (terms.mean * terms.mean).sum(dim, keepdim=keepdim)
        return self._reduced(terms, total, squares, dim, keepdim, self._sums())

    def rank_sum(self, x: Value, dim: int, site: str) -> Value:
        """FP32 sum over ranks in the order that the profile declares for ``site`` (``algebra``):

        ``any`` (the default: a framework's all-reduce), ``rank`` (0, 1, ...), ``four_groups`` (consecutive
        groups of a quarter of the ranks, each in rank order, then the four results in order) or ``pairwise``
        (a tree). In a declared order the sum of shards that are known to the bit is known to the bit.
        """
        order = self.algebra(site, "any")
        ranks = x.shape[dim]
        if self.rounds and order != "any" and x.variance is None and x.jump is None:
            return Value(self, _summed_in_order(x.mean.float(), dim, order).double())
        groups = {"rank": ranks, "any": ranks, "four_groups": -(-ranks // 4), "pairwise": 1}[order]
        total = x.mean.sum(dim)
        if not self.noisy:
            return Value(self, total)
        return self._reduced(x, total, (x.mean * x.mean).sum(dim), dim, False, Reduction(chain=groups))

    def _sums(self) -> Reduction:
        assert self.profile is not None
        return self.profile.sums

    def _reduced(
        self, x: Value, total: Tensor, squares: Tensor, dim: int, keepdim: bool, order: Reduction
    ) -> Value:
        def add_up(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.expand(x.shape).sum(dim, keepdim=keepdim)

        top = None if x.jump is None else x.jump.expand(x.shape).amax(dim, keepdim=keepdim)
        variance = accumulate(add_up(x.variance), order.variance(x.shape[dim], total, squares))
        return Value(self, total, variance, add_up(x.jump_variance), top)

    def matmul(self, a: Value, b: Tensor) -> Value:
        """a @ b.T for a noisy or exact ``a`` [..., k] and weights ``b`` [n, k] read from memory."""
        weights = b.double()
        total = a.mean @ weights.T
        if not self.noisy:
            return Value(self, total)
        assert self.profile is not None
        squared = weights * weights
        squares = (a.mean * a.mean) @ squared.T
        variance = self.profile.products.variance(a.shape[-1], total, squares)
        incoming = None if a.variance is None else a.variance @ squared.T
        jumps = None if a.jump_variance is None else a.jump_variance @ squared.T
        top = None
        if a.jump is not None:
            top = (a.jump.unsqueeze(-2) * weights.abs()).amax(-1)
        return Value(self, total, accumulate(incoming, variance), jumps, top)

    # -- rounding sites -------------------------------------------------------------------------------------

    def round(self, x: Value, site: str) -> Value:
        """A rounding site: the value is stored in the profile's format there, and read back."""
        fmt = self._format(site)
        if fmt is None or not self.rounds:
            return x
        assert self.profile is not None
        if self.profile.any_choice and site in self.profile.optional:
            return self._smeared(x, fmt)
        if not self.noisy or x.variance is None:
            return Value(self, fmt.round(x.mean), bits=fmt.precision)
        return self._conditionally_rounded(x, fmt)

    def store(self, x: Value, site: str) -> Value:
        """The last site of an output: rounded in ``Rounded``; in ``Noise`` left as it is before the rounding,
        since the judge compares an observed grid point with the interval of values that round to it."""
        return x if self.noisy else self.round(x, site)

    def _format(self, site: str) -> Format | None:
        if self.profile is None:
            return None
        if site not in self.profile.sites:
            raise KeyError(f"profile '{self.profile.name}' does not declare the rounding site '{site}'")
        if self.profile.any_choice and site in self.profile.optional:
            return self.profile.sites[site] or BF16
        return self.profile.sites[site]

    def _smeared(self, x: Value, fmt: Format) -> Value:
        if not self.noisy:
            return x
        spacing = fmt.spacing(x.mean)
        return Value(self, x.mean, accumulate(x.variance, spacing * spacing / 12), x.jump_variance, x.jump)

    def _conditionally_rounded(self, x: Value, fmt: Format) -> Value:
        variance = x.variance
        assert variance is not None
        rounded = fmt.round(x.mean)
        spacing = fmt.spacing(rounded)
        low, high = fmt.bracket(rounded)
        smeared = variance > (_SMEARED * spacing) ** 2
        probability = crossing(high - x.mean, variance, x.jump_variance, x.jump) + crossing(
            x.mean - low, variance, x.jump_variance, x.jump
        )
        live = (probability > NEGLIGIBLE) & ~smeared
        mean = torch.where(smeared, x.mean, rounded)
        smooth = torch.where(smeared, variance + spacing * spacing / 12, torch.zeros_like(variance))
        if not bool(live.any()) and x.jump is None:
            return Value(self, mean, smooth, bits=fmt.precision)
        zero = torch.zeros_like(variance)
        carried = zero if x.jump_variance is None else x.jump_variance
        reach = zero if x.jump is None else x.jump
        step = spacing * (1 + torch.ceil(reach / spacing))
        flips = torch.maximum(spacing * spacing * probability.clamp(max=1.0), carried)
        jump_variance = torch.where(live, flips, torch.where(smeared, carried, zero))
        jump = torch.where(live, step, torch.where(smeared, reach, zero))
        return Value(self, mean, smooth, jump_variance, jump, bits=fmt.precision)

    # -- assembly -------------------------------------------------------------------------------------------

    def where(self, mask: Tensor, a: Value, b: Value | float) -> Value:
        """Selection; an unselected NaN does not leak."""
        b = self._lift(b, a)
        mean = torch.where(mask, a.mean, b.mean)
        variance, jump_variance, jump = (
            _select(mask, p, q, mean) for p, q in zip(a.parts(), b.parts(), strict=True)
        )
        return Value(self, mean, variance, jump_variance, jump, max(a.bits, b.bits))

    def stack(self, values: Sequence[Value], dim: int) -> Value:
        return self._join(values, lambda parts: torch.stack(parts, dim))

    def cat(self, values: Sequence[Value], dim: int) -> Value:
        return self._join(values, lambda parts: torch.cat(parts, dim))

    def _join(self, values: Sequence[Value], join: Callable[[list[Tensor]], Tensor]) -> Value:
        def part(index: int) -> Tensor | None:
            found = [v.parts()[index] for v in values]
            if all(p is None for p in found):
                return None
            filled = [
                torch.zeros_like(v.mean) if p is None else p.expand(v.shape)
                for v, p in zip(values, found, strict=True)
            ]
            return join(filled)

        mean = join([v.mean for v in values])
        return Value(self, mean, part(0), part(1), part(2), bits=max(v.bits for v in values))


def _summed_in_order(x: Tensor, dim: int, order: str) -> Tensor:
    """FP32 tensors along ``dim`` added one by one in a named order; see ``Arithmetic.rank_sum``."""

    def chain(parts: list[Tensor]) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    parts = list(x.unbind(dim))
    if order == "rank":
        return chain(parts)
    if order == "four_groups":
        size = -(-len(parts) // 4)
        return chain([chain(parts[start : start + size]) for start in range(0, len(parts), size)])
    while len(parts) > 1:
        halves = [a + b for a, b in zip(parts[0::2], parts[1::2], strict=False)]
        parts = halves + parts[len(halves) * 2 :]
    return parts[0]


def _spread(part: Tensor | None, like: Tensor) -> Tensor | None:
    return None if part is None else part.expand(like.shape)


def _select(mask: Tensor, p: Tensor | None, q: Tensor | None, like: Tensor) -> Tensor | None:
    if p is None and q is None:
        return None
    zero = torch.zeros((), dtype=like.dtype, device=like.device)
    return torch.where(mask, zero if p is None else p, zero if q is None else q).expand(like.shape)


def Exact() -> Arithmetic:  # noqa: N802 (a reading is written like the class it is)
    """float64, rounding sites are the identity."""
    return Arithmetic(None, rounds=False, noisy=False)


def Rounded(profile: Profile) -> Arithmetic:  # noqa: N802
    """Sites round as the profile says; no noise."""
    return Arithmetic(profile, rounds=True, noisy=False)


def Noise(profile: Profile) -> Arithmetic:  # noqa: N802
    """Sites round as the profile says, and every element carries its predicted error."""
    return Arithmetic(profile, rounds=True, noisy=True)
