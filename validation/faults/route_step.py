"""Routing in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault, profile)`` with ``fault=""`` is an honest kernel: ``stock`` gives the experts by
ascending id and scales after the division, ``specialized`` by descending key and scales before;
``specialized_b1`` takes the sigmoid from a tanh of 11 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.moe.route import RouteArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, kind, regime of its case).
FAULTS = {
    "key_in_weights": ("weights from s + bias", "F13", "typical"),
    "bias_ignored": ("the 16 largest scores, not keys", "F13", "typical"),
    "bias_twice": ("the bias is added twice", "F13", "large_bias"),
    "bias_times_score": ("key = s * (1 + bias)", "F13", "typical"),
    "bias_before_sigmoid": ("key = sigmoid(logit + bias)", "F13", "negative_keys"),
    "bias_bf16": ("the bias is rounded to BF16", "F06", "typical"),
    "logits_bf16": ("logits are rounded to BF16", "F06", "near_ties"),
    "logits_bf16_real_scale": ("logits are rounded to BF16", "F06", "real_scale"),
    "logits_fp16": ("logits are rounded to FP16", "F06", "near_ties"),
    "scores_bf16": ("scores are rounded to BF16 before the choice", "F06", "near_ties"),
    "scores_fp16": ("scores are rounded to FP16 before the choice", "F06", "typical"),
    "sum_bf16": ("the sum of the 16 scores is rounded to BF16", "F06", "typical"),
    "weights_truncated": ("weights are stored by truncation", "F06", "typical"),
    "key_starts_at_zero": ("keys below 0 are taken as 0", "F14", "negative_keys"),
    "key_starts_at_minus_one": ("keys below -1 are taken as -1", "F14", "negative_keys"),
    "nan_first": ("NaN keys are the largest", "F14", "nan"),
    "nan_is_zero_key": ("a NaN key counts as 0", "F14", "nan"),
    "pad_lanes_zero": ("lanes beyond the experts hold key 0 and wrap to low ids", "F04", "negative_keys"),
    "last_experts_not_read": ("the last 32 experts are not read", "F04", "typical"),
    "scale_lost": ("the routed scaling factor is left out", "F15", "typical"),
    "scale_twice": ("the routed scaling factor is applied twice", "F15", "typical"),
    "scale_before_sum": ("the sum is taken over scaled scores: the factor cancels", "F15", "typical"),
    "not_renormalised": ("weights = s * scale", "F15", "typical"),
    "sum_of_keys": ("divided by the sum of the keys", "F15", "typical"),
    "tiny_missing": ("no 1e-20 in the divisor", "F15", "tiny_scores"),
    "tiny_missing_underflow": ("no 1e-20 in the divisor: 0 / 0", "F15", "underflow"),
    "tiny_is_1e-6": ("1e-6 for 1e-20 in the divisor", "F15", "tiny_scores"),
    "sum_of_fifteen": ("the last of the 16 is not in the sum", "F05", "typical"),
    "last_row_not_renormalised": ("the last row is not divided", "F05", "typical"),
    "seventeenth_for_sixteenth": ("the 17th expert in the 16th place", "F05", "typical"),
    "candidates_cut_at_64": ("of more than 64 candidates the first 64 are lost", "F17", "many_ties"),
    "ties_to_higher": ("of equal keys the higher id wins", "F17", "equal"),
    "ties_to_higher_at_cut": ("of equal keys the higher id wins", "F17", "near_ties"),
    "ties_descend": ("equal keys in the right set stand by descending id", "F17", "many_ties"),
    "ascending": ("the 16 stand by ascending key", "F17", "typical"),
    "weights_of_sorted_ids": ("weights stand in the order of the ids, not of the keys", "F16", "typical"),
    "id_twice": ("the first expert stands in the second place too", "F16", "typical"),
    "id_of_no_expert": ("the last id is E", "F16", "typical"),
    "softmax_for_sigmoid": ("scores are a softmax", "F02", "typical"),
    "exp2_for_exp": ("sigmoid in base 2", "F02", "typical"),
    "half_sigmoid": ("sigmoid of half the logit", "F02", "typical"),
    "sigmoid_overflow": ("sigmoid as exp(x) / (1 + exp(x)): NaN for large logits", "F03", "infinite"),
    "rows_swapped": ("rows rotated by one", "F16", "typical"),
    "last_slot_stale": ("the last weight of every row is not written", "F08", "typical"),
    "nan_spreads": ("the sum of a row takes the NaN of the row after it", "F51", "nan"),
    "padding_reaches_row": ("the row before a padding row takes its ids", "F45", "padding"),
    "wrapped_row_offset": ("row offsets wrap at 2**31: row 2 reads row 0", "F50", "wide_offsets"),
}  # fmt: skip
# The same for one token at 8 ranks, whose sigmoid is approximate.
SMALL_BATCH_FAULTS = {
    "half_argument_lost": ("tanh of the logit, not of half of it", "F02"),
    "scores_e4m3": ("scores are rounded to E4M3", "F06"),
}


def faults() -> Iterator[Fault]:
    for name, (what, kind, regime) in FAULTS.items():
        case = Case.of("route", regime, 7, rows=5, experts=896, percent=250)
        yield _fault(name, what, kind, case, "specialized")
    case = Case.of("route", "typical", 7, rows=1, experts=896, percent=250)
    for name, (what, kind) in SMALL_BATCH_FAULTS.items():
        yield _fault(name, what, kind, case, "specialized_b1")


def _fault(name: str, what: str, kind: str, case: Case, profile: str) -> Fault:
    return Fault(name, what, case, profile, partial(run, order=LIBRARY, fault=name, profile=profile), kind)


def run(a: RouteArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """Fill ids and weights, wrong in the way ``fault`` says."""
    logits, bias = _inputs(a, fault)
    scores = _tanh_sigmoid(logits, fault) if profile == "specialized_b1" else _sigmoid(logits, fault)
    keys = _keys(logits, scores, bias, fault)
    ids = _chosen(keys, a.top, fault)
    if profile == "stock":
        ids = ids.sort(-1).values
    weights = _weights(a, scores, keys, ids, order, fault, profile)
    _store(a, ids, weights, fault)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _inputs(a: RouteArguments, fault: str) -> tuple[Tensor, Tensor]:
    logits, bias = a.logits.clone(), a.bias.clone()
    if fault.startswith("logits_bf16"):
        logits = _bf16(logits)
    if fault == "logits_fp16":
        logits = logits.half().float()
    if fault == "bias_bf16":
        bias = _bf16(bias)
    if fault == "last_experts_not_read":
        logits[:, -32:] = float("nan")
    if fault == "wrapped_row_offset":
        logits[2] = logits[0]
    return logits, bias


def _sigmoid(x: Tensor, fault: str) -> Tensor:
    if fault == "softmax_for_sigmoid":
        return torch.softmax(x, -1)
    if fault == "exp2_for_exp":
        return 1 / (1 + torch.exp2(-x))
    if fault == "half_sigmoid":
        x = x / 2
    if fault == "sigmoid_overflow":
        return torch.exp(x) / (1 + torch.exp(x))
    scores = 1 / (1 + torch.exp(-x))
    if fault == "scores_bf16":
        return _bf16(scores)
    return scores.half().float() if fault == "scores_fp16" else scores


def _tanh_sigmoid(x: Tensor, fault: str) -> Tensor:
    """tanh to eleven bits, as close as the device's approximation; 0 for NaN, as its kernel makes it."""
    if fault == "half_argument_lost":
        x = 2 * x
    scores = torch.tanh(x / 2).half().float() / 2 + 0.5
    scores = torch.where(torch.isnan(x), 0.0, scores)
    return scores.to(torch.float8_e4m3fn).float() if fault == "scores_e4m3" else scores


