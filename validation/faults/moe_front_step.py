"""The front of a MoE layer in plain FP32 torch, rank by rank, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel in the given summation order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.moe.front import MoeFrontArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

# Fault -> (what is wrong, kind, regime of its case).
FAULTS = {
    "bf16_logits": ("router logits stored in BF16 on the way", "F06", "outliers"),
    "bf16_logits_cancelling": ("router logits stored in BF16 on the way", "F06", "cancelling"),
    "fp16_logits": ("router logits stored in FP16 on the way", "F06", "typical"),
    "tf32_logits": ("router operands multiplied, sums cut to TF32's ten bits", "F06", "typical"),
    "bf16_accumulate_1024": ("accumulators rounded to BF16 every 1,024 of K", "F06", "typical"),
    "bf16_splits": ("split-K partials of the latent stored in BF16", "F06", "typical"),
    "last_k_fragment_lost": ("the last 8 of K are not added", "F04", "typical"),
    "k_tail_from_pad": ("the K tail reads beyond the row: the pitch's poison counts as 1", "F04", "typical"),
    "split_twice": ("one quarter of K is added twice", "F05", "typical"),
    "last_row_of_tile": ("the last row takes the sum without its last quarter of K", "F05", "typical"),
    "last_expert_lost": ("the last expert of every rank is never written", "F08", "typical"),
    "latent_tail_stale": ("the last 3 latent columns of the last rank are never written", "F08", "typical"),
    "ranks_swapped": ("the shards of ranks 2 and 3 stand in each other's place", "F16", "one_hot"),
    "rank_repeated": ("rank 1's logits stand in rank 2's place too", "F16", "typical"),
    "rank_missing": ("the last rank's latent is zero", "F16", "typical"),
    "interleaved_experts": ("expert e of rank r is placed at e * T + r", "F21", "one_hot"),
    "interleaved_latent": ("latent columns in pairs taken from two ranks in turn", "F21", "one_hot"),
    "pad_rows_published": ("latent columns moved by one pad row", "F21", "one_hot"),
    "k_swizzled": ("two groups of 8 of K swapped in the weights", "F21", "typical"),
    "weight_transposed": ("the square corner of one shard is read transposed", "F01", "typical"),
    "columns_shifted": ("latent columns shifted by one within a rank", "F01", "one_hot"),
    "rows_swapped": ("rows rotated by one", "F01", "one_hot"),
    "negative_zero_latent": ("latent zeros are published with their sign", "F36", "negative_zero"),
    "negative_zero_logits": ("logit zeros are published with their sign", "F36", "negative_zero"),
    "nan_leaks": ("the padding row's NaN times 0 is added to the row before it", "F51", "nan_row"),
    "padding_written_as_zero": ("a row that is not finite is replaced by zeros", "F45", "nan_row"),
    "wrapped_rank_offset": ("offsets wrap at 2**31: rank 2 reads rank 0", "F50", "wide_offsets"),
}  # fmt: skip


def faults() -> Iterator[Fault]:
    for name, (what, kind, regime) in FAULTS.items():
        ranks = 3 if regime == "wide_offsets" else 8
        shape = {"rows": 4, "ranks": ranks, "experts": 14, "latent": 56, "k": 2048}
        case = Case.of("moe_front", regime, 7, **shape)
        yield Fault(name, what, case, "specialized", partial(run, order=LIBRARY, fault=name), kind)


def run(a: MoeFrontArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """Fill logits and latent, wrong in the way ``fault`` says. Both profiles round alike."""
    logits = torch.stack(
        [_product(a.h, weight, order, fault, "router") for weight in _shards(a.router, fault)]
    )
    latent = torch.stack([_product(a.h, weight, order, fault, "down") for weight in _shards(a.down, fault)])
    logits, latent = _stored_logits(logits, fault), latent.bfloat16()
    logits, latent = _published(a, logits, fault, "logits"), _published(a, latent, fault, "latent")
    _store(a.logits, _placed(logits, fault, "logits"), a.router.shape[1], fault, "logits")
    _store(a.latent, _placed(latent, fault, "latent"), a.down.shape[1], fault, "latent")


def _shards(weight: Tensor, fault: str) -> list[Tensor]:
    shards = [part.float() for part in weight]
    if fault == "k_swizzled":
        shards = [torch.cat([w[:, 8:16], w[:, :8], w[:, 16:]], 1) for w in shards]
    if fault == "weight_transposed":
        n = len(shards[1])
        shards[1] = torch.cat([shards[1][:, :n].T, shards[1][:, n:]], 1)
    if fault == "wrapped_rank_offset":
        shards[2] = shards[0]
    return shards


def _product(h: Tensor, weight: Tensor, order: Order, fault: str, which: str) -> Tensor:
    """h W^T of one rank in FP32."""
    x = h.float()
    quarters = list(zip(x.tensor_split(4, -1), weight.tensor_split(4, -1), strict=True))
    if fault == "bf16_accumulate_1024":
        total = torch.zeros(len(x), len(weight), device=x.device)
        for part_x, part_w in zip(x.split(1024, -1), weight.split(1024, -1), strict=True):
            total = (total + part_x @ part_w.T).bfloat16().float()
        return total
    if fault == "bf16_splits" and which == "down":
        return torch.stack([(p @ w.T).bfloat16().float() for p, w in quarters]).sum(0)
    if fault == "last_k_fragment_lost":
        return order.matmul(x[:, :-8], weight[:, :-8])
    total = order.matmul(x, weight)
    if fault == "k_tail_from_pad":
        total = total + x[:, -1:] * weight[:, -1].roll(1)
    if fault == "split_twice":
        total = total + quarters[1][0] @ quarters[1][1].T
    if fault == "last_row_of_tile":
        total[-1] -= quarters[3][0][-1] @ quarters[3][1].T
    if fault == "nan_leaks":
        total[-2] += total[-1] * 0
    if fault == "padding_written_as_zero":
        total = torch.where(x.isfinite().all(1, keepdim=True), total, 0.0)
    return total


def _stored_logits(logits: Tensor, fault: str) -> Tensor:
    if fault.startswith("bf16_logits"):
        return logits.bfloat16().float()
    if fault == "fp16_logits":
        return logits.half().float()
    if fault == "tf32_logits":
        return (logits.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return logits


def _published(a: MoeFrontArguments, values: Tensor, fault: str, which: str) -> Tensor:
    """Zeros as +0; or as a chain leaves them that starts from its first product."""
    values = torch.where(values == 0, torch.zeros_like(values), values)
    if fault != f"negative_zero_{which}":
        return values
    weight = a.router if which == "logits" else a.down
    products = torch.signbit(a.h.float()[None, :, None] * weight.float()[:, None])
    return torch.where((values == 0) & products.all(-1), -torch.zeros_like(values), values)


def _placed(values: Tensor, fault: str, which: str) -> Tensor:
    """[rank, row, column] of all ranks as they lie in the gathered output [row, rank * column]."""
    if fault == "ranks_swapped":
        values = torch.cat([values[:2], values[3:4], values[2:3], values[4:]])
    if fault == "rank_repeated" and which == "logits":
        values = torch.cat([values[:2], values[1:2], values[3:]])
    if fault == "rank_missing" and which == "latent":
        values = torch.cat([values[:-1], torch.zeros_like(values[-1:])])
    if fault == "pad_rows_published" and which == "latent":
        values = torch.cat([torch.zeros_like(values[..., :1]), values[..., :-1]], -1)
    if fault == "columns_shifted" and which == "latent":
        values = values.roll(1, -1)
    if fault == "rows_swapped":
        values = values.roll(1, 1)
    if fault == "interleaved_experts" and which == "logits":
        return values.permute(1, 2, 0).flatten(1)
    if fault == "interleaved_latent" and which == "latent":
        pairs = values.reshape(len(values) // 2, 2, values.shape[1], -1, 2).permute(2, 0, 3, 1, 4)
        return pairs.flatten(1)
    return values.permute(1, 0, 2).flatten(1)


def _store(out: Tensor, values: Tensor, width: int, fault: str, which: str) -> None:
    if fault == "last_expert_lost" and which == "logits":
        for start in range(0, out.shape[1], width):
            out[:, start : start + width - 1] = values[:, start : start + width - 1]
    elif fault == "latent_tail_stale" and which == "latent":
        out[:, :-3] = values[:, :-3]
    else:
        out.copy_(values)
