"""A MoE layer for one or two rows in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` runs the honest steps of the stages one after the other. A fault of
``WIRING`` connects them wrongly; a fault of ``STAGES`` is one of a stage's own, seen through the chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.moe import small_batch as stages
from validation.contracts.moe.quantize import MxQuantizeArguments
from validation.faults import (
    experts_step,
    moe_front_step,
    moe_tail_step,
    mx_quantize_step,
    route_step,
    shared_expert_step,
)
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

if TYPE_CHECKING:
    from validation.contracts.moe.small_batch import SmallBatchArguments

# Fault -> (what is wrong, kind, regime of the case in which it must be seen).
WIRING = {
    "ids_of_first_row": ("the second row goes to the first row's experts", "F16", "typical"),
    "ids_of_first_row_close": ("the second row goes to the first row's experts", "F16", "same_experts"),
    "ids_sorted": ("experts take ids in ascending order, weights in the order of the keys", "F16", "typical"),
    "weights_rotated": ("weights are one slot off", "F16", "typical"),
    "weights_of_first_row": (
        "the second row is combined with the first row's weights",
        "F16",
        "same_experts",
    ),
    "latent_rows_swapped": ("experts read the other row's latent", "F16", "typical"),
    "latent_floor_rule": ("the latent is quantised by the rule of the hidden", "F20", "typical"),
    "latent_scales_shifted": ("the latent's scales are one block off", "F20", "outliers"),
    "latent_shard_stale": ("experts read the last rank's latent before it arrived: zeros", "F08", "typical"),
    "rank_gets_others_partial": ("ranks 0 and 1 send each other's routed partial", "F01", "typical"),
    "other_ranks_gate": ("one rank's shared experts use its neighbour's gate and up", "F01", "typical"),
    "shared_added_on_one_rank": ("the tail adds one rank's shared partial alone", "F08", "typical"),
    "routed_twice": ("the tail adds one rank's routed partial twice", "F15", "typical"),
    "tail_of_first_row": ("the second row's norm is taken of the first row", "F24", "typical"),
    "second_row_skipped": ("dispatched for one row: the second keeps what was there", "F53", "typical"),
    "nan_row_reaches_first": ("the first row's latent takes the NaN of the second", "F51", "nan_row"),
}
# Fault -> (what is wrong, kind, regime, stage, the stage's own name of it).
STAGES = {
    "logits_bf16": ("router logits pass through BF16", "F06", "typical", "front", "bf16_logits"),
    "k_fragment_lost": ("the last 8 of K are lost", "F04", "typical", "front", "last_k_fragment_lost"),
    "router_swizzled": ("K swizzled in the weights", "F21", "typical", "front", "k_swizzled"),
    "bias_in_weights": ("weights of s + bias", "F13", "typical", "route", "key_in_weights"),
    "bias_ignored": ("largest scores, not keys", "F13", "typical", "route", "bias_ignored"),
    "scale_lost": ("without the routed scaling factor", "F15", "typical", "route", "scale_lost"),
    "ties_to_higher": ("ties to the higher id", "F17", "equal", "route", "ties_to_higher"),
    "id_twice": ("one expert twice", "F16", "typical", "route", "id_twice"),
    "gate_up_swapped": (
        "gate and up of the experts exchanged",
        "F01",
        "typical",
        "experts",
        "gate_up_swapped",
    ),
    "experts_silu": ("SiLU in the experts", "F12", "typical", "experts", "silu"),
    "hidden_other_rule": ("the hidden by the other scale rule", "F20", "typical", "experts", "other_rule"),
    "combine_bf16": ("slots added in BF16", "F06", "typical", "experts", "combine_bf16"),
    "nibbles_swapped": ("high nibble first", "F21", "typical", "experts", "nibbles_swapped"),
    "shared_not_rounded": ("shared gate and up in FP32", "F31", "typical", "shared", "gate_not_rounded"),
    "shared_k_tail": ("the shared experts lose the last 8 of K", "F04", "typical", "shared", "k_tail_lost"),
    "shared_sigmoid": (
        "sigmoid(g / beta) in the shared experts",
        "F12",
        "typical",
        "shared",
        "sigmoid_of_beta",
    ),
    "tail_no_eps": ("no eps in the latent norm", "F12", "equal", "tail", "eps_missing"),
    "tail_gamma_plus_one": ("gamma as 1 + w", "F12", "typical", "tail", "gamma_plus_one"),
    "tail_slice_lost": ("a K slice of the up-projection lost", "F05", "typical", "tail", "slice_lost"),
    "tail_up_not_rounded": ("the up-projection is not rounded", "F12", "typical", "tail", "up_not_rounded"),
    "tail_other_ranks_up": ("one rank's W_up is its neighbour's", "F01", "typical", "tail", "other_ranks_up"),
}


def run(a: SmallBatchArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """The chain, in place, wrong in the way ``fault`` says."""
    stage, inner = STAGES[fault][3:] if fault in STAGES else ("", "")

    def of(name: str) -> str:
        return inner if name == stage else ""

    moe_front_step.run(stages.front_arguments(a), order, of("front"), profile)
    route_step.run(stages.route_arguments(a, a.logits), order, of("route"), profile)
    x = _quantised(a, order, fault, profile)
    ids, weights = _routing(a, fault)
    for rank in range(a.ranks):
        one = stages.experts_arguments(a, rank, x, ids, weights)
        experts_step.run(one, order, of("experts"), profile)
    both = stages.shared_arguments(a)
    if fault == "other_ranks_gate":
        both.gate_up = torch.cat([both.gate_up[:1], both.gate_up[:1], both.gate_up[2:]])
    shared_expert_step.run(both, order, of("shared"), profile)
    _tail(a, order, fault, of("tail"), profile)


def _quantised(a: SmallBatchArguments, order: Order, fault: str, profile: str) -> tuple[Tensor, Tensor]:
    latent = a.latent.clone()
    if fault == "latent_rows_swapped":
        latent = latent.flip(0)
    if fault == "latent_shard_stale":
        latent[:, -(latent.shape[1] // a.ranks) :] = 0
    if fault == "nan_row_reaches_first":
        latent[0] = latent[0] + 0 * latent[1]
    rows, width = latent.shape
    codes = torch.zeros(rows, width, dtype=torch.uint8, device=latent.device)
    scales = torch.zeros(rows, width // 32, dtype=torch.uint8, device=latent.device)
    rule = "floor" if fault == "latent_floor_rule" else "no_saturation"
    mx_quantize_step.run(MxQuantizeArguments(latent, codes, scales, rule), order, "", profile)  # type: ignore[arg-type]
    return codes, scales.roll(1, -1) if fault == "latent_scales_shifted" else scales


def _routing(a: SmallBatchArguments, fault: str) -> tuple[Tensor, Tensor]:
    """ids and weights as the experts take them."""
    ids, weights = a.ids.clone(), a.weights.clone()
    if fault.startswith("ids_of_first_row"):
        ids[1] = ids[0]
    if fault == "ids_sorted":
        ids = ids.sort(-1).values
    if fault == "weights_rotated":
        weights = weights.roll(1, -1)
    if fault == "weights_of_first_row":
        weights[1] = weights[0]
    return ids, weights


def _tail(a: SmallBatchArguments, order: Order, fault: str, inner: str, profile: str) -> None:
    if fault == "rank_gets_others_partial":
        a.routed[:2] = a.routed[:2].flip(0)
    routed, sent = a.routed, a.shared
    if fault == "shared_added_on_one_rank":
        sent = torch.cat([sent[:1], torch.zeros_like(sent[1:])])
    if fault == "routed_twice":
        routed = torch.cat([routed, routed[:1]])
    if fault == "tail_of_first_row":
        routed = routed[:, [0, 0]]
    last = a.out[1:].clone()
    moe_tail_step.run(stages.tail_arguments(a, routed, sent), order, inner, profile)
    if fault == "second_row_skipped":
        a.out[1:] = last


def faults() -> Iterator[Fault]:
    """Each fault with two rows at two ranks, small widths."""
    shape = {"rows": 2, "ranks": 2, "hidden": 256, "latent": 256, "experts": 12, "slots": 6}
    shape |= {"live": 64, "padded": 64, "width": 48}
    every = WIRING | {name: entry[:3] for name, entry in STAGES.items()}
    for name, (what, kind, regime) in every.items():
        case = Case.of("small_batch", regime, 7, **shape)
        function = partial(run, order=LIBRARY, fault=name, profile="specialized")
        yield Fault(name, what, case, "specialized", function, kind)
