"""The o-projection, its all-reduce and AttnRes in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault, profile)`` with ``fault=""`` is an honest kernel in the given summation order: with
``stock`` the ranks are added in that order and the norm is direct; with ``specialized`` in four groups (rank
order above the two-shot threshold) and the norm is the quadratic form.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.oproj import case
from validation.contracts.oproj_arguments import OprojArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

_PLAIN = case("typical", 7, 8, 3, k=512, width=512, blocks=3, moe=1)
_ALONE = case("typical", 7, 8, 3, width=512, blocks=0)
_REPLACE = case("typical", 7, 16, 3, k=72, width=328, blocks=3, merge=1)
_TWO_SHOT = case("typical", 7, 16, 17, width=320)
_WIDE = case("wide_offsets", 7, 8, 3)


def _in(regime: str, **options: int) -> Case:
    return case(regime, 7, options.pop("ranks", 16), options.pop("rows", 3), **options)


def _ordered_case(**options: int) -> Case:
    return _in("cancelling_order", **options)


# Fault -> (what is wrong, kind, profile, the case in which it must be seen).
FAULTS: dict[str, tuple[str, str, str, Case]] = {
    "rank_lost": ("the last rank's partial is not added", "F08", "stock", _PLAIN),
    "rank_twice": ("rank 1's partial is added twice", "F05", "stock", _PLAIN),
    "stale_mailbox_row": ("one rank's last row is what its slot held before", "F08", "specialized", _PLAIN),
    "stale_mailbox_fragment": ("8 columns of one partial are the slot's old ones", "F08", "stock", _PLAIN),
    "partial_of_other_row": ("one rank's partials come from the row before", "F05", "specialized", _PLAIN),
    "shards_swapped": ("ranks 0 and 1 multiply each other's shard of y", "F01", "stock", _PLAIN),
    "weight_shifted": ("one rank's weight is shifted by one column", "F01", "stock", _PLAIN),
    "k_fragment_lost": ("the last 8 of one rank's K are not added", "F04", "stock", _PLAIN),
    "k_first_lost": ("the first element of one rank's K is not added", "F05", "stock", _PLAIN),
    "k_tail_twice": ("the last 8 of every rank's K are added twice", "F04", "specialized", _PLAIN),
    "partials_fp32": ("partials are not rounded to BF16 before the sum", "F12", "stock", _PLAIN),
    "partials_truncated": ("partials are stored by truncation", "F12", "stock", _PLAIN),
    "partials_fp16": ("partials are stored in FP16", "F06", "stock", _in("outliers", k=512, width=512)),
    "bf16_accumulate": ("accumulated in BF16 every 128 of K", "F06", "stock", _in("outliers", k=512)),
    "sum_bf16": ("the ranks are added in BF16", "F06", "stock", _in("cancelling")),
    "group_sums_bf16": ("the four groups' sums are rounded to BF16", "F06", "specialized", _in("cancelling")),
    "group_sums_bf16_one_shot": ("the same with partials of honest size", "F12", "specialized", _PLAIN),
    "plain_rank_order": ("rank order where four groups are due", "F31", "specialized", _ordered_case()),
    "pairwise_order": ("a tree where four groups are due", "F06", "specialized", _ordered_case()),
    "two_groups": ("two groups of ranks instead of four", "F31", "specialized", _ordered_case(ranks=8)),
    "groups_in_two_shot": ("groups above the threshold", "F31", "specialized", _ordered_case(rows=17)),
    "owner_chunk_repeated": ("an owner's columns are its neighbour's", "F05", "specialized", _TWO_SHOT),
    "owner_misses_last_rank": ("the last owner sums one rank too few", "F05", "specialized", _TWO_SHOT),
    "sum_not_rounded": ("prefix + sum without rounding the sum first", "F12", "stock", _PLAIN),
    "prefix_not_rounded": ("the norm takes the prefix before its rounding", "F12", "stock", _ALONE),
    "added_where_replaced": ("prefix := prefix + sum on a block-write layer", "F12", "stock", _REPLACE),
    "replaced_where_added": ("prefix := sum where the prefix goes on", "F12", "stock", _PLAIN),
    "prefix_not_stored": ("the last 8 columns of the prefix stay old", "F08", "stock", _PLAIN),
    "minus_zero_published": ("a partial's -0 goes into the mailbox", "F36", "specialized", _in("minus_zero")),
    "x_moe_minus_zero": ("x_moe is a plain copy", "F36", "specialized", _in("zero_row", moe=1)),
    "x_moe_row_lost": ("the last row of x_moe is not written", "F08", "specialized", _PLAIN),
    "spare_slot_written": ("a slot beyond the step's rows is written", "F45", "specialized", _PLAIN),
    "blocks_plus_one": ("one stale block too many is mixed in", "F12", "stock", _REPLACE),
    "blocks_minus_one": ("the last block is left out", "F12", "specialized", _PLAIN),
    "eps_1e-6": ("output norm eps 1e-6 for 1e-5", "F12", "stock", _in("small")),
    "score_eps_1e-6": ("score norm eps 1e-6 for 1e-5", "F12", "stock", _in("small")),
    "eps_not_compensated": ("quadratic norm without eps * den**2", "F12", "specialized", _in("small")),
    "no_cross_term": ("quadratic norm without U * P", "F12", "specialized", _PLAIN),
    "no_maximum": ("softmax without subtracting the maximum", "F03", "stock", _in("peaked", width=512)),
    "scores_bf16": ("scores rounded to BF16", "F12", "stock", _PLAIN),
    "mixture_rounded": ("one BF16 rounding of the mixture too many", "F12", "stock", _PLAIN),
    "gamma_plus_one": ("gamma taken as 1 + w", "F12", "specialized", _PLAIN),
    "offset_wraps": ("rows of blocks beyond 2**31 elements are read at row 0", "F50", "specialized", _WIDE),
    "nan_spreads": ("one row's NaN reaches the norm of the next", "F51", "stock", _in("nan_row")),
}  # fmt: skip


def faults() -> Iterator[Fault]:
    """Every fault in its one case."""
    for name, (what, kind, profile, where) in FAULTS.items():
        function = partial(run, order=LIBRARY, fault=name, profile=profile)
        yield Fault(name, what, where, profile, function, kind)


def run(a: OprojArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """All ranks' o-projection and the boundary after it, in place, wrong in the way ``fault`` says."""
    partials = _partials(a, order, fault)
    total = _summed(a, partials, order, fault, profile)
    last = _merge(a, total, fault)
    blocks = a.blocks[
        :, : a.blocks_read + {"blocks_plus_one": 1, "blocks_minus_one": -1}.get(fault, 0)
    ].float()
    if fault == "offset_wraps":
        blocks[2] = blocks[0]
    out = _mixed(a, blocks, last, order, fault, profile)
    a.out.copy_(out)
    if a.write_x_moe:
        copied = a.out if fault == "x_moe_minus_zero" else torch.where(a.out == 0, 0.0, a.out)
        rows = a.rows - (fault == "x_moe_row_lost")
        a.x_moe[:rows] = copied[:rows]


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _partials(a: OprojArguments, order: Order, fault: str) -> Tensor:
    """BF16 partials [rank, row, column] as FP32, published in the mailbox."""
    y, weight = a.y.float(), a.weight.float()
    if fault == "shards_swapped":
        y[0], y[1] = y[1].clone(), y[0].clone()
    if fault == "weight_shifted":
        weight[2] = weight[2].roll(1, 0)
    if fault == "k_fragment_lost":
        weight[3, :, -8:] = 0
    if fault == "k_first_lost":
        weight[3, :, 0] = 0
    if fault == "k_tail_twice":
        weight[:, :, -8:] *= 2
    exact = torch.stack([_product(y[r], weight[r], order, fault) for r in range(len(y))])
    if fault == "partials_fp32":
        return exact
    partials = _stored(exact, fault)
    if fault == "partial_of_other_row":
        partials[2] = partials[2].roll(1, 0)
    if fault == "stale_mailbox_row":
        partials[4, -1] = a.mailbox[4, a.rows - 1].float()
    if fault == "stale_mailbox_fragment":
        partials[5, 1, 8:16] = a.mailbox[5, 1, 8:16].float()
    slots = a.rows + (fault == "spare_slot_written")
    a.mailbox[:, :slots] = torch.cat([partials, partials[:, -1:]], 1)[:, :slots].bfloat16()
    return partials


