"""The acceptance rule of speculative decoding: one kernel for small vocabularies, four for large ones.

Up to 64 tokens a program does 32 requests, up to 4,096 tokens one: it walks over the drafts (greedy requests
search the most probable token at each, random ones read three numbers) and draws the recovered token once,
where it stopped. Larger vocabularies are cut into blocks, as the subject's second runner does: the most
probable token of each block and draft of greedy requests, the walk, the largest score of each block where a
random request stopped, the token that wins. A block that has nothing to do reads nothing. Of equal values the
lowest id wins within blocks and between them, so no result depends on the order of programs.

What this cannot show: the subject's own random numbers, and its softmax, which is not part of the rule here.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis, power_of_two
from validation.dispatch.table import Route, route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments

LARGEST = 1 << 20  # tokens: a thousand blocks are combined at once
# Tokens that one program of the interpreter may hold, which pays by the operation.
INTERPRETED = 1 << 17


@triton.jit
def _largest(value, token, BLOCK: tl.constexpr):
    """The largest of each row of ``value`` [request, token] and the lowest id that has it; NaN never."""
    value = tl.where(value != value, -1.0, value)
    top = tl.max(value, axis=1)
    return top, tl.min(tl.where(value == top[:, None], token[None, :], BLOCK), axis=1)


@triton.jit
def _kept(
    target, proposal, uniform, row, draft, live, stride_target, stride_proposal, PROPOSED: tl.constexpr
):
    """Whether a random request keeps the draft of ``row``: q > 0 and p > u q, a placeholder never."""
    real = live & (draft >= 0)
    p = tl.load(target + row * stride_target + draft, mask=real, other=0.0)
    u = tl.load(uniform + row, mask=real, other=0.0)
    if PROPOSED:
        q = tl.load(proposal + row * stride_proposal + draft, mask=real, other=0.0)
        keep = (q > 0.0) & (p > u * q)
    else:
        keep = p > u
    return keep & real


@triton.jit
def _scores(
    target, proposal, noise, request, row, draft, live, token, inside, stride_target, stride_proposal,
    stride_noise, PROPOSED: tl.constexpr,
):  # fmt: skip
    """max(p - q, 0) / e of ``row``; without q the draft alone has weight 0. Lanes outside: -1."""
    mask = live[:, None] & inside[None, :]
    weight = tl.load(target + row[:, None] * stride_target + token[None, :], mask=mask, other=0.0)
    if PROPOSED:
        q = tl.load(proposal + row[:, None] * stride_proposal + token[None, :], mask=mask, other=0.0)
        difference = weight - q
        # Not a maximum: that of a NaN would be 0, and win where all weights are.
        weight = tl.where(difference < 0.0, 0.0, difference)
    else:
        weight = tl.where(token[None, :] == draft[:, None], 0.0, weight)
    e = tl.load(noise + request[:, None] * stride_noise + token[None, :], mask=mask, other=1.0)
    return tl.where(inside[None, :], weight / e, -1.0)


@triton.jit
def _emit(
    drafts, bonus, tokens, accepted, request, first, count, kept, recovered, inside, stride_tokens, most
):
    """Write the count, the kept drafts, the token after them and placeholders."""
    following = tl.load(bonus + request, mask=inside, other=0)
    following = tl.where(kept == count, following, recovered)
    tl.store(accepted + request, kept, mask=inside)
    for i in range(0, most + 1):
        token = tl.load(drafts + first + i, mask=inside & (i < kept), other=-1)
        token = tl.where(kept == i, following, token)
        tl.store(tokens + request * stride_tokens + i, token, mask=inside)


@triton.jit
def reject_fused_kernel(
    drafts, ends, target, proposal, uniform, noise, bonus, temperature, tokens, accepted,
    stride_target, stride_proposal, stride_noise, stride_tokens, requests, most, vocabulary,
    PROPOSED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS requests, whole vocabularies."""
    request = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, BLOCK)
    mine = request < requests
    inside = token < vocabulary
    first = tl.load(ends + request - 1, mask=mine & (request > 0), other=0).to(tl.int64)
    count = tl.load(ends + request, mask=mine, other=0) - first.to(tl.int32)
    greedy = mine & (tl.load(temperature + request, mask=mine, other=1.0) == 0.0)
    going = mine
    kept = tl.zeros([ROWS], dtype=tl.int32)
    replaced = tl.zeros([ROWS], dtype=tl.int32)
    for i in range(0, most):
        going = going & (i < count)
        draft = tl.load(drafts + first + i, mask=going, other=-1)
        searched = going & greedy
        at = target + (first + i)[:, None] * stride_target + token[None, :]
        p = tl.load(at, mask=searched[:, None] & inside[None, :], other=-1.0)
        _, best = _largest(p, token, BLOCK)
        replaced = tl.where(searched, best, replaced)
        keep = _kept(
            target, proposal, uniform, first + i, draft, going & (~greedy), stride_target, stride_proposal,
            PROPOSED,
        )  # fmt: skip
        going = going & tl.where(greedy, draft == best, keep)
        kept += going.to(tl.int32)
    stopped = mine & (~greedy) & (kept < count)
    row = first + kept
    draft = tl.load(drafts + row, mask=stopped, other=-1)
    scores = _scores(
        target, proposal, noise, request, row, draft, stopped, token, inside, stride_target, stride_proposal,
        stride_noise, PROPOSED,
    )  # fmt: skip
    _, recovered = _largest(scores, token, BLOCK)
    recovered = tl.where(greedy, replaced, recovered)
    _emit(drafts, bonus, tokens, accepted, request, first, count, kept, recovered, mine, stride_tokens, most)


