"""MLA query and key insert: q norm, q_b, absorption into the latent space, E4M3 query, key into its page.

Like the subject's MlaQuery (its operation 3.7), with its thresholds: up to 3 rows at 12 heads or more, 5
below, plain multiply-adds, the norm repeated by every program; above, 16, 32 or 64 tokens a program on tensor
cores. The subject fuses all into one clustered launch; here the parts are launches of their own, since Triton
has no exchange between programs: two for few rows, three above. ``TACTICS`` is the whole dispatch.

What this cannot show: the subject's clusters and its order of summation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton

from kernels_under_test.triton_portable.launch import (
    interpreted,
    need_dense_last_axis,
    power_of_two,
    programmatic,
    smallest_range,
)
from kernels_under_test.triton_portable.mla_query_kernels import (
    query_absorb_kernel,
    query_absorb_tiled_kernel,
    query_norm_kernel,
    query_up_kernel,
    query_up_tiled_kernel,
)
from validation.dispatch.table import Route
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from validation.contracts.contract import Case
    from validation.contracts.mla.query_arguments import MlaQueryArguments

SMALL = ("query_up_kernel", "query_absorb_kernel")
TILED = ("query_norm_kernel", "query_up_tiled_kernel", "query_absorb_tiled_kernel")
# Most rows of the small path, by whether a rank has 12 heads or more.
MOST_SMALL = {True: 3, False: 5}
# A program holds a whole row of q_a, and all of a head's nope in one product.
MOST_RANK, MOST_NOPE = 4096, 256


@dataclass(frozen=True)
class Tactic:
    """Tokens a program holds, columns of q_b and K step, latent tile, warps and stages of the q_b kernel."""

    rows: int
    columns: int
    step: int
    tile: int
    warps: int
    stages: int


# By whether a rank has 12 heads or more: largest batch of the range -> tactic of the tiled path, whose
# programs are repeated above the last. Fewer heads are cut finer, so that more of the device works.
TACTICS = {
    True: {
        16: Tactic(rows=16, columns=16, step=256, tile=64, warps=4, stages=4),
        32: Tactic(rows=32, columns=16, step=256, tile=64, warps=4, stages=4),
        64: Tactic(rows=64, columns=32, step=128, tile=64, warps=4, stages=4),
    },
    False: {
        16: Tactic(rows=16, columns=16, step=256, tile=32, warps=4, stages=4),
        32: Tactic(rows=32, columns=16, step=256, tile=32, warps=4, stages=4),
        64: Tactic(rows=64, columns=16, step=128, tile=32, warps=4, stages=4),
    },
}
SMALL_COLUMNS, SMALL_TILE = 4, 32
# The interpreter pays by the operation, not by the element: columns, latents and K step there.
INTERPRETED = 512


def is_small(rows: int, heads: int) -> bool:
    """Whether the batch takes the path of plain multiply-adds."""
    return rows <= MOST_SMALL[heads >= 12]


def dispatch(rows: int, heads: int) -> Tactic:
    """The tactic of the tiled path for a batch."""
    tactics = TACTICS[heads >= 12]
    return smallest_range(tactics, rows)


def refusal(rank: int, nope: int) -> str | None:
    """Why these sizes are not served, or None."""
    if rank > MOST_RANK:
        return f"a q rank of {rank} is not supported; at most {MOST_RANK}"
    if nope > MOST_NOPE:
        return f"a nope dimension of {nope} is not supported; at most {MOST_NOPE}"
    return None


def mla_query(a: MlaQueryArguments) -> None:
    """Query bytes of every row, and the keys of the rows with a slot; see ``MlaQueryArguments``.

    Any rows, heads, page size, latent and rope; rows, heads and pages may lie apart.
    """
    if reason := refusal(a.rank, a.nope):
        raise UserError(reason)
    need_dense_last_axis(projected=a.projected, w_q=a.w_q, w_uk=a.w_uk, cache=a.cache, query=a.query)
    need_dense_last_axis(q_norm=a.q_norm, kv_norm=a.kv_norm, slot=a.slot)
    rows = a.projected.shape[0]
    q = torch.empty(rows, a.w_q.shape[0], dtype=torch.bfloat16, device=a.projected.device)
    (_small if is_small(rows, a.heads) else _tiled)(a, q)


def _small(a: MlaQueryArguments, q: Tensor) -> None:
    rows, columns = q.shape
    wide, tile = SMALL_COLUMNS, SMALL_TILE
    if interpreted(q):
        wide = tile = INTERPRETED
    tiles = triton.cdiv(columns, wide)
    cache = a.cache.view(torch.float8_e4m3fn)
    query_up_kernel[(tiles + rows,)](
        a.projected, a.q_norm, a.kv_norm, a.w_q, a.slot, cache, q,
        a.projected.stride(0), a.w_q.stride(0), *cache.stride()[:2], q.stride(0),
        columns, a.rank, a.latent, a.rope, a.cache.shape[1], tiles, a.eps, a.k_inverse,
        ROWS=rows, COLUMNS=wide, RANK=power_of_two(a.rank), LATENT=power_of_two(a.latent),
        ROPE=power_of_two(a.rope), num_warps=4, **programmatic(q),
    )  # fmt: skip
    query = a.query.view(torch.float8_e4m3fn)
    query_absorb_kernel[(a.heads, triton.cdiv(a.latent, tile))](
        q, a.w_uk, query, q.stride(0), *a.w_uk.stride()[:2], *query.stride()[:2],
        a.nope, a.rope, a.latent, a.q_inverse,
        ROWS=rows, NOPE=power_of_two(a.nope), ROPE=power_of_two(a.rope), TILE=tile,
        num_warps=4, **programmatic(q),
    )  # fmt: skip


def _tiled(a: MlaQueryArguments, q: Tensor) -> None:
    rows, columns = q.shape
    tactic = dispatch(rows, a.heads)
    wide, step, tile = tactic.columns, tactic.step, tactic.tile
    if interpreted(q):
        wide = tile = INTERPRETED
        step = max(min(power_of_two(a.rank), INTERPRETED), 16)
    c = torch.empty(rows, a.rank, dtype=torch.bfloat16, device=q.device)
    cache, query = a.cache.view(torch.float8_e4m3fn), a.query.view(torch.float8_e4m3fn)
    query_norm_kernel[(rows, 2)](
        a.projected, a.q_norm, a.kv_norm, a.slot, cache, c,
        a.projected.stride(0), *cache.stride()[:2], c.stride(0),
        a.rank, a.latent, a.rope, a.cache.shape[1], a.eps, a.k_inverse,
        RANK=power_of_two(a.rank), LATENT=power_of_two(a.latent), ROPE=power_of_two(a.rope),
        num_warps=4, **programmatic(q),
    )  # fmt: skip
    row_tiles = triton.cdiv(rows, tactic.rows)
    query_up_tiled_kernel[(triton.cdiv(columns, wide), row_tiles)](
        c, a.w_q, q, c.stride(0), a.w_q.stride(0), q.stride(0), rows, columns, a.rank,
        ROWS=tactic.rows, COLUMNS=wide, STEP=step,
        num_warps=tactic.warps, num_stages=tactic.stages, **programmatic(q),
    )  # fmt: skip
    query_absorb_tiled_kernel[(a.heads, triton.cdiv(a.latent, tile), row_tiles)](
        q, a.w_uk, query, q.stride(0), *a.w_uk.stride()[:2], *query.stride()[:2],
        rows, a.nope, a.rope, a.latent, a.q_inverse,
        ROWS=tactic.rows, NOPE=max(power_of_two(a.nope), 16), ROPE=power_of_two(a.rope), TILE=tile,
        num_warps=4, **programmatic(q),
    )  # fmt: skip


def kernels(case: Case) -> tuple[str, ...]:
    """What ``mla_query`` launches for a case."""
    return SMALL if is_small(case["rows"], case["heads"]) else TILED


def supports(case: Case) -> str | None:
    """Why a case is not served, or None."""
    return refusal(case["rank"], case["nope"])


def _routes(when: str, many: bool) -> tuple[Route, ...]:
    small = {"columns": SMALL_COLUMNS, "tile": SMALL_TILE}
    tiled = tuple(
        Route(most, TILED, {"rows": t.rows, "columns": t.columns, "step": t.step, "tile": t.tile}, when)
        for most, t in TACTICS[many].items()
    )
    return Route(MOST_SMALL[many], SMALL, small, when), *tiled


TABLE = (*_routes("12 heads or more", True), *_routes("fewer than 12 heads", False))
OPERATIONS = {
    "mla_query": {"function": mla_query, "kernels": kernels, "table": TABLE, "supports": supports},
}