def _product(y: Tensor, weight: Tensor, order: Order, fault: str) -> Tensor:
    if fault != "bf16_accumulate":
        return order.matmul(y, weight)
    total = torch.zeros(y.shape[0], weight.shape[0], device=y.device)
    for part_y, part_w in zip(y.split(128, -1), weight.split(128, -1), strict=True):
        total = _bf16(total + part_y @ part_w.T)
    return total


def _stored(exact: Tensor, fault: str) -> Tensor:
    if fault == "partials_truncated":
        return (exact.view(torch.int32) & ~0xFFFF).view(torch.float32)
    partials = exact.half().float() if fault == "partials_fp16" else _bf16(exact)
    return partials if fault == "minus_zero_published" else torch.where(partials == 0, 0.0, partials)


def _summed(a: OprojArguments, partials: Tensor, order: Order, fault: str, profile: str) -> Tensor:
    """FP32 sum over ranks [row, column], not yet rounded."""
    parts = list(partials.unbind(0))
    if fault == "rank_lost":
        parts = parts[:-1]
    if fault == "rank_twice":
        parts = [*parts, parts[1]]
    if fault == "sum_bf16":
        return _chain(parts, _bf16)
    if profile == "stock":
        return order.sum(torch.stack(parts), 0)
    total = _ordered(parts, a.two_shot, fault)
    chunk = -(-total.shape[-1] // len(parts))
    if fault == "owner_chunk_repeated":
        total[:, chunk : 2 * chunk] = total[:, :chunk].clone()
    if fault == "owner_misses_last_rank":
        start = (len(parts) - 1) * chunk
        total[:, start:] = _chain(parts[:-1])[:, start:]
    return total


def _ordered(parts: list[Tensor], two_shot: bool, fault: str) -> Tensor:
    if fault == "pairwise_order":
        while len(parts) > 1:
            parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]
    groups = 1 if two_shot else 4
    groups = {"plain_rank_order": 1, "two_groups": 2, "groups_in_two_shot": 4}.get(fault, groups)
    size = -(-len(parts) // groups)
    sums = [_chain(parts[start : start + size]) for start in range(0, len(parts), size)]
    if fault.startswith("group_sums_bf16"):
        sums = [_bf16(s) for s in sums]
    return _chain(sums)


def _chain(parts: list[Tensor], after: object = None) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
        if after is _bf16:
            total = _bf16(total)
    return total


def _merge(a: OprojArguments, total: Tensor, fault: str) -> Tensor:
    """Store the new prefix; what the mix uses of it, FP32."""
    add = a.merge == "add"
    if fault in ("added_where_replaced", "replaced_where_added"):
        add = not add
    delta = total if fault == "sum_not_rounded" else _bf16(total)
    merged = a.prefix.float() + delta if add else delta
    old = a.prefix[:, -8:].clone()
    a.prefix.copy_(merged)
    if fault == "prefix_not_stored":
        a.prefix[:, -8:] = old
    return merged if fault == "prefix_not_rounded" else _bf16(merged)


def _mixed(a: OprojArguments, blocks: Tensor, last: Tensor, order: Order, fault: str, profile: str) -> Tensor:
    """The normed mixture [row, column] FP32."""
    weight = a.score_gamma.float() * a.score_proj.float()
    eps_score = 1e-6 if fault == "score_eps_1e-6" else a.eps_score

    def score(v: Tensor) -> Tensor:
        squares = order.sum(v * v, -1) / v.shape[-1]
        logit = order.sum(v * weight, -1) * torch.rsqrt(squares + eps_score)
        return _bf16(logit) if fault == "scores_bf16" else logit

    of_blocks, of_last = score(blocks), score(last)[:, None]
    if profile == "specialized" and blocks.shape[1]:
        normed = _quadratic(a, blocks, last, of_blocks, of_last, order, fault)
    else:
        normed = _direct(a, blocks, last, torch.cat([of_blocks, of_last], 1), order, fault)
    gamma = a.gamma.float()
    return normed * (1 + gamma if fault == "gamma_plus_one" else gamma)


def _direct(
    a: OprojArguments, blocks: Tensor, last: Tensor, scores: Tensor, order: Order, fault: str
) -> Tensor:
    top = torch.zeros_like(scores[:, :1]) if fault == "no_maximum" else scores.amax(1, keepdim=True)
    e = torch.exp(scores - top)
    weights = e / order.sum(e, 1)[:, None]
    mixture = order.sum(weights[..., None] * torch.cat([blocks, last[:, None]], 1), 1)
    if fault == "mixture_rounded":
        mixture = _bf16(mixture)
    squares = order.sum(mixture * mixture, -1)[:, None]
    if fault == "nan_spreads":
        squares = squares + 0 * squares.roll(1, 0)
    eps = 1e-6 if fault == "eps_1e-6" else a.eps
    return mixture * torch.rsqrt(squares / mixture.shape[-1] + eps)


def _quadratic(
    a: OprojArguments,
    blocks: Tensor,
    last: Tensor,
    of_blocks: Tensor,
    of_last: Tensor,
    order: Order,
    fault: str,
) -> Tensor:
    peak = of_blocks.amax(1, keepdim=True)
    top = torch.maximum(peak, of_last)
    e = torch.exp(of_blocks - peak)
    mixed = order.sum(e[..., None] * blocks, 1)
    alpha, epsilon = torch.exp(peak - top), torch.exp(of_last - top)
    denominator = alpha * order.sum(e, 1)[:, None] + epsilon
    uu, up, pp = (order.sum(t, -1)[:, None] for t in (mixed * mixed, mixed * last, last * last))
    cross = 0.0 if fault == "no_cross_term" else 2 * alpha * epsilon * up
    eps = a.eps if fault == "eps_not_compensated" else a.eps * denominator * denominator
    square = (alpha * alpha * uu + cross + epsilon * epsilon * pp) / last.shape[-1]
    inverse = torch.rsqrt(square + eps)
    return (alpha * inverse) * mixed + (epsilon * inverse) * last
