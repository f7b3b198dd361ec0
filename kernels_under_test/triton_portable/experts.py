"""Routed experts of one rank: pairs up to four rows, units of one expert above.

Like the subject's experts (its operation 3.15): few rows take every (row, slot) pair for itself; more rows
are grouped by expert on the device, so that an expert's weights are read once for up to 16 of its rows. Grids
are the upper bounds of what the routing can need: nothing waits for the host, and the calls can be captured.
Every sum is one program's, so equal calls give equal bits. ``TACTICS`` is the whole dispatch.

What this cannot show: the subject's units of 8 rows, stolen tiles and streamed experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import triton

from kernels_under_test.triton_portable.experts_kernels import (
    combine_kernel,
    down_kernel,
    group_kernel,
    prepare_kernel,
    up_kernel,
)
from kernels_under_test.triton_portable.experts_pairs import pairs
from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    smallest_range,
)
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.moe.experts_arguments import ExpertsArguments

UNIT = 16  # as in the kernels
MAX_PAIRS = 2048  # one program groups them


@dataclass(frozen=True)
class Tactic:
    """How a range of batches is computed: bytes of K a step of each product, rows of W2 a program, stages."""

    kernel: Literal["pairs", "units"]
    up_bytes: int
    down_rows: int
    down_bytes: int
    stages: int = 3

    @property
    def kernels(self) -> tuple[str, ...]:
        if self.kernel == "pairs":
            return "pair_up_kernel", "pair_down_kernel"
        return "prepare_kernel", "group_kernel", "up_kernel", "down_kernel", "combine_kernel"


# Largest batch of the range -> tactic.
TACTICS = {
    4: Tactic("pairs", up_bytes=512, down_rows=32, down_bytes=256),
    128: Tactic("units", up_bytes=64, down_rows=128, down_bytes=32, stages=3),
}
# The interpreter pays by the operation, not by the element.
INTERPRETED = Tactic("units", up_bytes=128, down_rows=4096, down_bytes=64)


def dispatch(batch: int) -> Tactic:
    """The tactic for a batch, of the smallest range that holds it."""
    return smallest_range(TACTICS, batch)


def reason(rows: int, slots: int, width: int, live: int) -> str | None:
    """Why these shapes are not served, or None."""
    if width % 32 or live % 32:
        return f"latent and hidden columns must be whole blocks of 32; they are {width} and {live}"
    if rows * slots > MAX_PAIRS:
        return f"at most {MAX_PAIRS} (row, slot) pairs are grouped; there are {rows} x {slots}"
    return None


def experts(a: ExpertsArguments) -> None:
    """out[B, L] (and rows[B, slot, L]) of MXFP8 x[B, L] through the experts ``ids[B, slot]``; see
    ``ExpertsArguments``. L and the live hidden columns are multiples of 32. Rows and experts may lie apart,
    those of ``x`` by an even number of bytes.
    """
    batch, slots = a.ids.shape
    width = a.out.shape[1]
    if why := reason(batch, slots, width, a.live):
        raise UserError(why)
    need_dense_last_axis(
        x=a.x, x_scale=a.x_scale, ids=a.ids, weights=a.weights, w13=a.w13, w13_scale=a.w13_scale, w2=a.w2,
        w2_scale=a.w2_scale, out=a.out,
    )  # fmt: skip
    if a.x.stride(0) % 2 or a.x.data_ptr() % 2:
        raise UserError(f"rows of x must start at even addresses; they are {a.x.stride(0)} bytes apart")
    rows = a.rows
    if rows is None:
        rows = torch.empty(batch, slots, width, dtype=torch.bfloat16, device=a.x.device)
    need_dense_last_axis(rows=rows)
    tactic = dispatch(batch)
    if tactic.kernel == "pairs":
        pairs(a, rows)
        return
    scratch = _Scratch.of(a)
    _prepare(a, scratch)
    _products(a, rows, scratch, tactic)
    block = 4096 if interpreted(a.x) else 512
    combine_kernel[triton.cdiv(width, block), batch](
        rows, a.weights, a.out, rows.stride(0), rows.stride(1), a.weights.stride(0), a.out.stride(0),
        slots, width, BLOCK=block, num_warps=4,
    )  # fmt: skip


@dataclass(frozen=True)
class _Scratch:
    """Memory between the kernels. ``latent`` and ``hidden``: BF16 rows, even columns before odd ones;
    ``by_expert`` and ``place_in``: pairs in the order of experts, and their place among those of theirs;
    ``expert`` and ``members``: of every unit."""

    latent: Tensor
    hidden: Tensor
    by_expert: Tensor
    place_in: Tensor
    expert: Tensor
    members: Tensor

    @classmethod
    def of(cls, a: ExpertsArguments) -> _Scratch:
        pairs = a.ids.numel()
        # An expert with c rows makes ceil(c / 16) units.
        units = min(pairs, len(a.w13) + pairs // UNIT)
        where = a.x.device

        def integers(n: int) -> Tensor:
            return torch.empty(n, dtype=torch.int32, device=where)

        return cls(
            latent=torch.empty(a.x.shape, dtype=torch.bfloat16, device=where),
            hidden=torch.empty(pairs, a.live, dtype=torch.bfloat16, device=where),
            by_expert=integers(pairs),
            place_in=integers(pairs),
            expert=integers(units),
            members=integers(units * UNIT),
        )


def _prepare(a: ExpertsArguments, s: _Scratch) -> None:
    """Decode the latent, sort the pairs by expert and cut them into units."""
    (batch, slots), pairs, bytes_ = a.ids.shape, a.ids.numel(), a.x.shape[1] // 2
    block, ranked, chunk = (2048, 64, 64) if interpreted(a.x) else (256, 16, 128)
    pieces = triton.cdiv(bytes_, block)
    rankers = triton.cdiv(pairs, ranked)
    prepare_kernel[(batch * pieces + rankers,)](
        a.x.view(torch.int16), a.x_scale, s.latent, a.ids, s.by_expert, s.place_in,
        a.x.stride(0) // 2, a.x_scale.stride(0), a.ids.stride(0), bytes_, slots, pairs,
        batch * pieces, pieces, BLOCK=block, RANKED=ranked, CHUNK=chunk, num_warps=4,
    )  # fmt: skip
    group_kernel[(1,)](
        a.ids, s.by_expert, s.place_in, s.expert, s.members, a.ids.stride(0), slots, pairs, len(s.expert),
        PAIRS=max(power_of_two(pairs), 16), num_warps=8,
    )  # fmt: skip


def _products(a: ExpertsArguments, rows: Tensor, s: _Scratch, tactic: Tactic) -> None:
    slots, width = a.ids.shape[1], a.out.shape[1]
    units = len(s.expert)
    chosen = INTERPRETED if interpreted(a.x) else tactic
    down_rows = min(chosen.down_rows, power_of_two(width))
    up_kernel[a.live // 32, units](
        s.latent, a.w13, a.w13_scale, s.expert, s.members, s.hidden,
        a.w13.stride(0), a.w13.stride(1), a.w13_scale.stride(0), a.w13_scale.stride(1),
        slots, width // 2, a.live, a.padded,
        FLOOR=a.hidden_rule == "floor", BYTES=chosen.up_bytes,
        num_warps=4, num_stages=tactic.stages,
    )  # fmt: skip
    down_kernel[triton.cdiv(width, down_rows), units](
        s.hidden, a.w2, a.w2_scale, s.expert, s.members, rows,
        a.w2.stride(0), a.w2.stride(1), a.w2_scale.stride(0), a.w2_scale.stride(1),
        rows.stride(0), rows.stride(1), slots, a.live, width,
        ROWS=down_rows, BYTES=chosen.down_bytes,
        num_warps=4, num_stages=tactic.stages,
    )  # fmt: skip


def kernels(case: Case) -> tuple[str, ...]:
    """What ``experts`` launches for a case."""
    return dispatch(case["rows"]).kernels


def supports(case: Case) -> str | None:
    return reason(case["rows"], case["slots"], case["width"], case["live"])


TABLE = tuple(
    Route(
        rows=rows,
        kernels=tactic.kernels,
        settings={"kernel": tactic.kernel, "up_bytes": tactic.up_bytes, "down_rows": tactic.down_rows},
    )
    for rows, tactic in TACTICS.items()
)
OPERATIONS = {
    "experts": {"function": experts, "kernels": kernels, "table": TABLE, "supports": supports},
}
