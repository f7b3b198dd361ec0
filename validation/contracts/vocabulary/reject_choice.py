"""Which rows of tokens an honest acceptance rule may emit.

A request keeps drafts as long as noise lets it, and must stop where noise lets it not; where both sides of a
comparison are within noise, both are right. The recovered token is judged at the position where the backend
stopped.

Catches: a draft kept or rejected beyond noise, a recovered token that another beats, a tie broken towards the
higher id, anything but the bonus after all drafts, anything but placeholders after the last token, a count
that is not that of the tokens. Cannot catch: a biased choice among admissible answers (the counts can).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from validation.contracts.vocabulary.reject_arguments import PLACEHOLDER, RejectSampleArguments
from validation.numerics.choices import Choice, half_width
from validation.numerics.value import Value


@dataclass(frozen=True)
class Decisions:
    """Of draft i of request r, [request, draft] each: ``margin`` (the draft is kept if it is above 0, or not
    below where ``closed``); ``never``: rejected whatever the margin; ``unknown``: either way. Greedy requests
    have margin 1 (kept) or -1."""

    margin: Value
    closed: bool
    never: Tensor
    unknown: Tensor

    def kept(self, width: Tensor | float = 0.0) -> Tensor:
        """Kept when the margin is moved by ``width``. bool [request, draft]"""
        moved = self.margin.mean + width
        return ((moved >= 0) if self.closed else (moved > 0)) & ~self.never

    def possible(self, share: float) -> tuple[Tensor, Tensor]:
        """Which drafts noise allows to be kept, and which to be rejected. bool [request, draft]"""
        width = half_width(self.margin, share, self.margin.mean.numel())
        return self.kept(width) | self.unknown, ~self.kept(-width) | self.unknown

    def nominal(self, live: Tensor) -> Tensor:
        """Drafts kept without noise. int64 [request]"""
        return (self.kept() & live).long().cumprod(1).sum(1)


@dataclass(frozen=True, kw_only=True)
class Emitted(Choice):
    """``scores``: those of the recovered token [request, token] at draft ``position`` (that of the backend,
    or the nominal one); ``best``: of a greedy request, the most probable token at each draft; ``any_token``
    [request, draft]: the draft's probabilities hold a NaN, any token is right. Observed: tokens, then the
    count, int [request, slot + 1]."""

    arguments: RejectSampleArguments
    decisions: Decisions
    position: Tensor
    best: Tensor
    any_token: Tensor
    twins: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Tokens and count without noise, given the position. float64 [request, slot + 1]"""
        a, kept = self.arguments, self.position
        rows, _ = a.rows()
        at = torch.arange(a.most + 1, device=kept.device)
        drafts = torch.nn.functional.pad(a.drafts.long()[rows], (0, 1))
        tokens = torch.where(at < kept[:, None], drafts, PLACEHOLDER)
        recovered = self.scores.mean.nan_to_num(-1.0).argmax(-1)
        recovered = torch.where(a.greedy, self._at(self.best), recovered)
        following = torch.where(kept == a.drafted, a.bonus.long(), recovered)
        tokens = torch.where(at == kept[:, None], following[:, None], tokens)
        return torch.cat([tokens, kept[:, None]], 1).double()

    def _at(self, of_draft: Tensor) -> Tensor:
        """[request] of [request, draft] at the position."""
        return of_draft.gather(1, self.position.clamp(max=of_draft.shape[1] - 1)[:, None])[:, 0]

    def wrong(self, chosen: Tensor, share: float) -> Tensor:
        """Requests whose tokens and count are no admissible answer. bool [request]"""
        a = self.arguments
        tokens, kept = chosen[:, :-1].long(), chosen[:, -1].long()
        rows, live = a.rows()
        may_keep, may_reject = self.decisions.possible(share)
        at = torch.arange(a.most + 1, device=kept.device)
        outside = (kept < 0) | (kept > a.drafted)
        before = at[:-1] < kept[:, None]
        wrong_draft = (before & live & ~((tokens[:, :-1] == a.drafts.long()[rows]) & may_keep)).any(1)
        after = ((at > kept[:, None]) & (tokens != PLACEHOLDER)).any(1)
        last = tokens.gather(1, kept.clamp(0, a.most)[:, None])[:, 0]
        stopped = kept < a.drafted
        spot = kept.clamp(0, max(a.most - 1, 0))[:, None]
        wrong_stop = ~may_reject.gather(1, spot)[:, 0] | self._wrong_token(last, kept, share)
        return outside | wrong_draft | after | torch.where(stopped, wrong_stop, last != a.bonus.long())

    def _wrong_token(self, token: Tensor, kept: Tensor, share: float) -> Tensor:
        """Whether ``token`` [request] is no admissible recovered (or, of a greedy request, best) token."""
        a = self.arguments
        outside = (token < 0) | (token >= a.vocabulary)
        greedy = token != self._at(self.best)
        random = self._beaten(token.clamp(0, a.vocabulary - 1))
        random |= self._out_of_reach(token.clamp(0, a.vocabulary - 1), share)
        wrong = torch.where(a.greedy, greedy, random) & ~self._at(self.any_token)
        return outside | wrong | (kept != self.position)

    def _out_of_reach(self, token: Tensor, share: float) -> Tensor:
        """Another token's score is above that of ``token``, noise or not. bool [request]"""
        width = half_width(self.scores, share, self.scores.mean.numel())
        high = (self.scores.mean + width).gather(1, token[:, None])[:, 0]
        return high < (self.scores.mean - width).amax(1)

    def _beaten(self, token: Tensor) -> Tensor:
        """A token of lower id has the same score: to the bit, or from the same numbers. bool [request]"""
        labels = self.scores.mean[..., None] if self.scores.variance is None else self.twins
        assert labels is not None
        mine = labels.gather(1, token[:, None, None].expand(-1, 1, labels.shape[2]))
        lower = torch.arange(labels.shape[1], device=token.device) < token[:, None]
        return ((labels == mine).all(-1) & lower).any(1)
