"""L2 prefetch of weight ranges by a small kernel, and the product that reads the weights after it.

Like the subject's ``L2Prefetch`` (its operation 3.21): a table of (offset, bytes) is prepared on the host, 32
programs of one warp walk it, and every lane asks for chunks of 16 KiB in table order. On CUDA a lane issues
``cp.async.bulk.prefetch.L2``, which writes nothing; the interpreter has no inline assembly, so there a lane
loads the first and the last byte of its chunk and drops them.

What this cannot show: the side stream, its event and its join.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.prefetch import PrefetchArguments

PROGRAMS, LANES, CHUNK, GRANULE = 32, 32, 16384, 16
# Batches of each point: (parallelism, kind of attention) matter where they are named.
OPROJ_DOWN = range(3, 9)
ATTENTION_MOE = {"kda": range(5, 9), "mla": range(8, 9)}
# Largest batch -> cap in units, by parallelism.
NEXT_ATTENTION = {8: ((3, 96), (7, 64), (8, 32)), 16: ((8, 1024),)}
# Elements a program of the product adds at a time.
STEP, INTERPRETED_STEP = 2048, 4096

# One bulk prefetch of $2 bytes at $1, where there are any.
_PREFETCH = tl.constexpr(
    "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"
)


@triton.jit
def l2_prefetch_kernel(
    weights, table, count, WORKERS: tl.constexpr, SIZE: tl.constexpr, PER_PROGRAM: tl.constexpr,
    COMPILED: tl.constexpr,
):  # fmt: skip
    """Ask L2 for ``table[i] = (offset, bytes)`` of ``weights`` (bytes), chunk by chunk over all lanes."""
    worker = tl.program_id(0).to(tl.int64) * PER_PROGRAM + tl.arange(0, PER_PROGRAM)
    phase = tl.zeros([], dtype=tl.int64)
    for row in range(0, count):
        base = tl.load(table + 2 * row)
        size = tl.load(table + 2 * row + 1)
        chunks = (size + SIZE - 1) // SIZE
        first = (worker + WORKERS - phase % WORKERS) % WORKERS
        for turn in range(0, (chunks + WORKERS - 1) // WORKERS):
            offset = (first + turn * WORKERS) * SIZE
            length = tl.minimum(tl.maximum(size - offset, 0), SIZE)
            place = weights + base + offset
            if COMPILED:
                tl.inline_asm_elementwise(
                    _PREFETCH, "=r,l,r", [place.to(tl.int64), length.to(tl.int32)],
                    dtype=tl.int32, is_pure=False, pack=1,
                )  # fmt: skip
            else:
                tl.load(place, mask=length > 0, other=0)
                tl.load(place + length - 1, mask=length > 0, other=0)
        phase += chunks


@triton.jit
def consumer_kernel(x, weights, sizes, order, out, stride_weights, STEP_BY: tl.constexpr):
    """out[range] = bf16(sum_j x[j] * weights[order[range], j]) over the weight's own elements."""
    position = tl.program_id(0)
    number = tl.load(order + position).to(tl.int64)
    size = tl.load(sizes + number)
    at = tl.arange(0, STEP_BY)
    total = tl.zeros([STEP_BY], dtype=tl.float32)
    row = weights + number * stride_weights
    for start in range(0, size, STEP_BY):
        inside = start + at < size
        w = tl.load(row + start + at, mask=inside, other=0.0).to(tl.float32)
        total += w * tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + position, tl.sum(total, axis=0).to(tl.bfloat16))


def prefetch(a: PrefetchArguments) -> None:
    """Plan, fetch and consume; ``weights`` [W, E] may lie apart by any multiple of 16 bytes."""
    need_dense_last_axis(weights=a.weights, x=a.x)
    table = _table(a)
    a.planned.copy_(torch.tensor([size for _, size in table], dtype=torch.int64))
    fetched = [entry for entry in table if entry[1]]
    if fetched:
        fetch(a.weights, torch.tensor(fetched, dtype=torch.int64, device=a.weights.device))
    consumer_kernel[(len(a.order),)](
        a.x, a.weights, a.sizes, a.order, a.out, a.weights.stride(0),
        STEP_BY=INTERPRETED_STEP if interpreted(a.x) else STEP, num_warps=4,
    )  # fmt: skip


