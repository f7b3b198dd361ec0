"""Planning a prefetch and the product after it in plain torch, with one switch for every planted fault.

``run(a, order, fault, profile)`` with ``fault=""`` is an honest controller: present in the specialised
profile, absent in the stock one. The plan is computed granule by granule, independently of the contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from validation.contracts.contract import Case
from validation.contracts.prefetch import PrefetchArguments
from validation.faults.fault import Fault
from validation.faults.orders import LIBRARY, Order

_TAILS = {"weights": 7, "longest": 8300, "unit": 4096}
# Fault -> (what is wrong, kind, regime of its case, what differs from the usual case).
FAULTS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "cap_ignored": ("the cap is ignored", "F24", "capped", {}),
    "cap_by_range": ("the cap holds for each range anew", "F24", "capped", {}),
    "cap_in_elements": ("the cap counts elements instead of bytes", "F24", "capped", {}),
    "granule_rounded_up": ("sizes are rounded up to whole granules", "F04", "tails", _TAILS),
    "cap_in_decimal": ("the cap counts decimal units (1,000 for 1,024)", "F24", "capped", {"unit": 64}),
    "cap_of_other_ranks": ("TP16 uses the caps of TP8", "F53", "capped", {"ranks": 16, "unit": 3}),
    "cap_of_batch_below": ("the cap of the next smaller batch", "F05", "capped", {"batch": 8}),
    "unused_cap_lost": (
        "ranges after the first that does not fit are dropped, spent or not",
        "F24",
        "capped",
        {},
    ),
    "after_cap": ("ranges after the cap still get a granule", "F24", "capped", {}),
    "above_batch_8": ("weights are fetched at batch 9", "F05", "capped", {"batch": 9}),
    "starts_at_batch_4": (
        "the o-projection's point starts at batch 4",
        "F05",
        "typical",
        {"point": 0, "batch": 3},
    ),
    "ends_at_batch_7": (
        "the o-projection's point ends at batch 7",
        "F05",
        "typical",
        {"point": 0, "batch": 8},
    ),
    "mla_as_kda": (
        "an MLA layer prefetches at the batches of KDA",
        "F53",
        "typical",
        {"point": 1, "batch": 6, "mla": 1},
    ),
    "ranks_ignored": (
        "TP16 has the point that only TP8 has",
        "F53",
        "typical",
        {"point": 1, "batch": 6, "ranks": 16},
    ),
    "order_of_memory": ("ranges taken in the order of memory", "F16", "capped", {}),
    "tail_fetched": ("sizes not cut to whole granules", "F04", "tails", _TAILS),
    "chunk_tail_lost": (
        "sizes cut to whole chunks of 16 KiB",
        "F05",
        "tails",
        _TAILS,
    ),
    "granule_of_128": ("sizes cut to 128 bytes", "F24", "tails", {}),
    "empty_unwritten": ("the plan of empty ranges is not written", "F08", "empty", {}),
    "empty_shifts": ("empty ranges are left out of the plan", "F16", "empty", {}),
    "zeroes_tail": ("the last, partial granule of a weight is zeroed", "F09", "tails", {}),
    "zeroes_last_element": ("the last element of a weight is zeroed", "F09", "typical", {}),
    "writes_before": ("16 bytes before the weights are zeroed", "F09", "typical", {}),
    "writes_gap": ("what follows a weight in its row is zeroed", "F09", "typical", {}),
    "writes_back_canonical": ("fetched weights are written back with +0 for -0.0", "F36", "special_bits", {}),
    "quiets_nan": ("what follows a weight is written back with quiet NaN", "F51", "special_bits", {}),
    "sorts_order": ("the order of consumption is sorted in place", "F09", "typical", {}),
    "out_unwritten": ("the product of the last range is not written", "F08", "typical", {}),
    "consumer_beyond": ("the product reads 8 elements beyond each weight", "F04", "typical", {}),
    "consumer_short": ("the product leaves out the last element", "F05", "typical", {}),
    "consumer_of_other": ("the product reads the weight after the one named", "F16", "typical", {}),
    "consumer_dense": ("the product takes weights to lie without a pitch", "F01", "typical", {}),
    "consumer_bf16": ("the product adds in BF16", "F06", "typical", {}),
    "offset_wraps": (
        "offsets of weights wrap at 2**31 elements",
        "F50",
        "wide_offsets",
        {"weights": 3, "longest": 700},
    ),
}


def run(a: PrefetchArguments, order: Order, fault: str = "", profile: str = "stock") -> None:
    """planned and out, in place, wrong in the way ``fault`` says."""
    _plan(a, fault, present=profile != "stock")
    _spoil(a, fault)
    for position, number in enumerate(a.order.tolist()):
        if fault == "out_unwritten" and position == len(a.order) - 1:
            continue
        weight = _weight(a, number, fault)
        products = weight * a.x[: len(weight)].float()
        if fault == "consumer_bf16":
            total = products.new_zeros(())
            for product in products.split(64):
                total = (total + product.sum()).bfloat16().float()
            a.out[position] = total
            continue
        a.out[position] = order.sum(products, 0) if len(products) else 0.0


def _weight(a: PrefetchArguments, number: int, fault: str) -> Tensor:
    """What the product reads of one weight. FP32 [element]"""
    size = int(a.sizes[number])
    if fault == "consumer_short":
        size -= 1
    if fault == "consumer_beyond":
        size = min(size + 8, a.weights.shape[1])
    if fault == "consumer_of_other":
        number = (number + 1) % len(a.weights)
    if fault == "offset_wraps":
        number = number * a.weights.stride(0) % 2**31 // a.weights.stride(0)
    if fault == "consumer_dense":
        return (
            a.weights[0]
            .as_strided((size,), (1,), a.weights.storage_offset() + number * a.weights.shape[1])
            .float()
        )
    return a.weights[number, :size].float()


def _fetches(a: PrefetchArguments, fault: str) -> bool:
    """Whether anything is fetched at this point of this step."""
    batch, first, last = a.batch, 1, 8
    if a.point == "oproj_down":
        first, last = 3 + (fault == "starts_at_batch_4"), 8 - (fault == "ends_at_batch_7")
    if a.point == "attention_moe":
        if a.ranks != 8 and fault != "ranks_ignored":
            return False
        first = 8 if a.mla and fault != "mla_as_kda" else 5
    if fault == "above_batch_8":
        last = 16
    return first <= batch <= last


def _cap(a: PrefetchArguments, fault: str) -> int:
    """Bytes that may be fetched in all."""
    if a.point != "next_attention" or fault == "cap_ignored":
        return 2**62
    batch = a.batch - 1 if fault == "cap_of_batch_below" else a.batch
    units = 96 if batch < 4 else 64 if batch < 8 else 32
    if a.ranks == 16 and fault != "cap_of_other_ranks":
        units = 1024
    unit = a.unit * 1000 // 1024 if fault == "cap_in_decimal" else a.unit
    return units * unit * (2 if fault == "cap_in_elements" else 1)


def _plan(a: PrefetchArguments, fault: str, present: bool) -> None:
    numbers = sorted(a.order.tolist()) if fault == "order_of_memory" else a.order.tolist()
    planned: list[int] = []
    cap, ended = _cap(a, fault), False
    for number in numbers:
        size = int(a.sizes[number]) * 2
        left = cap if fault == "cap_by_range" else cap - sum(planned)
        taken = _granules(min(size, left), fault)
        if fault == "unused_cap_lost" and (ended or size > left):
            ended, taken = True, 0
        if fault == "after_cap" and taken == 0 and size:
            taken = 16
        planned.append(taken)
    if not present or not _fetches(a, fault):
        planned = [0] * len(numbers)
    if fault == "empty_shifts":
        kept = [taken for taken in planned if taken]
        planned = kept + [0] * (len(planned) - len(kept))
    for position, taken in enumerate(planned):
        if fault == "empty_unwritten" and not taken:
            continue
        a.planned[position] = taken


def _granules(size: int, fault: str) -> int:
    """Bytes of the whole granules in ``size``, counted one by one over the remainder."""
    if fault == "tail_fetched":
        return size
    if fault == "granule_rounded_up":
        return -(-size // 16) * 16
    granule = {"chunk_tail_lost": 16384, "granule_of_128": 128}.get(fault, 16)
    whole = size
    while whole % granule:
        whole -= 1
    return whole


def _spoil(a: PrefetchArguments, fault: str) -> None:
    """Writes that a prefetch must not do."""
    first = int(a.order[0])
    size = int(a.sizes[first])
    if fault == "zeroes_tail":
        for number in a.order.tolist():
            end = int(a.sizes[number])
            a.weights[number, end // 8 * 8 : end] = 0
    if fault == "zeroes_last_element":
        a.weights[first, size - 1] = 0
    if fault == "writes_before":
        a.weights.as_strided((8,), (1,), a.weights.storage_offset() - 8).zero_()
    if fault == "writes_gap":
        a.weights[first].as_strided(
            (8,), (1,), a.weights[first].storage_offset() + a.weights.shape[1]
        ).zero_()
    if fault == "writes_back_canonical":
        a.weights[first, :size] = a.weights[first, :size] + 0.0
    if fault == "quiets_nan":
        a.weights[first, size:].view(torch.int16).bitwise_or_(0x40)
    if fault == "sorts_order":
        a.order.copy_(a.order.sort().values)


def faults() -> Iterator[Fault]:
    """Every fault in the case where it must be noticed."""
    for name, (what, kind, regime, differs) in FAULTS.items():
        shape = {"ranks": 8, "batch": 1, "point": 2, "mla": 0, "weights": 5, "longest": 3000, "unit": 90}
        case = Case.of("prefetch", regime, 7, **(shape | differs))
        function = partial(run, order=LIBRARY, fault=name, profile="specialized")
        yield Fault(name, what, case, "specialized", function, kind)
