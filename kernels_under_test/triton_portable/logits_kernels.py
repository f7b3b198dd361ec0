"""Final RMSNorm and logits: one program a row for the norm, then lm_head streamed once over all samples.

One cast in the norm, as the subject's last AttnRes (its operation 3.20). Up to two samples lm_head passes
through plain multiply-adds, from three on it is the left operand of ``tl.dot``; each program holds all of K
for its tokens, so no sum depends on which program ends first. The gather over ranks is played by writing
every rank's copy; columns that pad the vocabulary are never read.

What this cannot show: a real all-gather, and the library's GEMM that the subject calls.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels_under_test.triton_portable.launch import interpreted, need_dense_last_axis, power_of_two
from validation.dispatch.table import Route, route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.vocabulary.logits import LogitsArguments

WIDEST = 16384  # columns of a row that one program can hold


@dataclass(frozen=True)
class Tactic:
    """Samples and tokens a program holds, its K step; above the last entry programs repeat over samples."""

    kernel: str
    rows: int
    columns: int
    step: int
    warps: int
    stages: int


# Largest number of samples -> tactic.
TACTICS = {
    1: Tactic("head_skinny_kernel", rows=1, columns=8, step=1024, warps=8, stages=3),
    2: Tactic("head_skinny_kernel", rows=2, columns=4, step=1024, warps=4, stages=3),
    16: Tactic("head_dot_kernel", rows=16, columns=64, step=128, warps=4, stages=4),
    32: Tactic("head_dot_kernel", rows=32, columns=64, step=128, warps=4, stages=4),
    1 << 30: Tactic("head_dot_kernel", rows=64, columns=64, step=128, warps=4, stages=4),
}
# A shard of 10,240 tokens would not fill the device in tiles of 64 tokens.
FEW_TOKENS, NARROW = 16384, 32
# Tokens a program holds and its K step in the interpreter, which pays by the operation. Rows of
# the subject's width still take two steps.
INTERPRETED = {"head_skinny_kernel": (64, 4096), "head_dot_kernel": (128, 4096)}


@triton.jit
def final_norm_kernel(
    x, gamma, rows_wanted, out, stride_x, stride_rows_wanted, stride_out, columns, eps,
    GATHERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = bf16(x[row] * rsqrt(mean(x[row]**2) + eps) * gamma); GATHERS: of row rows_wanted[row]."""
    row = tl.program_id(0).to(tl.int64)
    source = row
    if GATHERS:
        source = tl.load(rows_wanted + row * stride_rows_wanted).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + source * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    weight = tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + column, (value * inverse * weight).to(tl.bfloat16), mask=inside)


@triton.jit
def _store_copies(
    total, out, sample, token, stride_out_rank, stride_out, samples, org_vocab, ranks, scale,
    SCALES: tl.constexpr,
):  # fmt: skip
    """Round, scale what was rounded, and write every rank's copy; ``sample`` and ``token`` broadcast."""
    value = total.to(tl.bfloat16)
    if SCALES:
        value = (value.to(tl.float32) * scale).to(tl.bfloat16)
    place = out + sample * stride_out + token
    live = (sample < samples) & (token < org_vocab)
    for _ in range(0, ranks):
        tl.store(place, value, mask=live)
        place += stride_out_rank


