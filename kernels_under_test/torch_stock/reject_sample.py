"""The acceptance rule in plain PyTorch, in the order of the stock path: most probable tokens and a recovered
token for every draft, then the walk over each request's drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.vocabulary.reject_arguments import PLACEHOLDER, RejectSampleArguments
from validation.providers import implements


@implements("reject_sample", provider="torch", profile="stock")
def reject_sample(a: RejectSampleArguments) -> None:
    """tokens[request, slot] and accepted[request]; see ``RejectSampleArguments``."""
    live = int(a.ends[-1])
    owner = torch.repeat_interleave(torch.arange(len(a.ends), device=a.ends.device), a.drafted)
    drafts, target = a.drafts[:live].long(), a.target[:live]
    spot = drafts.clamp(min=0)[:, None]
    proposal = torch.zeros_like(target).scatter_(1, spot, (drafts >= 0)[:, None].float())
    if a.proposal is not None:
        proposal = a.proposal[:live]
    p, q = target.gather(1, spot)[:, 0], proposal.gather(1, spot)[:, 0]
    best = target.argmax(-1)
    greedy = a.greedy[owner]
    kept = (drafts >= 0) & torch.where(greedy, drafts == best, (q > 0) & (p / q >= a.uniform[:live]))
    replaced = torch.where(greedy, best, _recovered(a, target, proposal, owner))
    _emit(a, drafts, kept, replaced)


def _recovered(a: RejectSampleArguments, target: Tensor, proposal: Tensor, owner: Tensor) -> Tensor:
    """The recovered token of every draft: int64 [draft]"""
    residual = (target - proposal).clamp(min=0)
    if a.proposal is None:
        residual = torch.where(proposal > 0, 0.0, target)
    return (residual * a.noise.reciprocal()[owner]).argmax(-1)


def _emit(a: RejectSampleArguments, drafts: Tensor, kept: Tensor, replaced: Tensor) -> None:
    """Drafts up to the first that is not kept, its replacement or the bonus, then placeholders."""
    rows, live = a.rows()
    if not len(drafts):
        drafts, kept, replaced = (x.new_zeros(1) for x in (drafts, kept, replaced))
    accepted = (kept[rows] & live).long().cumprod(1).sum(1)
    following = replaced[rows.gather(1, accepted.clamp(max=a.most - 1)[:, None])[:, 0]]
    following = torch.where(accepted == a.drafted, a.bonus.long(), following)
    at = torch.arange(a.most + 1, device=rows.device)
    padded = torch.nn.functional.pad(drafts[rows], (0, 1))
    tokens = torch.where(at < accepted[:, None], padded, PLACEHOLDER)
    a.tokens.copy_(torch.where(at == accepted[:, None], following[:, None], tokens))
    a.accepted.copy_(accepted)
