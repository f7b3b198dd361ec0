"""Probabilistic rounding error of FP32 sums, for the orders in use.

Model: every addition rounds with an independent relative error of zero mean (Higham and Mary, SIAM J. Sci.
Comput. 41(5), 2019; Connolly, Higham and Mary 2021), so the variance of a sum's error is u_rms**2 times the
sum of its squared partial sums. Over random orders of n terms t_i with total S and Q = sum t_i**2, a partial
sum of g terms has mean square (g/n) Q + g (g-1) / (n (n-1)) (S**2 - Q): no order needs to be known, only its
shape (how many terms precede).

Tensor cores truncate instead of rounding to nearest (Khattak and Mikaitis 2025, arXiv 2411.18747 and the
sources there): their error has a mean towards zero, which is added as if it were noise of that size.

Catches: accumulation in BF16, chunks added twice or lost. Cannot tell two honest orders apart, by design.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

# E[(ulp/|x|)**2] / 12 for a significand log-uniform over a binade: 3/8 / ln 2 * 2**-46 / 12.
_ROUNDING_VARIANCE = 3 / (8 * math.log(2)) * 2.0**-46 / 12
# Mean of a truncation error, relative to the value: half an ulp, E[ulp/|x|] = 2**-23 / (2 ln 2).
_TRUNCATION_MEAN = 0.5 * 2.0**-23 / (2 * math.log(2))


@dataclass(frozen=True)
class Reduction:
    """The shape of a sum: chains of ``chain`` terms (None: one chain over all), their results chained in
    turn.

    ``rounds_products``: each product is rounded before it is added (no fused multiply-add).
    ``truncates_every``: a tensor core adds that many products at a time and truncates the running sum.
    """

    chain: int | None = None
    rounds_products: bool = False
    truncates_every: int | None = None

    def variance(self, n: int, total: Tensor, squares: Tensor) -> Tensor:
        """Variance of the rounding error of sums of ``n`` terms with totals ``total`` and sums of squares
        ``squares``."""
        if n <= 1:
            return squares * (_ROUNDING_VARIANCE if self.rounds_products else 0.0)
        coherent = (total * total - squares).clamp(min=0)
        c = min(self.chain or n, n)
        blocks = math.ceil(n / c)
        inner, outer = _partial_sums(n, c, 1), _partial_sums(n, blocks, n / blocks)
        per_square, per_coherent = (n / c * i + o for i, o in zip(inner, outer, strict=True))
        variance = _ROUNDING_VARIANCE * (per_square * squares + per_coherent * coherent)
        if self.rounds_products:
            variance = variance + _ROUNDING_VARIANCE * squares
        if self.truncates_every:
            steps = math.ceil(n / self.truncates_every)
            drift = steps * _TRUNCATION_MEAN
            # Root mean square of the partial sums over the steps; drift of a random-signed walk, squared.
            variance = variance + drift**2 * (squares / 2 + coherent / 3)
        return variance


def _partial_sums(n: int, links: int, size: float) -> tuple[float, float]:
    """A chain of ``links`` parts of ``size`` terms each, of ``n`` terms in all: factors of Q and of S**2 - Q
    in the sum of its squared partial sums. The first part alone is no addition."""
    first, second = links * (links + 1) / 2 - 1, links * (links + 1) * (2 * links + 1) / 6 - 1
    return size * first / n, (size * size * second - size * first) / (n * (n - 1))


CHAIN = Reduction()
TENSOR_CORE = Reduction(truncates_every=16)
