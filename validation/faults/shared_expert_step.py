"""The shared experts in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel in the given summation order. Each rank goes
through ``_operands`` (what is loaded), ``_gate_up``, ``_activation`` and ``_down``; ``_rank_sum`` and
``_stored`` do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

if TYPE_CHECKING:
    from validation.contracts.moe.shared import SharedExpertArguments

# Fault -> (what is wrong, kind, regime of the case in which it must be seen).
FAULTS = {
    "gate_up_swapped": ("the activation is applied to the wrong half", "F02", "typical"),
    "gate_up_interleaved": ("gate and up rows taken as interleaved", "F21", "one_hot"),
    "silu_for_situ": ("SiLU(g) * u instead of SiTU", "F02", "typical"),
    "no_gate_beta": ("gate branch without its beta: g * sigmoid(g)", "F02", "typical"),
    "no_linear_limit": ("up branch without its limit", "F02", "saturated"),
    "linear_beta_24": ("up branch limited at 24 instead of 25", "F12", "typical"),
    "sigmoid_of_beta": ("sigmoid(g / beta) instead of sigmoid(g)", "F02", "typical"),
    "exponential_overflows": ("sigmoid as exp(g) / (1 + exp(g))", "F03", "saturated"),
    "half_precision_tanh": ("tanh(u / 25) in BF16", "F06", "typical"),
    "gate_not_rounded": ("SiTU of the FP32 sums, not of BF16 gate and up", "F12", "typical"),
    "hidden_not_rounded": ("the hidden activation stays in FP32", "F12", "typical"),
    "hidden_e4m3": ("the hidden activation in FP8", "F06", "typical"),
    "partial_not_rounded": ("partials summed over ranks before their rounding", "F12", "cancelling"),
    "ranks_in_bf16": ("the sum over ranks rounds to BF16 at every rank", "F06", "typical"),
    "rank_left_out": ("the last rank is not added", "F08", "typical"),
    "rank_twice": ("rank 0 is added twice", "F15", "cancelling"),
    "other_ranks_down": ("one rank's down shard is its neighbour's", "F01", "typical"),
    "down_transposed_tile": ("a tile of 16 x 16 of one down shard is transposed", "F01", "typical"),
    "k_tail_lost": ("the last 8 of the hidden size are not added", "F04", "typical"),
    "channel_tail_twice": ("the last 8 channels of a shard are added twice", "F04", "typical"),
    "k_tile_shifted": ("activations of the last K tile are off by one", "F24", "one_hot"),
    "split_in_bf16": ("one split of gate and up is rounded to BF16 before it is added", "F06", "outliers"),
    "stale_fragment": ("8 columns of one sent row keep the old value", "F08", "typical"),
    "pitch_ignored": ("the second row of h is read at the first row's dense end", "F45", "typical"),
    "last_row_from_first": (
        "the last of an odd number of rows gets the first row's hidden",
        "F05",
        "typical",
    ),
    "rows_paired": ("two rows of a pair exchange their partials", "F16", "typical"),
    "writes_past_row": ("8 columns beyond the last row's end are written", "F09", "typical"),
    "flushed_early": ("hidden activations below 1e-8 become 0", "F20", "small"),
    "minus_zero_unfilled": ("a -0.0 activation row takes the row before it", "F36", "negative_zero"),
    "nan_spreads": ("a row's NaN reaches the next row", "F51", "nan_row"),
    "nan_ignored": ("NaN becomes 0 in the activation", "F51", "nan_row"),
    "offset_32_bit": ("the third rank's offset wraps at 2**31", "F50", "wide_offsets"),
    "dispatch_other_width": ("channels of a shard counted for twice the ranks", "F53", "typical"),
    "large_batch_form": ("the larger batch's path skips the rounding of gate and up", "F31", "typical"),
}


def run(a: SharedExpertArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """Partials of all ranks and their sum, in place, wrong in the way ``fault`` says."""
    sums = []
    for rank in range(a.gate_up.shape[0]):
        h, gate_up, down = _operands(a, rank, fault)
        gate, up = _gate_up(h, gate_up, a.width, order, fault)
        hidden = _activation(a, gate, up, fault)
        sums.append(_down(hidden, down, order, fault))
    exact = torch.stack(sums)
    sent = _sent(exact, fault)
    a.partial.copy_(sent)
    summed = exact if fault == "partial_not_rounded" else sent.float()
    # Both profiles round at the same places; only stock leaves the order of the ranks open.
    a.out.copy_((order.sum(summed, 0) if profile == "stock" else _rank_sum(summed, fault)) + 0.0)
    if fault == "writes_past_row":
        last = a.partial[-1, -1]
        last.as_strided((8,), (1,), last.storage_offset() + last.shape[0]).zero_()


def _operands(a: SharedExpertArguments, rank: int, fault: str) -> tuple[Tensor, Tensor, Tensor]:
    h, width = a.h.float(), a.width
    source = rank % 2 if fault == "offset_32_bit" else rank
    gate_up, down = a.gate_up[source].float(), a.down[rank].float()
    if fault == "gate_up_swapped":
        gate_up = gate_up.roll(width, 0)
    if fault == "gate_up_interleaved":
        gate_up = torch.cat([gate_up[0::2], gate_up[1::2]])
    if fault == "other_ranks_down" and rank == 1:
        down = a.down[0].float()
    if fault == "down_transposed_tile" and rank == 1:
        down[:16, :16] = down[:16, :16].T.clone()
    if fault == "k_tail_lost":
        h[:, -8:] = 0
    if fault == "k_tile_shifted":
        h[:, -64:] = h[:, -64:].roll(1, -1)
    if fault == "pitch_ignored":
        h[1] = h.flatten()[h.shape[1] - 8 : 2 * h.shape[1] - 8].clone()
    if fault == "minus_zero_unfilled":
        unfilled = ((a.h == 0) & torch.signbit(a.h)).any(-1)
        h[unfilled] = h.roll(1, 0)[unfilled]
    return h, gate_up, down


def _gate_up(h: Tensor, gate_up: Tensor, width: int, order: Order, fault: str) -> tuple[Tensor, Tensor]:
    both = order.matmul(h, gate_up)
    if fault == "split_in_bf16":
        half = h.shape[-1] // 2
        both = (h[:, :half] @ gate_up[:, :half].T).bfloat16() + h[:, half:] @ gate_up[:, half:].T
    if fault == "gate_not_rounded" or (fault == "large_batch_form" and h.shape[0] > 2):
        return both[:, :width], both[:, width:]
    both = both.bfloat16().float()
    return both[:, :width], both[:, width:]


def _activation(a: SharedExpertArguments, gate: Tensor, up: Tensor, fault: str) -> Tensor:
    hidden = _gate_branch(gate, a.beta, fault) * _up_branch(up, a.linear_beta, fault)
    if fault == "nan_ignored":
        hidden = hidden.nan_to_num(0.0)
    if fault == "flushed_early":
        hidden = torch.where(hidden.abs() < 1e-8, 0.0, hidden)
    if fault == "last_row_from_first" and hidden.shape[0] % 2:
        hidden[-1] = hidden[0]
    if fault == "hidden_e4m3":
        return hidden.to(torch.float8_e4m3fn).float()
    if fault == "dispatch_other_width":
        hidden[:, a.width // 2 :] = 0
    return hidden if fault == "hidden_not_rounded" else hidden.bfloat16().float()


def _gate_branch(gate: Tensor, beta: float, fault: str) -> Tensor:
    sigmoid = 1 / (1 + torch.exp(-gate))
    if fault == "exponential_overflows":
        sigmoid = torch.exp(gate) / (1 + torch.exp(gate))
    if fault == "sigmoid_of_beta":
        sigmoid = 1 / (1 + torch.exp(-gate / beta))
    if fault in ("silu_for_situ", "no_gate_beta"):
        return gate * sigmoid
    return beta * torch.tanh(gate / beta) * sigmoid


def _up_branch(up: Tensor, limit: float, fault: str) -> Tensor:
    if fault in ("silu_for_situ", "no_linear_limit"):
        return up
    if fault == "linear_beta_24":
        limit = 24.0
    bounded = torch.tanh(up / limit)
    return limit * (bounded.bfloat16().float() if fault == "half_precision_tanh" else bounded)


def _down(hidden: Tensor, down: Tensor, order: Order, fault: str) -> Tensor:
    total = order.matmul(hidden, down)
    if fault == "channel_tail_twice":
        total = total + hidden[:, -8:] @ down[:, -8:].T
    if fault == "rows_paired":
        total[:2] = total[:2].flip(0)
    if fault == "nan_spreads":
        bad = total.isnan().any(-1).roll(1, 0)
        total[bad] = float("nan")
    return total


def _sent(exact: Tensor, fault: str) -> Tensor:
    sent = (exact.bfloat16() + 0.0).clone()
    if fault == "stale_fragment":
        sent[1, 0, 8:16] = sent[0, 0, 8:16]
    return sent


def _rank_sum(sent: Tensor, fault: str) -> Tensor:
    """FP32, in rank order, as the subject does."""
    parts = list(sent.unbind(0))
    if fault == "rank_left_out":
        parts = parts[:-1]
    if fault == "rank_twice":
        parts.append(parts[0])
    total = parts[0]
    for part in parts[1:]:
        total = total + part
        if fault == "ranks_in_bf16":
            total = total.bfloat16().float()
    return total


def faults() -> Iterator[Fault]:
    """Each fault at small shards of eight ranks (three where offsets are wide), five rows."""
    for name, (what, kind, regime) in FAULTS.items():
        ranks = 3 if regime == "wide_offsets" else 8
        case = Case.of("shared_expert", regime, 7, ranks=ranks, rows=5, hidden=256, width=48)
        function = partial(run, order=LIBRARY, fault=name, profile="specialized")
        yield Fault(name, what, case, "specialized", function, kind)
