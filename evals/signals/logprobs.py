"""Log-probabilities that cannot be: missing, not finite, above zero.

What this catches: NaN and infinities in logits as far as they reach a reply, arrays of another length than
the tokens. What it cannot catch: finite wrong values; the teacher-forced comparison is for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A log-softmax in FP32 may exceed zero by half a spacing of its largest term: 2^-16 for logits below 2^8.
ABOVE_ZERO = 2.0**-16


@dataclass(frozen=True)
class Odd:
    """Numbers of tokens whose log-probability is missing (none or NaN), infinite, or above zero."""

    missing: int = 0
    infinite: int = 0
    positive: int = 0

    @property
    def any(self) -> bool:
        return bool(self.missing or self.infinite or self.positive)


def odd_logprobs(logprobs: Sequence[float] | np.ndarray, tokens: int) -> Odd:
    """Count them over one reply of that many tokens. Tokens without a value count as missing."""
    values = np.asarray(logprobs, np.float64)
    missing = int(np.isnan(values).sum()) + max(0, tokens - len(values))
    return Odd(missing, int(np.isinf(values).sum()), int((np.isfinite(values) & (values > ABOVE_ZERO)).sum()))