@triton.jit
def _request(ends, temperature, request):
    """First row, number of drafts, and whether it is greedy, of one request, [1] each."""
    first = tl.load(ends + request - 1, mask=request > 0, other=0).to(tl.int64)
    count = tl.load(ends + request) - first.to(tl.int32)
    return first, count, tl.load(temperature + request) == 0.0


@triton.jit
def reject_best_kernel(
    ends, target, temperature, tops, places, stride_target, most, vocabulary, blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """The most probable token of one block, of one draft of a greedy request."""
    step = tl.program_id(0)
    request = (step // most).to(tl.int64) + tl.arange(0, 1)
    first, count, greedy = _request(ends, temperature, request)
    live = greedy & (step % most < count)
    if tl.sum(live.to(tl.int32)) > 0:
        start = tl.program_id(1) * BLOCK
        token = start + tl.arange(0, BLOCK)
        at = target + (first + step % most)[:, None] * stride_target + token[None, :]
        p = tl.load(at, mask=(token < vocabulary)[None, :], other=-1.0)
        top, place = _largest(p, token, start + BLOCK)
        at = step * blocks + tl.program_id(1) + tl.arange(0, 1)
        tl.store(tops + at, top)
        tl.store(places + at, place)


@triton.jit
def _winner(tops, places, row, live, blocks, BLOCKS: tl.constexpr):
    """The place of the first of the largest blocks of ``row``. int32 [1]"""
    block = tl.arange(0, BLOCKS)
    at = row[:, None] * blocks + block[None, :]
    mask = live[:, None] & (block < blocks)[None, :]
    top = tl.load(tops + at, mask=mask, other=-2.0)
    _, chosen = _largest(top, block, BLOCKS)
    return tl.load(places + row * blocks + chosen, mask=live, other=0)


@triton.jit
def reject_walk_kernel(
    drafts, ends, target, proposal, uniform, bonus, temperature, tokens, accepted, tops, places,
    stride_target, stride_proposal, stride_tokens, most, blocks,
    PROPOSED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Kept drafts of one request; the token after them too, unless it is to be drawn."""
    request = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    first, count, greedy = _request(ends, temperature, request)
    going = request >= 0
    kept = tl.zeros([1], dtype=tl.int32)
    replaced = tl.zeros([1], dtype=tl.int32)
    for i in range(0, most):
        going = going & (i < count)
        draft = tl.load(drafts + first + i, mask=going, other=-1)
        searched = going & greedy
        best = _winner(tops, places, request * most + i, searched, blocks, BLOCKS)
        replaced = tl.where(searched, best, replaced)
        keep = _kept(
            target, proposal, uniform, first + i, draft, going & (~greedy), stride_target, stride_proposal,
            PROPOSED,
        )  # fmt: skip
        going = going & tl.where(greedy, draft == best, keep)
        kept += going.to(tl.int32)
    _emit(
        drafts, bonus, tokens, accepted, request, first, count, kept, replaced, request >= 0, stride_tokens,
        most,
    )  # fmt: skip


@triton.jit
def reject_residual_kernel(
    drafts, ends, target, proposal, noise, temperature, accepted, tops, places,
    stride_target, stride_proposal, stride_noise, vocabulary, blocks,
    PROPOSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest score of one block, of a random request that stopped before its last draft."""
    request = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    first, count, greedy = _request(ends, temperature, request)
    kept = tl.load(accepted + request)
    live = (~greedy) & (kept < count)
    if tl.sum(live.to(tl.int32)) > 0:
        start = tl.program_id(1) * BLOCK
        token = start + tl.arange(0, BLOCK)
        row = first + kept
        draft = tl.load(drafts + row)
        scores = _scores(
            target, proposal, noise, request, row, draft, live, token, token < vocabulary, stride_target,
            stride_proposal, stride_noise, PROPOSED,
        )  # fmt: skip
        top, place = _largest(scores, token, start + BLOCK)
        at = request * blocks + tl.program_id(1)
        tl.store(tops + at, top)
        tl.store(places + at, place)


@triton.jit
def reject_insert_kernel(
    ends, temperature, accepted, tokens, tops, places, stride_tokens, blocks, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The recovered token of a random request that stopped, in its slot."""
    request = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    _, count, greedy = _request(ends, temperature, request)
    kept = tl.load(accepted + request)
    live = (~greedy) & (kept < count)
    token = _winner(tops, places, request, live, blocks, BLOCKS)
    tl.store(tokens + request * stride_tokens + kept, token, mask=live)


_CUT = ("reject_best_kernel", "reject_walk_kernel", "reject_residual_kernel", "reject_insert_kernel")
WHEN = "tokens of the vocabulary in place of rows"
TABLE = (
    Route(64, ("reject_fused_kernel",), {"rows": 32, "warps": 4}, when=WHEN),
    Route(4096, ("reject_fused_kernel",), {"rows": 1, "warps": 8}, when=WHEN),
    Route(LARGEST, _CUT, {"block": 2048, "warps": 4}, when=WHEN),
)


def reject_sample(a: RejectSampleArguments) -> None:
    """tokens[request, slot] and accepted[request]; see ``RejectSampleArguments``."""
    if reason := _refused(a.vocabulary, a.most):
        raise UserError(f"reject_sample: {reason}")
    matrices = {"target": a.target, "noise": a.noise, "tokens": a.tokens}
    vectors = {
        name: getattr(a, name) for name in ("drafts", "ends", "uniform", "bonus", "temperature", "accepted")
    }
    if a.proposal is not None:
        matrices["proposal"] = a.proposal
    need_dense_last_axis(**matrices, **vectors)
    chosen = route(TABLE, a.vocabulary, WHEN)
    settings = dict(chosen.settings)
    proposal = a.target if a.proposal is None else a.proposal
    if chosen.kernels == _CUT:
        _in_blocks(a, proposal, settings)
    else:
        _whole(a, proposal, settings)


def _whole(a: RejectSampleArguments, proposal: Tensor, settings: dict[str, Any]) -> None:
    requests, block = len(a.ends), power_of_two(a.vocabulary)
    rows = settings["rows"]
    if interpreted(a.target):
        rows = min(power_of_two(requests), max(INTERPRETED // block, 1))
    reject_fused_kernel[(triton.cdiv(requests, rows),)](
        a.drafts, a.ends, a.target, proposal, a.uniform, a.noise, a.bonus, a.temperature, a.tokens,
        a.accepted, a.target.stride(0), proposal.stride(0), a.noise.stride(0), a.tokens.stride(0),
        requests, a.most, a.vocabulary, PROPOSED=a.proposal is not None, ROWS=rows, BLOCK=block,
        num_warps=settings["warps"],
    )  # fmt: skip


def _in_blocks(a: RejectSampleArguments, proposal: Tensor, settings: dict[str, Any]) -> None:
    requests, most, proposed = len(a.ends), a.most, a.proposal is not None
    block = 4096 if interpreted(a.target) else settings["block"]
    warps = settings["warps"]
    blocks = triton.cdiv(a.vocabulary, block)
    lanes = power_of_two(blocks)
    tops = torch.empty(requests * most, blocks, device=a.target.device)
    places = torch.empty(requests * most, blocks, dtype=torch.int32, device=a.target.device)
    strides = (a.target.stride(0), proposal.stride(0))
    reject_best_kernel[(requests * most, blocks)](
        a.ends, a.target, a.temperature, tops, places, a.target.stride(0), most, a.vocabulary, blocks,
        BLOCK=block, num_warps=warps,
    )  # fmt: skip
    reject_walk_kernel[(requests,)](
        a.drafts, a.ends, a.target, proposal, a.uniform, a.bonus, a.temperature, a.tokens, a.accepted,
        tops, places, *strides, a.tokens.stride(0), most, blocks, PROPOSED=proposed, BLOCKS=lanes,
        num_warps=1,
    )  # fmt: skip
    reject_residual_kernel[(requests, blocks)](
        a.drafts, a.ends, a.target, proposal, a.noise, a.temperature, a.accepted, tops, places,
        *strides, a.noise.stride(0), a.vocabulary, blocks, PROPOSED=proposed, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    reject_insert_kernel[(requests,)](
        a.ends, a.temperature, a.accepted, a.tokens, tops, places, a.tokens.stride(0), blocks, BLOCKS=lanes,
        num_warps=1,
    )  # fmt: skip


def _refused(vocabulary: int, most: int) -> str | None:
    """Why a shape is not served."""
    if not 1 <= vocabulary <= LARGEST:
        return f"a vocabulary of {vocabulary} tokens; 1 to {LARGEST} are served"
    return None if most >= 1 else "no drafts; at least 1 a request is served"


def supports(case: Case) -> str | None:
    """The same for a case of the plan."""
    return _refused(case["vocabulary"], case["drafts"])


def kernels(case: Case) -> tuple[str, ...]:
    """What ``reject_sample`` launches for a case."""
    return route(TABLE, case["vocabulary"], WHEN).kernels


OPERATIONS = {
    "reject_sample": {
        "function": reject_sample,
        "kernels": kernels,
        "supports": supports,
        "table": TABLE,
    },
}
