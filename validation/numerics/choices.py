"""Discrete choices under noise: which answers a backend may honestly give.

A top-k set or a quantisation code is not near or far from the right one: it is admissible or it is not. An
element is *certain* when noise cannot remove it, *admissible* when noise can bring it in. What follows a
choice is judged on the choice that was made (``gather_choice``).

Catches: a wrong expert although the gap is beyond noise, a code two steps off, a duplicate id. Cannot catch:
a biased tie-break among admissible answers (statistics over many steps can).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from validation.numerics.formats import Format
from validation.numerics.limits import bernstein, log_odds
from validation.numerics.value import Value


@dataclass(frozen=True)
class AdmissibleSet:
    """Masks over the candidates (last axis): every right answer contains ``certain`` and lies within
    ``admissible``."""

    certain: Tensor
    admissible: Tensor
    size: int

    def wrong(self, chosen: Tensor) -> Tensor:
        """Which rows of ``chosen`` [..., size] (ids, any order) are no admissible answer. bool [...]"""
        ids = chosen.long()
        candidates = self.certain.shape[-1]
        outside = (ids < 0) | (ids >= candidates)
        safe = ids.clamp(0, candidates - 1)
        counts = torch.zeros_like(self.certain, dtype=torch.int64)
        counts.scatter_add_(-1, safe, torch.ones_like(safe))
        missing = (self.certain & (counts == 0)).any(-1)
        foreign = (~self.admissible & (counts > 0)).any(-1)
        return (
            outside.any(-1)
            | (counts > 1).any(-1)
            | missing
            | foreign
            | torch.full_like(missing, ids.shape[-1] != self.size)
        )


@dataclass(frozen=True)
class Choice:
    """Prediction of an output that holds the ids of the ``size`` largest ``scores`` (last axis).

    ``ordered``: ids come by descending score. ``lowest_first``: of scores that are equal to the bit (and
    exactly known) the lower id wins. ``twins``: labels of the candidates; candidates of one label have scores
    equal to the bit whatever the noise (the same function of the same inputs), so the rule holds among them.
    """

    scores: Value
    size: int
    ordered: bool = False
    lowest_first: bool = False
    twins: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """The ids without noise, ties to the lower id: what a report shows as expected. float64"""
        order = self.scores.mean.sort(dim=-1, descending=True, stable=True).indices
        return order[..., : self.size].double()

    def wrong(self, chosen: Tensor, share: float) -> Tensor:
        """Rows of ``chosen`` [..., size] that are no admissible answer. bool [...]"""
        bad = top_k(self.scores, self.size, share).wrong(chosen)
        safe = chosen.long().clamp(0, self.scores.shape[-1] - 1)
        if self.ordered:
            bad = bad | self._out_of_order(safe, share)
        if self.lowest_first and (self.scores.variance is None or self.twins is not None):
            bad = bad | self._ties_broken_high(safe)
        return bad

    @property
    def shape(self) -> torch.Size:
        """Of the ids."""
        return self.mean.shape

    @property
    def variance(self) -> Tensor:
        """An id has no spread: it is admissible or not."""
        return torch.zeros_like(self.mean)

    def _out_of_order(self, chosen: Tensor, share: float) -> Tensor:
        mean = gather_choice(self.scores, chosen)
        width = half_width(mean, share, self.scores.mean.numel())
        return (mean.mean[..., 1:] - width[..., 1:] > mean.mean[..., :-1] + width[..., :-1]).any(-1)

    def _ties_broken_high(self, chosen: Tensor) -> Tensor:
        """A left-out candidate equals a chosen one of higher id; or, where the order is judged, a chosen one
        stands before its equal of lower id."""
        scores = self.scores.mean if self.twins is None else self.twins
        taken = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device).scatter_(-1, chosen, True)
        mine = scores.gather(-1, chosen)
        ids = torch.arange(scores.shape[-1], device=scores.device)
        rival = ~taken.unsqueeze(-2) & (scores.unsqueeze(-2) == mine.unsqueeze(-1))
        bad = (rival & (ids < chosen.unsqueeze(-1))).any(-1).any(-1)
        if self.ordered:
            equal = mine.unsqueeze(-2) == mine.unsqueeze(-1)
            descends = chosen.unsqueeze(-1) > chosen.unsqueeze(-2)
            bad = bad | (equal & descends).triu(1).any(-1).any(-1)
        return bad


def half_width(value: Value, share: float, tests: float) -> Tensor:
    """How far each element may lie from its mean at ``share`` spread over ``tests``."""
    variance = torch.zeros_like(value.mean) if value.variance is None else value.variance
    return bernstein(variance.expand(value.shape), value.jump_variance, value.jump, log_odds(share, tests))


def top_k(scores: Value, k: int, share: float) -> AdmissibleSet:
    """Admissible sets of the k largest of the last axis.

    An element is certain if fewer than k others can reach it, admissible if fewer than k others must stay
    above it. Exact ties are admissible either way: a rule for ties is a property of its own. A score that is
    no number may come out anywhere.
    """
    width = half_width(scores, share, scores.mean.numel())
    unknown = torch.isnan(scores.mean)
    low = torch.where(unknown, -torch.inf, scores.mean - width)
    high = torch.where(unknown, torch.inf, scores.mean + width)
    # others whose upper end reaches this lower end; others whose lower end is above this upper end.
    reach = (high.unsqueeze(-2) >= low.unsqueeze(-1)).sum(-1) - 1
    above = (low.unsqueeze(-2) > high.unsqueeze(-1)).sum(-1)
    return AdmissibleSet(certain=reach < k, admissible=above < k, size=k)


def codes(value: Value, fmt: Format, share: float) -> tuple[Tensor, Tensor]:
    """Smallest and largest admissible grid point of a quantised value. Rounding is monotone: what lies
    between is admissible too."""
    width = half_width(value, share, value.mean.numel())
    return fmt.round(value.mean - width), fmt.round(value.mean + width)


def gather_choice(value: Value, chosen: Tensor) -> Value:
    """The entries of ``value`` (last axis) at the ids that a backend chose: what follows is judged on
    them."""
    return value.map(lambda part: part.expand(value.shape).gather(-1, chosen.long()))