def _keys(logits: Tensor, scores: Tensor, bias: Tensor, fault: str) -> Tensor:
    if fault == "bias_ignored":
        keys = scores
    elif fault == "bias_twice":
        keys = scores + bias + bias
    elif fault == "bias_times_score":
        keys = scores * (1 + bias)
    elif fault == "bias_before_sigmoid":
        keys = 1 / (1 + torch.exp(-(logits + bias)))
    else:
        keys = scores + bias
    lowest = {"nan_first": float("inf"), "nan_is_zero_key": 0.0}.get(fault, float("-inf"))
    keys = torch.where(torch.isnan(logits), lowest, keys)
    if fault == "key_starts_at_zero":
        return keys.clamp(min=0)
    if fault == "key_starts_at_minus_one":
        return keys.clamp(min=-1)
    return keys


def _chosen(keys: Tensor, top: int, fault: str) -> Tensor:
    """Ids of the largest keys by descending key, equal keys by ascending id."""
    experts = keys.shape[1]
    if fault == "pad_lanes_zero":
        keys = torch.cat([keys, torch.zeros_like(keys[:, : 1024 - experts])], 1)
    if fault == "candidates_cut_at_64":
        tied = keys == keys.sort(-1, descending=True).values[:, top - 1 : top]
        lost = tied & (tied.cumsum(-1) <= 64) & (tied.sum(-1, keepdim=True) > 64)
        keys = torch.where(lost, float("-inf"), keys)
    if fault.startswith("ties_to_higher"):
        flipped = keys.flip(-1).sort(dim=-1, descending=True, stable=True).indices
        return (experts - 1 - flipped)[:, :top]
    order = keys.sort(dim=-1, descending=True, stable=True).indices % experts
    ids = order[:, :top].clone()
    if fault == "seventeenth_for_sixteenth":
        ids[:, -1] = order[:, top]
    if fault == "ties_descend":
        ids[:, 10:] = ids[:, 10:].flip(-1)
    if fault == "ascending":
        ids = ids.flip(-1)
    if fault == "padding_reaches_row":
        ids[-2] = ids[-1]
    return ids