@triton.jit
def _places(
    rows_wanted, weight, stride_rows_wanted, stride_weight_rank, stride_weight, samples, shard,
    INDEXED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Tokens and samples of this program, the samples' rows of x, and where the tokens' weights begin."""
    token = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    sample = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = sample
    if INDEXED:
        row = tl.load(rows_wanted + sample * stride_rows_wanted, mask=sample < samples, other=0).to(tl.int64)
    rank = token // shard
    return token, sample, row, weight + rank * stride_weight_rank + (token - rank * shard) * stride_weight


@triton.jit
def head_skinny_kernel(
    x, rows_wanted, weight, out, stride_x, stride_rows_wanted, stride_weight_rank, stride_weight,
    stride_out_rank, stride_out, samples, columns, shard, org_vocab, ranks, scale,
    INDEXED: tl.constexpr, SCALES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Logits of ROWS samples and COLUMNS tokens by multiply-adds over lanes of K."""
    token, sample, row, w_row = _places(
        rows_wanted, weight, stride_rows_wanted, stride_weight_rank, stride_weight, samples, shard, INDEXED,
        ROWS, COLUMNS,
    )  # fmt: skip
    at = tl.arange(0, STEP)
    total = tl.zeros([ROWS, COLUMNS, STEP], dtype=tl.float32)
    for start in range(0, columns, STEP):
        inside = (start + at < columns)[None, :]
        w = tl.load(
            w_row[:, None] + start + at[None, :], mask=(token < org_vocab)[:, None] & inside, other=0.0
        )
        v_at = x + row[:, None] * stride_x + start + at[None, :]
        v = tl.load(v_at, mask=(sample < samples)[:, None] & inside, other=0.0)
        total += v.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
    _store_copies(
        tl.sum(total, axis=2), out, sample[:, None], token[None, :], stride_out_rank, stride_out,
        samples, org_vocab, ranks, scale, SCALES,
    )  # fmt: skip


@triton.jit
def head_dot_kernel(
    x, rows_wanted, weight, out, stride_x, stride_rows_wanted, stride_weight_rank, stride_weight,
    stride_out_rank, stride_out, samples, columns, shard, org_vocab, ranks, scale,
    INDEXED: tl.constexpr, SCALES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Logits of ROWS samples and COLUMNS tokens on tensor cores."""
    token, sample, row, w_row = _places(
        rows_wanted, weight, stride_rows_wanted, stride_weight_rank, stride_weight, samples, shard, INDEXED,
        ROWS, COLUMNS,
    )  # fmt: skip
    at = tl.arange(0, STEP)
    total = tl.zeros([COLUMNS, ROWS], dtype=tl.float32)
    for start in range(0, columns, STEP):
        inside = start + at < columns
        w_at = w_row[:, None] + start + at[None, :]
        w = tl.load(w_at, mask=(token < org_vocab)[:, None] & inside[None, :], other=0.0)
        v_at = x + row[None, :] * stride_x + start + at[:, None]
        v = tl.load(v_at, mask=(sample < samples)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(w, v, total)
    _store_copies(
        total, out, sample[None, :], token[:, None], stride_out_rank, stride_out,
        samples, org_vocab, ranks, scale, SCALES,
    )  # fmt: skip


TABLE = tuple(
    Route(
        rows,
        (*(("final_norm_kernel",) if norms else ()), tactic.kernel),
        {"rows": tactic.rows, "columns": tactic.columns, "step": tactic.step},
        when="normalises" if norms else "",
    )
    for norms in (True, False)
    for rows, tactic in TACTICS.items()
)


def logits(a: LogitsArguments) -> None:
    """out[every rank, W, org_vocab] BF16 of W wanted rows of x [B, D]; any W, B, number of ranks and shard.

    D up to 16,384; rows and shards may lie apart.
    """
    if reason := _too_wide(a.x.shape[1]):
        raise UserError(reason)
    need_dense_last_axis(x=a.x, gamma=a.gamma, weight=a.weight, hidden=a.hidden, out=a.out)
    if a.norm == "done":
        _head(a, a.x, indexed=True)
    elif a.norm == "all":
        _normalise(a, a.hidden, gathers=False)
        _head(a, a.hidden, indexed=True)
    else:
        rows = torch.empty(len(a.rows_wanted), a.x.shape[1], dtype=a.x.dtype, device=a.x.device)
        _normalise(a, rows, gathers=True)
        _head(a, rows, indexed=False)


def _normalise(a: LogitsArguments, out: Tensor, gathers: bool) -> None:
    columns = a.x.shape[1]
    block = power_of_two(columns)
    final_norm_kernel[(len(out),)](
        a.x, a.gamma, a.rows_wanted, out, a.x.stride(0), a.rows_wanted.stride(0), out.stride(0),
        columns, a.eps, GATHERS=gathers, BLOCK=block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip


def _head(a: LogitsArguments, x: Tensor, indexed: bool) -> None:
    (ranks, shard, columns), samples = a.weight.shape, len(a.rows_wanted)
    tactic = next(t for most, t in TACTICS.items() if samples <= most)
    tokens, step = tactic.columns, tactic.step
    if interpreted(x):
        tokens, step = INTERPRETED[tactic.kernel]
        step = min(step, max(power_of_two(columns), 16))
    elif tactic.kernel == "head_dot_kernel" and a.org_vocab < FEW_TOKENS:
        tokens = NARROW
    kernel = head_skinny_kernel if tactic.kernel == "head_skinny_kernel" else head_dot_kernel
    kernel[(triton.cdiv(a.org_vocab, tokens), triton.cdiv(samples, tactic.rows))](
        x, a.rows_wanted, a.weight, a.out, x.stride(0), a.rows_wanted.stride(0),
        a.weight.stride(0), a.weight.stride(1), a.out.stride(0), a.out.stride(1),
        samples, columns, shard, a.org_vocab, ranks, a.scale,
        INDEXED=indexed, SCALES=a.scale != 1.0, ROWS=tactic.rows, COLUMNS=tokens, STEP=step,
        num_warps=tactic.warps, num_stages=tactic.stages,
    )  # fmt: skip


def _too_wide(columns: int) -> str | None:
    if columns <= WIDEST:
        return None
    return f"rows of {columns} columns are not supported by the final norm's kernel; at most {WIDEST}"


def supports(case: Case) -> str | None:
    return _too_wide(case["width"])


def kernels(case: Case) -> tuple[str, ...]:
    """What ``logits`` launches for a case."""
    return route(TABLE, case["wanted"], "" if case["norm"] == 2 else "normalises").kernels
