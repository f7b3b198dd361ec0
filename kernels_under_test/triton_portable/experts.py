"""Routed experts of one rank: units of one (row, slot) pair up to four rows, of one expert's rows above.

Like the subject's experts (its operation 3.15): few rows take every pair for itself; more rows are grouped by
expert on the device, so that an expert's weights are read once for two of its rows. Grids are the upper
bounds of what the routing can need: nothing waits for the host, and the calls can be captured. Every sum is
one program's, so equal calls give equal bits. ``TACTICS`` is the whole dispatch.

What this cannot show: the subject's units of 8 rows, stolen tiles and streamed experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import triton

from kernels_under_test.triton_portable.experts_kernels import (
    down_kernel,
    group_kernel,
    prepare_kernel,
    slots_kernel,
    up_kernel,
)
from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    programmatic,
    smallest_range,
    workspace,
)
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.moe.experts_arguments import ExpertsArguments

UNIT = 2  # as in the kernels
MAX_PAIRS = 2048  # one program groups them
COUNTERS = 1 << 14
BLOCKS = 4  # of 32 columns that a warp takes of a row at a time: what ``experts_dot`` is made for


@dataclass(frozen=True)
class Sweep:
    """How a product passes over its weights: warps of a program; fours of blocks that it takes at a time;
    whether loads stay where they are written; the most registers of a thread (None: as the assembler likes).
    A warp takes 32 rows of four blocks."""

    warps: int
    ahead: int = 1
    hold: bool = True
    registers: int | None = None

    def settings(self, groups: int, here: bool) -> dict[str, Any]:
        """Constants and options of a launch over ``groups`` blocks of a row. EVEN: all steps are full."""
        held, ahead = (power_of_two(groups), 1) if here else (BLOCKS, self.ahead)
        steps = triton.cdiv(groups, held * ahead)
        return {
            "GROUPS": held,
            "AHEAD": ahead,
            "STEPS": steps,
            "EVEN": groups % (held * ahead) == 0,
            "HOLD": self.hold,
            "num_warps": self.warps,
            "maxnreg": self.registers,
        }


@dataclass(frozen=True)
class Tactic:
    """How a range of batches is computed: what a unit is; the products with W13 (at most 2 * ahead warps) and
    with W2 (at most rows / 16 * ahead); of the latter, rows of either half of a program's tile."""

    unit: Literal["pair", "expert"]
    up: Sweep
    down: Sweep
    down_rows: int

    @property
    def kernels(self) -> tuple[str, ...]:
        if self.unit == "pair":
            return ("prepare_kernel", "up_kernel", "down_kernel")
        return ("prepare_kernel", "group_kernel", "up_kernel", "down_kernel", "slots_kernel")