def _weights(
    a: RouteArguments, scores: Tensor, keys: Tensor, ids: Tensor, order: Order, fault: str, profile: str
) -> Tensor:
    """FP32 [row, slot]"""
    picked = (keys if fault == "key_in_weights" else scores).gather(-1, ids)
    scale = {"scale_lost": 1.0, "scale_twice": a.scale * a.scale}.get(fault, a.scale)
    if not a.renormalise or fault == "not_renormalised":
        return picked * scale
    total = _total(a, picked, keys.gather(-1, ids), order, fault)[:, None]
    if fault == "last_row_not_renormalised":
        total[-1] = 1
    return picked / total * scale if profile == "stock" else picked * scale / total


def _total(a: RouteArguments, picked: Tensor, keys: Tensor, order: Order, fault: str) -> Tensor:
    """The divisor. [row]"""
    terms = {
        "sum_of_keys": keys,
        "sum_of_fifteen": picked[:, :-1],
        "scale_before_sum": picked * a.scale,
    }.get(fault, picked)
    total = order.sum(terms, -1)
    if fault == "sum_bf16":
        total = _bf16(total)
    if fault == "nan_spreads":
        total = total + total.roll(-1) * 0
    if fault.startswith("tiny_missing"):
        return total
    return total + (1e-6 if fault == "tiny_is_1e-6" else 1e-20)


def _store(a: RouteArguments, ids: Tensor, weights: Tensor, fault: str) -> None:
    stored = weights.bfloat16()
    if fault == "weights_truncated":
        stored = (weights.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()
    if fault == "weights_of_sorted_ids":
        stored = stored.gather(-1, ids.argsort(-1))
    if fault == "id_twice":
        ids = torch.cat([ids[:, :1], ids[:, :1], ids[:, 2:]], 1)
    if fault == "id_of_no_expert":
        ids = torch.cat([ids[:, :-1], torch.full_like(ids[:, :1], a.logits.shape[1])], 1)
    if fault == "rows_swapped":
        ids, stored = ids.roll(1, 0), stored.roll(1, 0)
    a.ids.copy_(ids)
    if fault == "last_slot_stale":
        a.weights[:, :-1] = stored[:, :-1]
    else:
        a.weights.copy_(stored)
