"""Inputs of the ``mla_query`` contract.

In every regime slots are sparse and permuted over pages (never page 0, the null block), cache bytes nobody
owns are random, and the columns behind k_pe hold NaN. Both scales differ from 1 and from each other. Where
they are no powers of two, no rounded value times an inverse lies on a tie of E4M3, so that every byte is
known but for the rare flip of a rounding before it.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Regime
from validation.contracts.mla.query_arguments import MlaQueryArguments
from validation.contracts.regimes import generator, normal, outliers, shared_weight
from validation.numerics.formats import E4M3, points

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F06", "F08", "F09", "F12", "F20"),
        "norm weights and scales far from neutral, NaN behind k_pe",
    ),
    Regime("scaled_up", ("F18",), "q_scale 4, k_scale 0.25"),
    Regime("scaled_down", ("F18",), "q_scale 0.25, k_scale 4"),
    Regime("saturated", ("F18",), "query, latent and k_pe beyond +-448, an infinite k_pe"),
    Regime("rope_large", ("F19",), "rope parts ten times the latent parts, all within the range of E4M3"),
    Regime("small", ("F12",), "activations near 1e-3, so that the norms' eps decides"),
    Regime("outliers", ("F06",), "three activations thousands of times larger than the rest"),
    Regime("zero_row", ("F12", "F20"), "a row of zeros, and k_pe of -0.0: its byte is 0x80"),
    Regime("ties", ("F20",), "k_pe on ties of E4M3 and in its subnormal range, both signs"),
    Regime("page_edges", ("F24",), "first and last places of pages whose size is no power of two"),
    Regime("padding", ("F23", "F45"), "slot -1 at the front, in the middle and at the end"),
    Regime("nan_row", ("F51",), "one row holds NaN in q_a, latent and k_pe: it must stay in that row"),
    Regime("wide_offsets", ("F50",), "pages more than 2**31 bytes apart"),
)

_SCALES = {
    "scaled_up": (4.0, 0.25),
    "scaled_down": (0.25, 4.0),
    "saturated": (0.2929, 0.5),
    "ties": (4.0, 0.5),
    "rope_large": (0.5, 0.25),
    "zero_row": (0.5, 4.0),
}
_ODD_SCALES = (0.2929, 0.7071)


def build(case: Case) -> MlaQueryArguments:
    """Draw the arguments of a case on the CPU."""
    g = generator(case)
    rows, heads, rank = case["rows"], case["heads"], case["rank"]
    nope, rope, latent = case["nope"], case["rope"], case["latent"]
    projected = normal(g, rows, rank + latent + rope + 24)
    projected[:, -24:] = float("nan")
    slot, pages = _slots(g, case.regime, rows, case["page"])
    q_scale, k_scale = _SCALES.get(case.regime, _ODD_SCALES)
    group = case.seed // 100
    a = MlaQueryArguments(
        projected=projected,
        q_norm=(1 + 0.4 * normal(g, rank)).bfloat16(),
        kv_norm=(1 + 0.4 * normal(g, latent)).bfloat16(),
        w_q=shared_weight("mla_w_q", group, heads * (nope + rope), rank, scale=1.2 / rank**0.5),
        w_uk=shared_weight("mla_w_uk", group, heads, nope, latent, scale=1.1 / nope**0.5),
        slot=slot,
        cache=torch.randint(0, 256, (pages, case["page"], latent + rope), generator=g, dtype=torch.uint8),
        query=torch.zeros(rows, heads, latent + rope, dtype=torch.uint8),
        heads=heads,
        q_scale=q_scale,
        k_scale=k_scale,
        eps=4e-5 if case.regime in ("small", "zero_row") else 1e-5,
        free_slot=_free_slot(slot, case["page"], pages),
        wide_pages=case.regime == "wide_offsets",
    )
    _REGIME_CHANGES.get(case.regime, lambda g, a: None)(g, a)
    a.projected = a.projected.bfloat16()
    return a


def _slots(g: Generator, regime: str, rows: int, page: int) -> tuple[Tensor, int]:
    """A cache row for every token, and the number of pages. int64 [row]"""
    if regime == "wide_offsets":  # few pages, the last of them 3 * 2**30 bytes from the first
        return torch.randperm(2 * page, generator=g)[:rows] + 2 * page, 4
    pages = 3 + (2 * rows) // page
    if regime == "page_edges":  # last and first places in turn, each kind in pages of its own order
        pages = 2 + (rows + 1) // 2
        last, first = (torch.randperm(pages - 1, generator=g) + 1 for _ in range(2))
        edges = torch.stack([last * page + page - 1, first * page], 1)
        return edges.flatten()[:rows], pages
    # The very last cache row stays free: it is where an index of -1 ends up.
    slot = torch.randperm((pages - 1) * page - 1, generator=g)[:rows] + page
    if regime == "padding":
        slot[torch.tensor([0, rows // 2, rows - 1])] = -1
    return slot, pages


def _free_slot(slot: Tensor, page: int, pages: int) -> int:
    """A cache row that no token of this step owns, beyond the null page."""
    owned = set(slot.tolist())
    return next(s for s in range(page, pages * page) if s not in owned)


def _saturated(g: Generator, a: MlaQueryArguments) -> None:
    """A fifth of the elements of each kind lie beyond the range."""
    for weight in (a.q_norm, a.kv_norm):
        weight.mul_(300)
    a.part("k_pe").mul_(300)[0, 0] = float("inf")
    a.part("k_pe")[-1, 1] = -float("inf")


def _rope_large(g: Generator, a: MlaQueryArguments) -> None:
    w = a.w_q.reshape(a.heads, a.nope + a.rope, a.rank).clone()
    w[:, a.nope :] *= 10
    a.w_q = w.reshape(-1, a.rank)
    a.part("k_pe").mul_(10)


def _small(g: Generator, a: MlaQueryArguments) -> None:
    a.projected[:, : a.rank + a.latent] *= 2e-3


def _outliers(g: Generator, a: MlaQueryArguments) -> None:
    a.projected[:, outliers(g, a.rank)] *= 2000
    a.projected[:, a.rank + outliers(g, a.latent)] *= 500


def _zero_row(g: Generator, a: MlaQueryArguments) -> None:
    a.projected[a.projected.shape[0] // 2, : a.rank + a.latent] = 0
    a.part("k_pe")[:, ::3] = -0.0


def _ties(g: Generator, a: MlaQueryArguments) -> None:
    """k_pe / k_scale halfway between neighbouring E4M3 values, from the subnormal ones up."""
    grid = points(E4M3)
    between = (grid[1:] + grid[:-1]) / 2
    drawn = between[torch.randint(0, len(between), a.part("k_pe").shape, generator=g)]
    low = 2.0**-10 * torch.randint(-17, 18, drawn.shape, generator=g)  # multiples of half the last spacing
    chosen = torch.where(torch.rand(drawn.shape, generator=g) < 0.3, low.double(), drawn)
    a.part("k_pe").copy_(chosen * a.k_scale)


def _nan_row(g: Generator, a: MlaQueryArguments) -> None:
    row = a.projected[a.projected.shape[0] // 2]
    row[a.rank // 3] = row[a.rank + 1] = row[a.rank + a.latent + 2] = float("nan")


_REGIME_CHANGES = {
    "saturated": _saturated,
    "rope_large": _rope_large,
    "small": _small,
    "outliers": _outliers,
    "zero_row": _zero_row,
    "ties": _ties,
    "nan_row": _nan_row,
}
