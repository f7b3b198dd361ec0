"""MLA query and key insert: q norm, q_b, absorption, E4M3 query, KV insert (operation 3.7 of the subject).

Catches: a wrong norm (eps, mean, weight), a lost rounding or one too many, a lost K tile, the wrong head or
half of a head, scales that are missing, inverted or applied to a part only, a cast that wraps, truncates or
flushes, keys in the wrong page or place, live null slots, 32-bit offsets. Every byte is known but for rare
flips of the BF16 roundings before it. Cannot catch: two rows of one slot (undefined in the subject), the sign
of a stored NaN, ordering against the attention that reads the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Tier
from validation.contracts.mla.query_arguments import MlaQueryArguments
from validation.contracts.mla.query_inputs import REGIMES, build
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16, E4M3, FP32
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction
from validation.numerics.value import Value, accumulate, largest

_SITES = {
    "mla_query.q_norm": BF16,
    "mla_query.q_b": BF16,
    "mla_query.absorbed": BF16,
    "mla_query.query": E4M3,
    "mla_query.kv_norm": BF16,
    "mla_query.cache": E4M3,
}
STOCK = Profile("stock", _SITES, sums=Reduction(chain=256))
SPECIALIZED = Profile(
    "specialized", _SITES, sums=Reduction(chain=256), functions="triton", functions_on_cuda="triton"
)


def reference(ar: Arithmetic, a: MlaQueryArguments) -> dict[str, Value]:
    """Decoded query bytes, and the decoded cache rows of the tokens that have a slot (0 for the others)."""
    mean_square = ar.divide(ar.sum_of_squares(ar.load(a.part("q_a")), -1, keepdim=True), float(a.rank))
    c = ar.round(_normalised(ar, a.part("q_a"), mean_square, a.q_norm, a.eps), "mla_query.q_norm")
    # Head by head: the jumps of c are followed through every product.
    q = ar.stack([ar.matmul(c, w) for w in a.w_q.unflatten(0, (a.heads, -1))], 1)
    q = ar.round(q, "mla_query.q_b")
    absorbed = ar.stack([ar.matmul(q[:, h, : a.nope], a.w_uk[h].T) for h in range(a.heads)], 1)
    absorbed = ar.round(absorbed, "mla_query.absorbed")
    query = _times(ar, ar.cat([absorbed, q[..., a.nope :]], 2), a.q_inverse)
    mean_square = ar.sum_of_squares(ar.load(a.part("kv")), -1, keepdim=True) * (1.0 / a.latent)
    n = ar.round(_normalised(ar, a.part("kv"), mean_square, a.kv_norm, a.eps), "mla_query.kv_norm")
    live = (a.slot >= 0)[:, None]
    return {
        "query": ar.store(query, "mla_query.query"),
        "latent": ar.where(live, ar.store(_times(ar, n, a.k_inverse), "mla_query.cache"), 0.0),
        "k_pe": ar.where(live, _key_bytes(ar, a), 0.0),
    }


def _normalised(ar: Arithmetic, x: Tensor, mean_square: Value, weight: Tensor, eps: float) -> Value:
    return ar.load(x) * ar.rsqrt(mean_square + eps) * ar.load(weight)


# A smooth error is taken to stay within this many of its deviations.
_REACH = 8.0


def _times(ar: Arithmetic, x: Value, inverse: float) -> Value:
    """A rounded value times a number of FP32: one IEEE product, known to the bit wherever the value is.

    Smooth noise is left only near 0, where BF16 is finer than the noise. It counts as jumps here: statistics
    over slices take the error of the store as uniform over its cell, and these all lie in E4M3's cell of 0.
    """
    if not ar.rounds:
        return x * inverse
    product = Value(ar, FP32.round(x.mean * inverse))
    if not ar.noisy or x.variance is None:
        return product
    smooth = x.variance.expand(x.shape) * inverse**2
    jumps = accumulate(smooth, None if x.jump_variance is None else x.jump_variance * inverse**2)
    reach = largest(_REACH * smooth.sqrt(), None if x.jump is None else x.jump * inverse)
    return Value(ar, product.mean, torch.zeros_like(smooth), jumps, reach)


def _key_bytes(ar: Arithmetic, a: MlaQueryArguments) -> Value:
    """k_pe has one product and one cast: exact."""
    product = (a.part("k_pe").float() * a.k_inverse).double()
    return Value(ar, E4M3.round(product) if ar.rounds else product)


def _decoded(stored: Tensor) -> Tensor:
    return stored.contiguous().view(torch.float8_e4m3fn).float()


def inserted(a: MlaQueryArguments) -> Tensor:
    """The cache row of every token, zero bytes for tokens without a slot. u8 [row, byte]"""
    page = a.cache.shape[1]
    slot = a.slot.clamp(min=0)
    found = a.cache[slot // page, slot % page]
    return torch.where((a.slot >= 0)[:, None], found, torch.zeros_like(found))


def touched(a: MlaQueryArguments) -> dict[str, Tensor]:
    """The cache rows of the tokens that have a slot."""
    pages, page, _ = a.cache.shape
    owned = torch.zeros(pages * page, dtype=torch.bool, device=a.cache.device)
    owned[a.slot[a.slot >= 0]] = True
    return {"cache": owned.reshape(pages, page, 1)}


# Four pages of this many bytes reach 3 * 2**30: 32-bit offsets wrap.
_WIDE_STRIDE = 2**30


def strides(a: MlaQueryArguments) -> dict[str, tuple[int, ...]]:
    """Rows and pages with a pitch of their own each; a ``wide`` case spreads the pages."""
    _, page, width = a.cache.shape
    _, heads, _ = a.query.shape
    return {
        "projected": (a.projected.shape[1] + 40, 1),
        "w_q": (a.rank + 32, 1),
        "w_uk": (a.nope * a.latent + 64, a.latent, 1),
        "cache": (_WIDE_STRIDE if a.wide_pages else page * width + 128, width, 1),
        "query": (heads * width + 96, width, 1),
    }


_SMALL = {"rows": 3, "heads": 2, "rank": 328, "nope": 32, "rope": 16, "latent": 80, "page": 32}
_REAL = {"heads": 3, "rank": 1536, "nope": 128, "rope": 64, "latent": 512, "page": 64}


def _case(regime: str, seed: int, **shape: int) -> Case:
    if regime == "page_edges":
        shape = {"page": 24} | shape
    return Case.of("mla_query", regime, seed, **(_SMALL | shape))


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime at small odd sizes, both sides of every batch threshold, heads of real size, one
    rank of TP16. full: the heads of TP8 and TP16 at every prepared batch, every regime at real sizes, and
    three page sizes."""
    found = [_case(r.name, i, rows=3 + i % 3) for i, r in enumerate(REGIMES)]
    found += [_case("typical", 20 + rows, rows=rows) for rows in (1, 5, 6, 16, 17, 33, 66)]
    found += [_case("typical", 70 + rows, rows=rows, heads=12, nope=16, rank=64) for rows in (3, 4)]
    found += [_case("padding", 80, rows=19, page=48), _case("page_edges", 81, rows=9)]
    found += [_case("typical", 82, **(_REAL | {"rows": 2})), _case("small", 83, **(_REAL | {"rows": 7}))]
    if tier == "full":
        for number, heads in enumerate((12, 6)):
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
                size = _REAL | {"rows": rows, "heads": heads, "page": (32, 64, 48)[rows % 3]}
                found.append(_case("typical", 100 * (number + 1) + rows, **size))
            for i, regime in enumerate(REGIMES):
                size = _REAL | {"rows": (8, 5)[number], "heads": heads}
                size |= {"page": 48} if regime.name == "page_edges" else {}
                found.append(_case(regime.name, 100 * (number + 1) + 80 + i, **size))
    return tuple(found)


CONTRACT = Contract(
    name="mla_query",
    summary="MLA query: norm, q_b, absorption, E4M3 query, key insert",
    arguments=MlaQueryArguments,
    outputs=(
        Output(
            "query",
            ("row", "head", "column"),
            "e4m3",
            lambda a: _decoded(a.query),
            slices=(("row",), ("head",), ("row", "column/64")),
        ),
        Output(
            "latent",
            ("row", "column"),
            "e4m3",
            lambda a: _decoded(inserted(a)[:, : a.latent]),
            slices=(("row",),),
        ),
        Output("k_pe", ("row", "column"), "fp32", lambda a: _decoded(inserted(a)[:, a.latent :]), exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=touched,
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
