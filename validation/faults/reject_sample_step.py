"""The acceptance rule in plain FP32 torch, draft by draft, with one switch for every planted fault.

``run(a, order, fault, profile)`` with ``fault=""`` is an honest sampler: ``stock`` compares the quotient with
u and weights by reciprocals, ``specialized`` compares p with a product and divides.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

_MANY = {"requests": 20_000, "drafts": 2, "vocabulary": 4}
_WIDE = {"requests": 3, "drafts": 1, "vocabulary": 40}
_TILED = {"vocabulary": 1000}
_PLAIN = {"proposal": 0}
# Fault -> (what is wrong, kind, regime of its case, what differs from the usual case).
FAULTS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "q_missing": ("drafts are kept with probability p", "F32", "distribution", _MANY),
    "q_over_p": ("q / p for p / q", "F32", "typical", {}),
    "u_reversed": ("1 - u for u", "F32", "typical", {}),
    "recovered_from_p": ("the recovered token is drawn from p", "F32", "distribution", _MANY),
    "recovered_from_q": ("the recovered token is drawn from max(q - p, 0)", "F32", "typical", {}),
    "recovered_absolute": ("the recovered token is drawn from |p - q|", "F32", "distribution", _MANY),
    "p_renormalised_first": (
        "the residual of p without the draft, normalised, and q",
        "F32",
        "distribution",
        _MANY,
    ),
    "noise_multiplied": ("weights times e, not over e", "F32", "typical", {}),
    "draft_recovered": ("a draft without q may be drawn again after its rejection", "F32", "one_hot", _PLAIN),
    "draft_temperature": ("q of temperature 1.1", "F32", "distribution", _MANY),
    "target_temperature": ("p of temperature 1.1", "F32", "distribution", _MANY),
    "block_criterion": ("u against the joint ratio of all drafts so far", "F32", "distribution", _MANY),
    "one_uniform": ("every draft is compared with the request's first u", "F32", "distribution", _MANY),
    "bonus_for_recovered": ("the bonus stands in place of the recovered token", "F32", "typical", {}),
    "bonus_after_recovered": ("the bonus follows the recovered token", "F32", "typical", {}),
    "bonus_missing": ("nothing follows when all drafts are kept", "F32", "typical", {}),
    "goes_on_after_rejection": ("drafts after a rejection are kept", "F32", "typical", {}),
    "random_as_greedy": ("random requests keep the most probable token", "F32", "typical", {}),
    "greedy_as_random": ("greedy requests go by u, q and noise", "F32", "greedy", {}),
    "greedy_below_1e-5": ("temperatures below 1e-5 are greedy", "F32", "edges", {}),
    "negative_zero_is_random": ("temperature -0.0 is no greedy one", "F24", "edges", {}),
    "greedy_emits_draft": ("a greedy rejection emits the draft", "F32", "greedy", {}),
    "greedy_second_best": (
        "greedy drafts of the second most probable token are kept too",
        "F32",
        "greedy",
        {},
    ),
    "strict": ("p / q > u for >=", "F24", "edges", {}),
    "strict_near": ("p / q > u for >=", "F24", "near", {}),
    "q_zero_kept": ("a draft of q = 0 is kept", "F24", "edges", {}),
    "product_compared": ("p >= u q for p / q >= u", "F24", "near", {"requests": 300}),
    "one_always_kept": ("p >= q is not kept for u next to 1", "F24", "edges", {}),
    "probabilities_bf16": ("p and q are rounded to BF16", "F06", "peaked", {}),
    "quotient_bf16": ("p / q is rounded to BF16", "F06", "near", {}),
    "quotient_approximate": ("p / q through a reciprocal of 12 bits", "F06", "near", {}),
    "uniform_fp16": ("u is rounded to FP16", "F06", "near", {}),
    "noise_bf16": ("e is rounded to BF16", "F06", "peaked", {"requests": 2000}),
    "row_of_next_draft": ("p and q of the next draft", "F16", "typical", {}),
    "uniform_of_next_draft": ("u of the next draft", "F16", "typical", {}),
    "row_by_slot": ("rows are counted as if every request had k drafts", "F16", "typical", {}),
    "noise_of_next_request": ("e of the next request", "F16", "typical", {}),
    "bonus_of_next_request": ("the bonus of the next request", "F16", "typical", {}),
    "recovered_at_last_draft": ("the recovered token of the request's last draft", "F16", "poison", {}),
    "noise_pitch": ("rows of e are taken with another pitch", "F01", "typical", {}),
    "last_tile_lost": ("the last tokens have no score", "F04", "tail", {}),
    "last_tile_lost_greedy": ("the last tokens are not the most probable", "F04", "tail", {}),
    "lanes_beyond": ("a lane beyond the vocabulary wins", "F04", "tail", {}),
    "id_of_its_block": ("ids count from the start of their block", "F05", "tail", _TILED),
    "first_block_only": ("only the first block of tokens is searched", "F05", "tail", _TILED),
    "last_draft_unchecked": ("the last of k drafts is kept unseen", "F24", "typical", {}),
    "count_with_last": ("the count includes the token after the drafts", "F24", "typical", {}),
    "count_of_drafted": ("the count is that of the drafts", "F24", "typical", {}),
    "placeholder_kept": ("-1 names the last token", "F23", "placeholders", {}),
    "placeholder_is_zero": ("-1 names token 0", "F23", "placeholders", {}),
    "no_drafts_no_token": ("a request without drafts gets no bonus", "F45", "poison", {}),
    "padding_row_joins": (
        "the last request has a draft more: a row that pads",
        "F45",
        "placeholders",
        {"requests": 4},
    ),
    "rest_unwritten": ("slots behind the last token are not written", "F08", "typical", {}),
    "rest_is_zero": ("slots behind the last token are 0", "F08", "typical", {}),
    "rest_keeps_drafts": ("slots behind the last token hold the drafts", "F08", "placeholders", {}),
    "last_request_stale": ("the 33rd request is not done", "F05", "typical", {}),
    "ties_to_higher": ("of equal scores the higher id wins", "F17", "ties", {}),
    "ties_to_higher_greedy": ("of equally probable tokens the higher id wins", "F17", "ties", {}),
    "no_residual_keeps_draft": ("without any residual the draft is emitted", "F17", "ties", {}),
    "nan_is_kept": ("a draft is kept unless p / q < u", "F51", "nan_row", {}),
    "nan_spreads": ("scores take the NaN of another request", "F51", "nan_row", {}),
    "wrapped_row_offset": ("row offsets wrap at 2**31: row 2 reads row 0", "F50", "wide_offsets", _WIDE),
}
SPECIALIZED_FAULTS = {
    "not_strict": ("p >= u q for >", "F24", "edges", {}),
    "quotient_compared": ("p / q > u for p > u q", "F24", "near", {}),
    "q_missing_one_hot": ("drafts without q are compared with a q of 1/2", "F32", "one_hot", _PLAIN),
}


def faults() -> Iterator[Fault]:
    for profile, table in (("stock", FAULTS), ("specialized", SPECIALIZED_FAULTS)):
        for name, (what, kind, regime, differs) in table.items():
            shape = {"requests": 33, "drafts": 3, "vocabulary": 37, "proposal": 1} | differs
            case = Case.of("reject_sample", regime, 7, **shape)
            function = partial(run, order=LIBRARY, fault=name, profile=profile)
            yield Fault(name, what, case, profile, function, kind)


def run(a: RejectSampleArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """Fill tokens and accepted, wrong in the way ``fault`` says. There is no sum: ``order`` is unused."""
    del order
    walk = _Walk(a, fault, profile)
    for i in range(a.most):
        walk.draft(i)
    walk.finish()


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).float()


def _tempered(p: Tensor, temperature: float) -> Tensor:
    return torch.softmax(p.log() / temperature, -1)


class _Walk:
    """All requests at once, draft after draft; ``going``: those that have rejected none so far."""

    def __init__(self, a: RejectSampleArguments, fault: str, profile: str) -> None:
        self.a, self.fault, self.profile = a, fault, profile
        self.requests = torch.arange(len(a.ends), device=a.ends.device)
        previous = torch.nn.functional.pad(a.ends.long(), (1, 0))[:-1]
        self.count = a.ends.long() - previous
        self.start = self.requests * a.most if fault == "row_by_slot" else previous
        if fault == "padding_row_joins":
            self.count[-1] = self.count[-1] + 1
        self.greedy = self._greedy()
        self.going = torch.ones_like(self.greedy)
        self.kept = torch.zeros_like(self.count)
        self.joint = torch.ones(len(self.requests), device=a.ends.device)
        self.tokens = torch.full_like(a.tokens, 0 if fault == "rest_is_zero" else -1)
        self.written = torch.zeros_like(a.tokens, dtype=torch.bool)
        noise = a.noise.roll(-1, 0) if fault == "noise_of_next_request" else a.noise
        if fault == "noise_pitch":
            noise = noise.flatten().roll(3).view_as(noise)
        self.noise = _rounded(noise, torch.bfloat16) if fault == "noise_bf16" else noise

    def _greedy(self) -> Tensor:
        t, fault = self.a.temperature, self.fault
        if fault == "greedy_as_random":
            return torch.zeros_like(t, dtype=torch.bool)
        if fault == "random_as_greedy":
            return torch.ones_like(t, dtype=torch.bool)
        if fault == "negative_zero_is_random":
            return (t == 0) & ~t.signbit()
        return t < 1e-5 if fault == "greedy_below_1e-5" else t == 0

    def _row(self, i: int) -> Tensor:
        row = (self.start + i).clamp(max=len(self.a.drafts) - 1)
        if self.fault == "wrapped_row_offset":
            row = torch.where(row == 2, 0, row)
        return row

    def _probabilities(self, i: int) -> tuple[Tensor, Tensor]:
        """p and q of the i-th drafts. [request, token]"""
        a, fault = self.a, self.fault
        row = self._row(i)
        if fault == "row_of_next_draft":
            row = (row + 1).clamp(max=len(a.drafts) - 1)
        p = a.target[row]
        if a.proposal is None:
            q = torch.zeros_like(p).scatter_(1, self._drafts(i).clamp(min=0)[:, None], 1.0)
            return p, q / 2 if fault == "q_missing_one_hot" else q
        q = a.proposal[row]
        if fault == "probabilities_bf16":
            p, q = _rounded(p, torch.bfloat16), _rounded(q, torch.bfloat16)
        if fault == "draft_temperature":
            q = _tempered(q, 1.1)
        return _tempered(p, 1.1) if fault == "target_temperature" else p, q

    def _drafts(self, i: int) -> Tensor:
        return self.a.drafts[(self.start + i).clamp(max=len(self.a.drafts) - 1)].long()

    def draft(self, i: int) -> None:
        drafts = self._drafts(i)
        here = (i < self.count) & self.going
        p, q = self._probabilities(i)
        best = self._best(p)
        keep = torch.where(self.greedy, drafts == best, self._keep(i, drafts, p, q))
        if self.fault == "greedy_second_best":
            keep |= self.greedy & (p.topk(2, -1).indices[:, 1] == drafts)
        if self.fault == "last_draft_unchecked" and i == self.a.most - 1:
            keep = torch.ones_like(keep)
        self._put(i, here & keep, drafts)
        self.kept += here & keep
        rejected = here & ~keep
        if self.fault != "goes_on_after_rejection":
            self.going &= ~rejected
        replaced = self._replaced(i, drafts, p, q, best)
        self._put(i, rejected, replaced)
        if self.fault == "bonus_after_recovered":
            self._put(i + 1, rejected, self.a.bonus.long())
        if self.fault == "rest_keeps_drafts":
            self._put(i, (i < self.count) & ~here, drafts)

    def _put(self, i: int, where: Tensor, token: Tensor) -> None:
        self.tokens[:, i] = torch.where(where, token.to(torch.int32), self.tokens[:, i])
        self.written[:, i] |= where

    def _keep(self, i: int, drafts: Tensor, p: Tensor, q: Tensor) -> Tensor:
        fault = self.fault
        if fault == "placeholder_kept":
            drafts = torch.where(drafts < 0, self.a.vocabulary - 1, drafts)
        if fault == "placeholder_is_zero":
            drafts = drafts.clamp(min=0)
        spot = drafts.clamp(min=0)[:, None]
        p, q = p.gather(1, spot)[:, 0], q.gather(1, spot)[:, 0]
        if fault.startswith("placeholder"):
            q = torch.where(q == 0, p, q)
        u = self._uniform(i)
        if fault == "q_missing":
            q = torch.ones_like(q)
        if fault == "q_over_p":
            p, q = q, p
        if fault == "q_zero_kept":
            return (p / q >= u) & (drafts >= 0)
        if fault == "nan_is_kept":
            return ~(p / q < u) & (drafts >= 0)
        return (drafts >= 0) & (q > 0) & self._compared(p, q, u)

    def _uniform(self, i: int) -> Tensor:
        fault = self.fault
        step = {"uniform_of_next_draft": i + 1, "one_uniform": 0}.get(fault, i)
        u = self.a.uniform[(self._row(step)).clamp(max=len(self.a.uniform) - 1)]
        if fault == "u_reversed":
            return 1 - u
        return _rounded(u, torch.float16) if fault == "uniform_fp16" else u

    def _compared(self, p: Tensor, q: Tensor, u: Tensor) -> Tensor:
        fault = self.fault
        if fault == "block_criterion":
            self.joint = self.joint * (p / q).clamp(max=1)
            return self.joint >= u
        if fault == "one_always_kept":
            return (p / q >= u) & (u < 0.9999)
        if fault == "quotient_bf16":
            return _rounded(p / q, torch.bfloat16) >= u
        if fault == "quotient_approximate":
            return p * _rounded(1 / q, torch.bfloat16) >= u
        if fault == "quotient_compared":
            return p / q > u
        if fault in ("product_compared", "not_strict"):
            return p >= u * q
        if fault.startswith("strict"):
            return p / q > u
        return p > u * q if self.profile == "specialized" else p / q >= u

    def _best(self, p: Tensor) -> Tensor:
        """The most probable token, the lowest of equal ones. int64 [request]"""
        if self.fault == "last_tile_lost_greedy":
            p = p[:, : -(p.shape[1] % 32)]
        return _first_largest(p, self.fault == "ties_to_higher_greedy")

    def _replaced(self, i: int, drafts: Tensor, p: Tensor, q: Tensor, best: Tensor) -> Tensor:
        fault = self.fault
        if fault == "bonus_for_recovered":
            return self.a.bonus.long()
        if fault == "recovered_at_last_draft":
            row = (self.start + self.count - 1).clamp(min=0)
            p, q = self.a.target[row], (self.a.target if self.a.proposal is None else self.a.proposal)[row]
        weight = self._weight(p, q)
        if self.a.proposal is None and fault != "draft_recovered":
            weight = weight.scatter(1, drafts.clamp(min=0)[:, None], 0.0)
            weight = torch.where((drafts < 0)[:, None], p, weight)
        token = self._drawn(weight)
        if fault == "no_residual_keeps_draft":
            token = torch.where((weight == 0).all(-1), drafts, token)
        greedy = drafts if fault == "greedy_emits_draft" else best
        return torch.where(self.greedy, greedy, token)

    def _weight(self, p: Tensor, q: Tensor) -> Tensor:
        fault = self.fault
        if fault == "p_renormalised_first":
            taken = p.scatter(1, q.argmax(-1, keepdim=True), 0.0)
            return (taken / taken.sum(-1, keepdim=True) - q).clamp(min=0)
        if fault == "recovered_from_p" or self.a.proposal is None:
            return p
        if fault == "recovered_from_q":
            return (q - p).clamp(min=0)
        return (p - q).abs() if fault == "recovered_absolute" else (p - q).clamp(min=0)

    def _drawn(self, weight: Tensor) -> Tensor:
        """The token of the largest weight over its exponential number. int64 [request]"""
        fault, vocabulary = self.fault, self.a.vocabulary
        if fault == "noise_multiplied":
            scores = weight * self.noise
        elif self.profile == "specialized":
            scores = weight / self.noise
        else:
            scores = weight * (1 / self.noise)
        if fault == "nan_spreads":
            scores = scores + 0 * self.a.target[0].sum()
        if fault == "last_tile_lost":
            scores = scores[:, : -(vocabulary % 32)]
        if fault == "lanes_beyond":
            scores = torch.nn.functional.pad(scores, (0, 64 - vocabulary % 64), value=float("inf"))
        if fault == "first_block_only":
            scores = scores[:, :512]
        token = _first_largest(scores, fault == "ties_to_higher")
        return token % 512 if fault == "id_of_its_block" else token

    def finish(self) -> None:
        """What follows when every draft was kept, and the counts."""
        a, fault = self.a, self.fault
        bonus = a.bonus.roll(-1) if fault == "bonus_of_next_request" else a.bonus
        full = self.going & (fault != "bonus_missing")
        if fault == "no_drafts_no_token":
            full &= self.count > 0
        for i in range(a.most + 1):
            self._put(i, full & (self.count == i), bonus.long())
        kept = {"count_with_last": self.kept + 1, "count_of_drafted": self.count}.get(fault, self.kept)
        done = slice(None, -1) if fault == "last_request_stale" else slice(None)
        if fault == "rest_unwritten":
            self.tokens = torch.where(self.written, self.tokens, a.tokens)
        a.tokens[done] = self.tokens[done]
        a.accepted[done] = kept[done].to(torch.int32)


def _first_largest(x: Tensor, last: bool) -> Tensor:
    """Id of the largest element of each row, the lowest (``last``: highest) of equal ones; of a row with NaN,
    0. int64 [row]"""
    top = x.amax(-1, keepdim=True)
    ids = torch.arange(x.shape[1], device=x.device).expand_as(x)
    if last:
        return torch.where(x == top, ids, 0).amax(-1)
    lowest = torch.where(x == top, ids, x.shape[1]).amin(-1)
    return torch.where(lowest == x.shape[1], 0, lowest)
