"""AttnRes in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel in the given summation order, in the direct
form, or in the quadratic form with ``quadratic=True``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.arguments import AttnResArguments
from validation.faults.orders import Order

# Fault -> (what is wrong, the position of the step at which it exists).
FAULTS = {
    "eps_1e-6": ("output norm eps 1e-6 for 1e-5", "plain"),
    "score_eps_1e-6": ("score norm eps 1e-6 for 1e-5", "plain"),
    "eps_not_compensated": ("norm of the undivided mixture without eps * den**2", "plain"),
    "prefix_not_rounded": ("the mix uses prefix + delta before its rounding", "plain"),
    "mixture_rounded": ("one BF16 rounding of the mixture too many", "plain"),
    "final_mixture_not_rounded": ("final boundary without the mixture's rounding", "final"),
    "weights_bf16": ("softmax weights rounded to BF16", "plain"),
    "scores_bf16": ("scores rounded to BF16", "plain"),
    "squares_bf16_chunks": ("sum of squares in BF16 every 512 columns", "plain"),
    "mixture_bf16_accumulate": ("mixture accumulated in BF16, source by source", "plain"),
    "stale_fragment": ("8 columns of one row keep the old output", "plain"),
    "last_tile_lost": ("the last 64 columns are missing from the norm", "plain"),
    "score_tile_lost": ("the last 64 columns are missing from the scores", "plain"),
    "blocks_plus_one": ("one stale block too many is mixed in", "plain"),
    "blocks_minus_one": ("the last block is left out", "plain"),
    "prefix_left_out": ("the prefix is not a source", "plain"),
    "added_where_replaced": ("prefix := prefix + delta where it is delta", "replace"),
    "replaced_where_added": ("prefix := delta where it is prefix + delta", "plain"),
    "block_among_sources": ("the block just written is mixed in", "write"),
    "block_not_written": ("block write lost", "write"),
    "block_index_off": ("block written one place early", "write"),
    "block_before_delta": ("block gets the prefix before delta", "write"),
    "aux_before_delta": ("auxiliary row gets the prefix before delta", "aux"),
    "gamma_plus_one": ("gamma taken as 1 + w", "plain"),
    "score_gamma_missing": ("scores without the score norm's weight", "plain"),
    "gamma_shifted": ("gamma shifted by one column", "plain"),
    "width_padded": ("mean over the next power of two of columns", "plain"),
    "exp2_for_exp": ("softmax in base 2", "plain"),
    "no_maximum": ("softmax without subtracting the maximum", "peaked"),
    "no_rescale": ("online softmax without rescaling at a new maximum", "plain"),
    "no_cross_term": ("quadratic norm without the U * P term", "plain"),
    "rows_swapped": ("two output rows swapped", "plain"),
}


def run(a: AttnResArguments, order: Order, fault: str = "", quadratic: bool = False) -> None:
    """One boundary, in place, wrong in the way ``fault`` says."""
    old = a.prefix.clone()
    prefix = _merge(a, fault)
    a.prefix.copy_(prefix)
    if a.write_aux:
        a.aux.copy_(old if fault == "aux_before_delta" else a.prefix)
    if fault == "block_among_sources":
        _write_block(a, old, fault)
    read = a.blocks_read + {"blocks_plus_one": 1, "blocks_minus_one": -1, "block_among_sources": 1}.get(
        fault, 0
    )
    last = prefix if fault == "prefix_not_rounded" else a.prefix.float()
    sources = torch.cat([a.blocks[:, :read].float(), last[:, None]], 1)
    if fault == "prefix_left_out":
        sources = sources[:, :-1]
    _write_block(a, old, fault)
    scores = _scores(a, sources, order, fault)
    form = quadratic or fault in ("eps_not_compensated", "no_cross_term")
    if form and a.finish == "norm" and sources.shape[1] > 1:
        out = _quadratic(a, sources, scores, order, fault)
    else:
        out = _direct(a, sources, scores, order, fault)
    _store(a, out, fault)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _merge(a: AttnResArguments, fault: str) -> Tensor:
    if a.merge == "keep":
        return a.prefix.float()
    add = a.merge == "add"
    if fault in ("added_where_replaced", "replaced_where_added"):
        add = not add
    return a.prefix.float() + a.delta.float() if add else a.delta.float()


def _write_block(a: AttnResArguments, old: Tensor, fault: str) -> None:
    if a.write_block < 0 or fault == "block_not_written":
        return
    index = a.write_block - 1 if fault == "block_index_off" else a.write_block
    a.blocks[:, index] = old if fault == "block_before_delta" else a.prefix


def _scores(a: AttnResArguments, sources: Tensor, order: Order, fault: str) -> Tensor:
    weight = a.score_proj.float()
    if fault != "score_gamma_missing":
        weight = a.score_gamma.float() * weight
    eps = 1e-6 if fault == "score_eps_1e-6" else a.eps_score
    inverse = torch.rsqrt(order.sum(sources * sources, -1) * (1.0 / sources.shape[-1]) + eps)
    terms = sources * weight
    scores = order.sum(terms[..., :-64] if fault == "score_tile_lost" else terms, -1) * inverse
    return _bf16(scores) if fault == "scores_bf16" else scores


def _exp(x: Tensor, fault: str) -> Tensor:
    return torch.exp2(x) if fault == "exp2_for_exp" else torch.exp(x)


def _direct(a: AttnResArguments, sources: Tensor, scores: Tensor, order: Order, fault: str) -> Tensor:
    top = torch.zeros_like(scores[:, :1]) if fault == "no_maximum" else scores.amax(1, keepdim=True)
    e = _exp(scores - top, fault)
    if fault == "no_rescale":
        # Every source is weighed against the maximum so far; a new maximum does not scale down what came
        # before.
        e = _exp(scores - scores.cummax(1).values, fault)
    weights = e / order.sum(e, 1)[:, None]
    if fault == "weights_bf16":
        weights = _bf16(weights)
    terms = weights[..., None] * sources
    mixture = _bf16_chain(terms) if fault == "mixture_bf16_accumulate" else order.sum(terms, 1)
    if a.finish == "mix":
        return mixture
    rounds = a.finish == "final" and fault != "final_mixture_not_rounded"
    if rounds or fault == "mixture_rounded":
        mixture = _bf16(mixture)
    eps = 1e-6 if fault == "eps_1e-6" else a.eps
    width = mixture.shape[-1]
    if fault == "width_padded":
        width = 1 << (width - 1).bit_length()
    return mixture * torch.rsqrt(_squares(mixture, order, fault) * (1.0 / width) + eps) * _gamma(a, fault)


def _bf16_chain(terms: Tensor) -> Tensor:
    total = torch.zeros_like(terms[:, 0])
    for term in terms.unbind(1):
        total = _bf16(total + term)
    return total


def _squares(x: Tensor, order: Order, fault: str) -> Tensor:
    squares = x * x
    if fault == "last_tile_lost":
        squares = squares[..., :-64]
    if fault == "squares_bf16_chunks":
        total = torch.zeros_like(squares[..., :1])
        for chunk in squares.split(512, -1):
            total = _bf16(total + chunk.sum(-1, keepdim=True))
        return total
    return order.sum(squares, -1)[..., None]


def _gamma(a: AttnResArguments, fault: str) -> Tensor:
    gamma = a.gamma.float()
    if fault == "gamma_plus_one":
        return 1 + gamma
    return gamma.roll(1) if fault == "gamma_shifted" else gamma


def _quadratic(a: AttnResArguments, sources: Tensor, scores: Tensor, order: Order, fault: str) -> Tensor:
    blocks, prefix = sources[:, :-1], sources[:, -1]
    peak = scores[:, :-1].amax(1, keepdim=True)
    top = torch.maximum(peak, scores[:, -1:])
    e = torch.exp(scores[:, :-1] - peak)
    mixed = order.sum(e[..., None] * blocks, 1)
    alpha, epsilon = torch.exp(peak - top), torch.exp(scores[:, -1:] - top)
    denominator = alpha * order.sum(e, 1)[:, None] + epsilon
    uu, up, pp = (order.sum(x, -1)[:, None] for x in (mixed * mixed, mixed * prefix, prefix * prefix))
    if fault == "no_cross_term":
        up = torch.zeros_like(up)
    q = alpha * alpha * uu + 2 * alpha * epsilon * up + epsilon * epsilon * pp
    eps = a.eps if fault == "eps_not_compensated" else a.eps * denominator * denominator
    inverse = torch.rsqrt(q * (1.0 / prefix.shape[-1]) + eps)
    return (alpha * inverse * mixed + epsilon * inverse * prefix) * a.gamma.float()


def _store(a: AttnResArguments, out: Tensor, fault: str) -> None:
    stored = out.bfloat16()
    if fault == "stale_fragment":
        stored[0, 8:16] = stored[-1, 8:16] if stored.shape[0] > 1 else 0
    if fault == "rows_swapped":
        stored = stored.roll(1, 0)
    a.out.copy_(stored)
