"""The reference's recurrent state over many tokens, and the errors that an honest one carries.

An error of the state decays with the state and is projected with it: with decay d, key k and beta of a token,
its part in column i becomes d_i e_i - beta k_i sum_j k_j d_j e_j. Three kinds are carried:

* the noise that each token adds, as a variance of every element: columns of short half-lives forget it, in
  those of long ones it grows like the square root of the tokens;
* what the decay may be off by beyond its last rounding, which may go one way at every token (an
  approximation of the exponential near 1 may), as the response of the state to each column's;
* for ``smallest`` the response to a relative error of the whole state at every token.

Catches: nothing by itself. Cannot represent: correlations between the errors of columns, which later keys
mix; rare jumps (the inputs must have none).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from validation.contracts.kda import Inputs, recurrence
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import FP32
from validation.numerics.limits import bernstein
from validation.numerics.value import Value


@dataclass
class Carried:
    """float64 [request, head, v, k]: ``mean`` and ``variance``; ``drifted``, the change of the state by a
    relative error of 1 a token; ``biased`` [request, head, v, column, k], what the decay of each column may
    do. ``arithmetic``: the last token's."""

    mean: Tensor
    variance: Tensor
    drifted: Tensor
    biased: Tensor
    arithmetic: Arithmetic

    @classmethod
    def of(cls, state: Tensor) -> Carried:
        """An executor's state, taken as it is. [request, head, v, k]"""
        mean = state.double()
        zero = torch.zeros_like(mean)
        biased = torch.zeros(*mean.shape, mean.shape[-1], dtype=torch.float64, device=mean.device)
        return cls(mean, zero, zero.clone(), biased, Arithmetic(None, rounds=False, noisy=False))

    def parts(self) -> dict[str, Tensor]:
        """What is carried, by name; not the last token's arithmetic."""
        return {name: getattr(self, name) for name in ("mean", "variance", "drifted", "biased")}

    def advance(self, noise: Arithmetic, tokens: Inputs) -> None:
        """One token; its own errors are predicted from the exact state."""
        _, states = recurrence(noise, noise.load(self.mean), tokens)
        value = states[:, 0]
        assert value.variance is not None
        step = _Step.of(tokens)
        old = self.mean
        self.variance = step.variance(self.variance) + value.variance
        self.drifted = step.moved(self.drifted) + value.mean
        self.biased = step.moved(self.biased + torch.diag_embed(old * step.bias[..., None, :]))
        self.mean, self.arithmetic = value.mean, noise

    def predicted(self) -> Value:
        """As a provider's output is judged. [request, token, head, v, k]"""
        return Value(self.arithmetic, self.mean[:, None], self.variance[:, None])

    def forgiven(self, observed: Tensor) -> Tensor:
        """``observed`` [request, token, head, v, k] without what the decays' own errors may explain."""
        y = observed.double()
        reach = self._reach()[:, None]
        return y - (y - self.mean[:, None]).clamp(-reach, reach)

    def _reach(self) -> Tensor:
        return self.biased.abs().sum(-2)

    def smallest(self, level: float) -> tuple[float, float]:
        """Relative error of the state, made once and at every token, that some element shows at a level of 2
        exp(-``level``)."""
        limit = bernstein(self.variance, None, None, level) + self._reach()
        limit = limit.clamp(min=1e-300)
        return 1 / float((self.mean / limit).abs().max()), 1 / float((self.drifted / limit).abs().max())


@dataclass
class _Step:
    """What one token does to an error: ``decay`` and ``key`` [request, head, 1, k], ``beta`` [request, head,
    1, 1]; ``bias`` [request, head, k], the relative error of the decay beyond its last rounding."""

    decay: Tensor
    key: Tensor
    beta: Tensor
    bias: Tensor

    @classmethod
    def of(cls, tokens: Inputs) -> _Step:
        decay = tokens.decay[:, 0]
        assert decay.variance is not None
        ulp = FP32.spacing(decay.mean)
        beyond = (decay.variance - ulp * ulp / 12).clamp(min=0)
        bias = torch.sqrt(3 * beyond) / decay.mean  # of a uniform error, its largest
        beta = tokens.beta.mean[:, 0, :, None, None]
        return cls(decay.mean[:, :, None], tokens.key.mean[:, 0, :, None], beta, bias)

    def moved(self, error: Tensor) -> Tensor:
        """A known error [request, head, v, .., k] after the token."""
        shape = (*self.decay.shape[:3], *(1 for _ in error.shape[4:]), -1)
        key, beta = self.key.reshape(shape), self.beta.reshape(*shape[:-1], 1)
        kept = error * self.decay.reshape(shape)
        return kept - beta * (kept * key).sum(-1, keepdim=True) * key

    def variance(self, part: Tensor) -> Tensor:
        """Variances of independent errors [request, head, v, k] after the token."""
        kept, square = part * self.decay**2, self.key**2
        gain = self.beta * square
        others = (kept * square).sum(-1, keepdim=True) - kept * square
        return kept * (1 - gain) ** 2 + self.beta * gain * others
