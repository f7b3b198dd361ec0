"""The input projection in plain FP32 torch, with one switch for every planted fault.

``run(a, order, fault)`` with ``fault=""`` is an honest kernel in the given summation order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.arguments import ProjectionArguments
from validation.faults.orders import Order

FAULTS = {
    "bf16_accumulate_512": "accumulator rounded to BF16 every 512 of K",
    "bf16_accumulate_2048": "accumulator rounded to BF16 every 2,048 of K",
    "bf16_partials": "split-K partials stored in BF16",
    "fp16_partials": "split-K partials stored in FP16",
    "last_k_tile_lost": "the last 64 of K are not added",
    "last_k_fragment_lost": "the last 8 of K are not added",
    "first_k_lost": "the first element of K is not added",
    "split_twice": "one split of K is added twice",
    "split_lost": "one split of K is not added",
    "split_of_other_row": "one split's partial comes from the row before",
    "tail_twice": "the K tail overlaps the tile before it by 8",
    "k_swizzled": "two groups of 8 of K swapped in the weight only",
    "stale_fragment": "8 columns of one row keep the old output",
    "last_column_tile_lost": "the last 8 columns are zero",
    "columns_shifted": "columns shifted by one",
    "column_tiles_swapped": "two tiles of 32 columns swapped",
    "rows_swapped": "rows rotated by one",
    "row_zero_repeated": "every row is row 0",
    "truncated": "stored by truncation instead of rounding to nearest",
    "rounded_twice": "rounded through FP16 before BF16",
    "rounded_to_e4m3": "activations in FP8 E4M3",
    "scale_1.001": "result scaled by 1.001",
    "one_weight_sign": "one weight with the wrong sign",
    "bias_1e-3": "a bias of 1e-3 added",
}


def run(a: ProjectionArguments, order: Order, fault: str = "") -> None:
    """out = bf16(x W^T), in place, wrong in the way ``fault`` says."""
    x, weight = _operands(a, fault)
    accumulator = _accumulated(x, weight, order, fault)
    if fault == "scale_1.001":
        accumulator = accumulator * 1.001
    if fault == "bias_1e-3":
        accumulator = accumulator + 1e-3
    a.out.copy_(_stored(accumulator, fault))


def _operands(a: ProjectionArguments, fault: str) -> tuple[Tensor, Tensor]:
    x, weight = a.x.float(), a.weight.float()
    if fault == "rounded_to_e4m3":
        x = x.to(torch.float8_e4m3fn).float()
    if fault in ("k_swizzled", "one_weight_sign", "last_k_tile_lost", "last_k_fragment_lost", "first_k_lost"):
        weight = weight.clone()
    if fault == "k_swizzled":
        weight[:, 0:8], weight[:, 8:16] = weight[:, 8:16].clone(), weight[:, 0:8].clone()
    if fault == "one_weight_sign":
        weight[weight.shape[0] // 2, 5] *= -1
    if fault == "last_k_tile_lost":
        weight[:, -64:] = 0
    if fault == "last_k_fragment_lost":
        weight[:, -8:] = 0
    if fault == "first_k_lost":
        weight[:, 0] = 0
    return x, weight


def _accumulated(x: Tensor, weight: Tensor, order: Order, fault: str) -> Tensor:
    if fault.startswith("bf16_accumulate"):
        total = torch.zeros(x.shape[0], weight.shape[0], device=x.device)
        width = int(fault.rsplit("_", 1)[1])
        for part_x, part_w in zip(x.split(width, -1), weight.split(width, -1), strict=True):
            total = (total + part_x @ part_w.T).bfloat16().float()
        return total
    if fault in ("bf16_partials", "fp16_partials", "split_twice", "split_lost", "split_of_other_row"):
        return _split(x, weight, fault)
    total = order.matmul(x, weight)
    if fault == "tail_twice":
        total = total + x[:, -8:] @ weight[:, -8:].T
    return total


def _split(x: Tensor, weight: Tensor, fault: str) -> Tensor:
    partials = [p @ w.T for p, w in zip(x.tensor_split(4, -1), weight.tensor_split(4, -1), strict=True)]
    if fault == "bf16_partials":
        partials = [p.bfloat16().float() for p in partials]
    if fault == "fp16_partials":
        partials = [p.half().float() for p in partials]
    if fault == "split_twice":
        partials.append(partials[1])
    if fault == "split_lost":
        partials = partials[:-1]
    if fault == "split_of_other_row":
        partials[2] = partials[2].roll(1, 0)
    return torch.stack(partials).sum(0)


def _stored(accumulator: Tensor, fault: str) -> Tensor:
    if fault == "truncated":
        bits = accumulator.view(torch.int32) & ~0xFFFF
        return bits.view(torch.float32).bfloat16()
    if fault == "rounded_twice":
        return accumulator.half().bfloat16()
    out = accumulator.bfloat16()
    if fault == "stale_fragment":
        out[-1, 8:16] = out[0, 8:16] if out.shape[0] > 1 else 0
    if fault == "last_column_tile_lost":
        out[:, -8:] = 0
    if fault == "columns_shifted":
        out = out.roll(1, -1)
    if fault == "column_tiles_swapped":
        out = torch.cat([out[:, 32:64], out[:, :32], out[:, 64:]], 1)
    if fault == "rows_swapped":
        out = out.roll(1, 0)
    if fault == "row_zero_repeated":
        out = out[:1].expand_as(out)
    return out