def fetch(weights: Tensor, table: Tensor) -> None:
    """Ask L2 for the ranges ``table[i]`` = (offset, bytes) of ``weights``, whole granules, int64."""
    per_program = PROGRAMS * LANES if interpreted(weights) else LANES
    l2_prefetch_kernel[(PROGRAMS * LANES // per_program,)](
        weights.view(torch.uint8), table, len(table), WORKERS=PROGRAMS * LANES, SIZE=CHUNK,
        PER_PROGRAM=per_program, COMPILED=not interpreted(weights), num_warps=1,
    )  # fmt: skip


def _table(a: PrefetchArguments) -> list[tuple[int, int]]:
    """(offset, bytes) of every range in order, both in bytes; no bytes where nothing is fetched."""
    pitch, width = a.weights.stride(0) * a.weights.element_size(), a.weights.element_size()
    if a.weights.data_ptr() % GRANULE or (len(a.weights) > 1 and pitch % GRANULE):
        raise UserError(f"prefetched weights must start on {GRANULE} bytes; theirs are {pitch} bytes apart")
    numbers, sizes = a.order.tolist(), a.sizes.tolist()
    cap = _cap(a)
    if cap is None:
        return [(number * pitch, 0) for number in numbers]
    table: list[tuple[int, int]] = []
    for number in numbers:
        size = sizes[number] * width
        if cap > 0:
            size = min(size, max(cap - sum(fetched for _, fetched in table), 0))
        table.append((number * pitch, size // GRANULE * GRANULE))
    return table


def _cap(a: PrefetchArguments) -> int | None:
    """Bytes that the point may fetch: None for none, 0 for all."""
    if reason := _unplanned(a.ranks):
        raise UserError(reason)
    return _bytes(a.point, a.batch, a.ranks, a.mla, a.unit)


def _bytes(point: str, batch: int, ranks: int, mla: bool, unit: int) -> int | None:
    if point == "oproj_down":
        return 0 if batch in OPROJ_DOWN else None
    if point == "attention_moe":
        return 0 if ranks == 8 and batch in ATTENTION_MOE["mla" if mla else "kda"] else None
    return next((cap * unit for most, cap in NEXT_ATTENTION[ranks] if batch <= most), None)


def _unplanned(ranks: int) -> str | None:
    if ranks in NEXT_ATTENTION:
        return None
    return f"no prefetch is planned for {ranks} ranks; known: {', '.join(map(str, NEXT_ATTENTION))}"


def supports(case: Case) -> str | None:
    """Why ``prefetch`` does not serve a case, or None."""
    return _unplanned(case["ranks"])


def kernels(case: Case) -> tuple[str, ...]:
    """What ``prefetch`` launches for a case. (Every case has a range of at least one granule.)"""
    point = ("oproj_down", "attention_moe", "next_attention")[case["point"]]
    fetches = _bytes(point, case["batch"], case["ranks"], bool(case["mla"]), case["unit"]) is not None
    return ("l2_prefetch_kernel", "consumer_kernel") if fetches else ("consumer_kernel",)


_BOTH, _NONE = ("l2_prefetch_kernel", "consumer_kernel"), ("consumer_kernel",)
TABLE = (
    Route(2, _NONE, when="oproj_down"),
    Route(8, _BOTH, when="oproj_down"),
    Route(1 << 30, _NONE, when="oproj_down"),
    Route(4, _NONE, when="attention_moe, 8 ranks, KDA"),
    Route(8, _BOTH, when="attention_moe, 8 ranks, KDA"),
    Route(1 << 30, _NONE, when="attention_moe, 8 ranks, KDA"),
    Route(7, _NONE, when="attention_moe, 8 ranks, MLA"),
    Route(8, _BOTH, when="attention_moe, 8 ranks, MLA"),
    Route(1 << 30, _NONE, when="attention_moe, 8 ranks, MLA"),
    Route(1 << 30, _NONE, when="attention_moe, 16 ranks"),
    *(
        Route(most, _BOTH, {"cap": cap}, when=f"next_attention, {ranks} ranks")
        for ranks, caps in NEXT_ATTENTION.items()
        for most, cap in caps
    ),
    *(Route(1 << 30, _NONE, when=f"next_attention, {ranks} ranks") for ranks in NEXT_ATTENTION),
)
OPERATIONS = {
    "prefetch": {"function": prefetch, "kernels": kernels, "table": TABLE, "supports": supports},
}
