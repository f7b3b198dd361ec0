"""Holm's adjustment over all tests of a run.

Catches: one false alarm among many tests: the probability of any is at most the level, whatever the
dependence between the tests. Cannot catch: tests that were run and left out of the list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given: the i-th smallest of m times m - i + 1, monotone, at most 1.

    Holm, Scand. J. Stat. 6 (1979). Reject at level L exactly those that are at most L. NaN (a test that could
    not be made, which cannot reject) stays NaN and does not count.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[i] = largest
    return adjusted