# Largest batch of the range -> tactic.
TACTICS = {
    1: Tactic("pair", Sweep(warps=8, ahead=4), Sweep(warps=2), down_rows=32),
    4: Tactic("pair", Sweep(warps=8, ahead=4), Sweep(warps=2), down_rows=32),
    128: Tactic(
        "expert",
        Sweep(warps=4, ahead=2, hold=False, registers=96),
        Sweep(warps=4, hold=False, registers=88),
        down_rows=64,
    ),
}
ADDED = 512  # columns of a program of ``slots_kernel``
# The interpreter pays by the operation, not by the element.
INTERPRETED_ROWS = 2048


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
    rows of weights by multiples of 16 bytes.
    """
    batch, slots = a.ids.shape
    width = a.out.shape[1]
    if why := reason(batch, slots, width, a.live):
        raise UserError(why)
    need_dense_last_axis(
        x=a.x, x_scale=a.x_scale, ids=a.ids, weights=a.weights, w13=a.w13, w13_scale=a.w13_scale, w2=a.w2,
        w2_scale=a.w2_scale, out=a.out,
    )  # fmt: skip
    _need_aligned_rows(a)
    rows = a.rows
    if rows is None:
        rows = torch.empty(batch, slots, width, dtype=torch.bfloat16, device=a.x.device)
    need_dense_last_axis(rows=rows)
    tactic, scratch = dispatch(batch), _Scratch.of(a)
    _prepare(a, scratch, tactic)
    _products(a, rows, scratch, tactic)


def _need_aligned_rows(a: ExpertsArguments) -> None:
    """Raise UserError unless every row of the weights starts where a block of 16 bytes can be read."""
    for name, tensor in (("w13", a.w13), ("w2", a.w2)):
        if tensor.data_ptr() % 16 or any(stride % 16 for stride in tensor.stride()[:-1]):
            raise UserError(
                f"rows of {name} must start on multiples of 16 bytes; its strides are {tensor.stride()}"
            )


@dataclass(frozen=True)
class _Operand:
    """MXFP8 rows as ``experts_dot`` wants them: codes as FP16, and the scale of every block."""

    pairs: Tensor
    factors: Tensor

    @classmethod
    def of(cls, rows: int, blocks: int, where: torch.device) -> _Operand:
        return cls(
            torch.empty(rows, blocks * 32, dtype=torch.float16, device=where),
            torch.empty(rows, blocks, dtype=torch.float32, device=where),
        )

    def written(self) -> tuple[Tensor, Tensor]:
        return self.pairs, self.factors

    def read(self) -> tuple[Tensor, Tensor]:
        """As words of two."""
        return self.pairs.view(torch.int32), self.factors


@dataclass(frozen=True)
class _Scratch:
    """Memory between the kernels. ``by_expert`` and ``place_in``: pairs in the order of experts, and their
    place among those of theirs; ``expert`` and ``members``: of every unit."""

    latent: _Operand
    hidden: _Operand
    by_expert: Tensor
    place_in: Tensor
    expert: Tensor
    members: Tensor

    @classmethod
    def of(cls, a: ExpertsArguments) -> _Scratch:
        pairs, where = a.ids.numel(), a.x.device
        # An expert with c rows makes ceil(c / 2) units.
        units = min(pairs, (pairs + len(a.w13)) // UNIT)

        def integers(n: int) -> Tensor:
            return torch.empty(n, dtype=torch.int32, device=where)

        return cls(
            latent=_Operand.of(len(a.x), a.x.shape[1] // 32, where),
            hidden=_Operand.of(pairs, a.live // 32, where),
            by_expert=integers(pairs),
            place_in=integers(pairs),
            expert=integers(units),
            members=integers(units * UNIT),
        )


def _prepare(a: ExpertsArguments, s: _Scratch, tactic: Tactic) -> None:
    """Decode the latent; for units of an expert sort the pairs and cut them into these."""
    (batch, slots), pairs, groups = a.ids.shape, a.ids.numel(), a.x.shape[1] // 32
    blocks, ranked, chunk = (power_of_two(groups), 64, 64) if interpreted(a.x) else (16, 4, 1024)
    pieces = triton.cdiv(groups, blocks)
    grouped = tactic.unit == "expert"
    early = programmatic(a.x)
    prepare_kernel[(batch * pieces + grouped * triton.cdiv(pairs, ranked),)](
        a.x, a.x_scale, *s.latent.written(), a.ids, s.by_expert, s.place_in,
        a.x.stride(0), a.x_scale.stride(0), a.ids.stride(0), groups, slots, pairs,
        batch * pieces, pieces, BLOCKS=blocks, RANKED=ranked, CHUNK=chunk, num_warps=4, **early,
    )  # fmt: skip
    if grouped:
        group_kernel[(1,)](
            a.ids, s.by_expert, s.place_in, s.expert, s.members, a.ids.stride(0), slots, pairs, len(s.expert),
            PAIRS=max(power_of_two(pairs), 16), num_warps=8, **early,
        )  # fmt: skip


def _products(a: ExpertsArguments, rows: Tensor, s: _Scratch, tactic: Tactic) -> None:
    slots, width = a.ids.shape[1], a.out.shape[1]
    grouped = tactic.unit == "expert"
    units = len(s.expert) if grouped else a.ids.numel()
    groups, blocks, early = width // 32, a.live // 32, programmatic(a.x)
    w13, w2 = a.w13.view(torch.int32), a.w2.view(torch.int32)
    of_w13, of_w2 = (tuple(stride // 4 for stride in w.stride()[:2]) for w in (w13, w2))
    zeros, here = workspace("no activations", 16, a.x.device), interpreted(a.x)
    up_kernel[blocks, units](
        *s.latent.read(), zeros, a.ids, s.expert, s.members, w13, a.w13_scale, *s.hidden.written(),
        a.ids.stride(0), of_w13[0], a.w13_scale.stride(0), slots, groups, blocks,
        STRIDE=of_w13[1], STRIDE_SCALE=a.w13_scale.stride(1), PADDED=a.padded,
        FLOOR=a.hidden_rule == "floor", GROUPED=grouped, **tactic.up.settings(groups, here), **early,
    )  # fmt: skip
    tall = min(INTERPRETED_ROWS, power_of_two(width)) if here else tactic.down_rows
    down_kernel[triton.cdiv(width, 2 * tall), units](
        *s.hidden.read(), zeros, a.ids, s.expert, s.members, a.weights, w2, a.w2_scale, rows, a.out,
        workspace("experts", COUNTERS, a.x.device), a.ids.stride(0), a.weights.stride(0), of_w2[0],
        a.w2_scale.stride(0), rows.stride(0), rows.stride(1), a.out.stride(0), slots, blocks, width,
        STRIDE=of_w2[1], STRIDE_SCALE=a.w2_scale.stride(1), FULL=width % (2 * tall) == 0, GROUPED=grouped,
        ROWS=tall, **tactic.down.settings(blocks, here), **early,
    )  # fmt: skip
    if grouped:
        columns = power_of_two(width) if here else ADDED
        slots_kernel[triton.cdiv(width, columns), len(a.ids)](
            rows, a.out, a.weights, rows.stride(0), rows.stride(1), a.weights.stride(0), a.out.stride(0),
            slots, width, COLUMNS=columns, num_warps=4, **early,
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
        settings={"unit": tactic.unit, "up warps": tactic.up.warps, "down rows": tactic.down_rows},
    )
    for rows, tactic in TACTICS.items()
)
OPERATIONS = {
    "experts": {"function": experts, "kernels": kernels, "table": TABLE, "supports": supports},
}
