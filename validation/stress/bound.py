"""How often may an exchange fail that has not failed yet, and how many exchanges say so.

With no failure in n independent exchanges, the rate is below -ln(0.05) / n with 95 % confidence, which is
the "rule of three": 3 / n (Hanley and Lippman-Hand, JAMA 249, 1983). With k failures the limit is the exact
one of Poisson counts (Garwood 1936).

What this catches: a run too short for the reply that it is to vouch for. What it cannot say: how alike
exchanges under stress are to those of a deployment; skew is there to make them worse, not alike.
"""

from __future__ import annotations

import math

CONFIDENCE = 0.95


def upper_rate(exchanges: int, failures: int = 0) -> float:
    """The largest rate of failures an exchange that is still plausible; 1 where nothing ran."""
    if exchanges <= 0:
        return 1.0
    if not failures:
        return min(1.0, -math.log(1 - CONFIDENCE) / exchanges)
    from scipy.stats import chi2

    return min(1.0, float(chi2.ppf(CONFIDENCE, 2 * failures + 2)) / 2 / exchanges)


def needed(tokens: int, exchanges_a_step: int, risk: float) -> int:
    """Exchanges without a failure after which a reply of ``tokens`` steps fails less often than ``risk``."""
    return math.ceil(-math.log(1 - CONFIDENCE) * tokens * exchanges_a_step / risk)


def reply_vouched_for(exchanges: int, exchanges_a_step: int, risk: float) -> int:
    """Tokens of a reply that fails less often than ``risk``, after so many exchanges without a failure."""
    return int(exchanges * risk / (-math.log(1 - CONFIDENCE) * exchanges_a_step))


def words(exchanges: int, failures: int) -> str:
    """The bound as a sentence."""
    rate = upper_rate(exchanges, failures)
    if failures:
        return f"{exchanges:,} exchanges, {failures} failures: rate below {rate:.2g} at 95 %"
    return f"{exchanges:,} exchanges, 0 failures: rate below 3/N = {rate:.2g} at 95 %"
