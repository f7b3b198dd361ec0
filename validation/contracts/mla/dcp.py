"""Latent attention with its cache sharded over ranks, merged by log-sum-exp (operation 3.10 of the subject).

Catches: wrong ownership, local taken for global lengths, causal bounds by local position, a merge in the
wrong base, without the maximum or with a missing or stale shard, a row without local keys that is not finite
or has weight, heads handed to the wrong owner. Cannot catch: anything of the mailboxes (one process plays all
ranks); a different but honest split of the keys within a rank, by design.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Tier
from validation.contracts.mla.attention import keys_of
from validation.contracts.mla.attention_arguments import WIDTH
from validation.contracts.mla.dcp_arguments import MlaDcpArguments, owned
from validation.contracts.mla.dcp_inputs import REGIMES, build
from validation.contracts.mla.latent import attended, known_to_the_bit
from validation.contracts.mla.rows import latent_rows, row_strides
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value, accumulate

# Stock rounds each rank's corrected row before they are added; the specialised merge keeps FP32 (table 2.3).
_SPECIALIZED = {"mla_dcp.row": BF16, "mla_dcp.corrected": None, "mla_dcp.out": BF16}
_OPTIONAL = frozenset({"mla_dcp.corrected"})
STOCK = Profile("stock", {**_SPECIALIZED, "mla_dcp.corrected": BF16}, _OPTIONAL)
SPECIALIZED = Profile(
    "specialized",
    _SPECIALIZED,
    _OPTIONAL,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"mla_dcp.rank_sum": "rank"},
)


# A merge that subtracts the logarithm of the whole sum where others divide by the sum: its weights are off
# by the rounding of that logarithm, as many units of FP32 as the logarithm has.
LIBRARY = replace(
    SPECIALIZED, name="library", algebra={**SPECIALIZED.algebra, "mla_dcp.weights": "logarithm"}
)


def bounds(a: MlaDcpArguments) -> Tensor:
    """How many global positions each row sees; 0 for padding. int64 [request, token]"""
    tokens = torch.arange(a.tokens, device=a.totals.device)
    seen = a.totals.long()[:, None] - a.tokens + 1 + tokens
    return torch.where(a.totals[:, None] > 0, seen, 0).clamp(min=0)


def reference(ar: Arithmetic, a: MlaDcpArguments) -> dict[str, Value]:
    """Merged latent rows of all heads. [request, token, head, 512]; 0 for padding requests."""
    query = a.query.reshape(-1, a.tokens, *a.query.shape[1:])
    visible = bounds(a)
    seen = torch.stack([owned(visible, rank, a.ranks, a.interleave) for rank in range(a.ranks)])
    merged = []
    for request in range(query.shape[0]):
        rows, sums = [], []
        for rank in range(a.ranks):
            keys = keys_of(a.cache[rank], a.block_table[rank, request], int(a.lengths[rank, request]))
            latent, log_sum, _ = attended(
                ar, query[request], keys, seen[rank, request], a.softmax_scale, "two"
            )
            rows.append(ar.round(latent * a.k_scale, "mla_dcp.row"))
            sums.append(log_sum)
        merged.append(_merged(ar, ar.stack(rows, 0), ar.stack(sums, 0), (seen[:, request] > 0)[..., None]))
    out = ar.store(ar.stack(merged, 0), "mla_dcp.out")
    return {"out": ar.where((a.totals > 0)[:, None, None, None], out, 0.0)}


def _merged(ar: Arithmetic, rows: Value, log_sums: Value, present: Tensor) -> Value:
    """sum_s 2**lse_s row_s / sum_s 2**lse_s over the ranks that see a key. [token, head, 512]

    ``rows`` [rank, token, head, 512], ``log_sums`` [rank, token, head], ``present`` [rank, token, 1].
    """
    top = torch.where(present, log_sums.mean, -torch.inf).amax(0)
    top = torch.where(torch.isneginf(top), 0.0, top)
    weights = ar.where(present, ar.exp2(log_sums - Value(ar, top)), 0.0)
    alive = present.any(0)
    if ar.profile is not None and ar.profile.sites["mla_dcp.corrected"] is not None:
        total = ar.where(alive, ar.sum(weights, 0), 1.0)
        corrected = ar.round(rows * (weights / total).unsqueeze(-1), "mla_dcp.corrected")
        largest = weights.mean.amax(0) / total.mean
        return known_to_the_bit(ar, ar.rank_sum(corrected, 0, "mla_dcp.rank_sum"), largest)
    known = Value(ar, weights.mean)
    total = ar.where(alive, ar.sum(known, 0), 1.0)
    largest = weights.mean.amax(0) / total.mean
    terms = ar.round(rows * (known / total).unsqueeze(-1), "mla_dcp.corrected")
    out = ar.rank_sum(terms, 0, "mla_dcp.rank_sum")
    if not ar.noisy or weights.variance is None:
        return out
    # A weight's error moves its row and the sum of weights alike: it enters with the row minus the result.
    share = (weights.variance / (total.mean * total.mean)).unsqueeze(-1)
    away = rows.mean - out.mean
    variance = accumulate(out.variance, (share * away * away).sum(0))
    if ar.algebra("mla_dcp.weights", "quotient") == "logarithm":
        logarithm = ar.log2(Value(ar, total.mean)) + Value(ar, top)
        off = ar.exp2(Value(ar, torch.zeros_like(logarithm.mean), logarithm.variance)).variance
        variance = accumulate(variance, None if off is None else off.unsqueeze(-1) * out.mean * out.mean)
    return known_to_the_bit(ar, Value(ar, out.mean, variance, out.jump_variance, out.jump), largest)


def _view_out(a: MlaDcpArguments) -> Tensor:
    return a.out.reshape(-1, a.tokens, *a.out.shape[1:])


def strides(a: MlaDcpArguments) -> dict[str, tuple[int, ...]]:
    """Rows, tables and pages with a pitch each; the ranks' caches far apart in a ``wide`` case."""
    width = a.block_table.shape[2]
    page = a.cache.shape[2] * WIDTH + 1152
    rank = a.cache.shape[1] * page + 2304
    table = width + 3
    return {
        "cache": (_WIDE_STRIDE if a.wide_ranks else rank, page, WIDTH, 1),
        "block_table": (a.block_table.shape[1] * table + 5, table, 1),
        "lengths": (a.lengths.shape[1] + 5, 1),
    } | row_strides(a.query.shape[1])


_WIDE_STRIDE = 2**31  # rank 1 begins beyond 32-bit offsets


def _case(regime: str, seed: int, **shape: int) -> Case:
    base = {"requests": 3, "tokens": 1, "ranks": 4, "heads": 2, "page": 32, "length": 300, "interleave": 1}
    return Case.of("mla_dcp", regime, seed, **(base | shape))


_BATCHES = tuple((n, 1) for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64))
_VERIFY = ((1, 2), (1, 8), (2, 4), (4, 4), (16, 4))


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime on four ranks, both interleaves, 8, 16 and an odd number of ranks, verify rows
    without local keys. full: TP8 and TP16 with all 96 heads at every prepared batch, every regime."""
    found = [
        _case(r.name, i, length=300 + i, **({"ranks": 2} if r.name == "wide_offsets" else {}))
        for i, r in enumerate(REGIMES)
    ]
    found += [
        _case("typical", 20, ranks=8, heads=12, requests=1, length=400),
        _case("typical", 21, ranks=16, heads=6, requests=1, length=300),
        _case("typical", 22, ranks=3, heads=5, requests=2, interleave=4),
        _case("typical", 23, ranks=5, heads=1, requests=2, tokens=4, interleave=4),
        _case("typical", 24, ranks=2, heads=4, requests=9, length=50),
        _case("short", 25, ranks=8, heads=1, requests=3, tokens=3),
        _case("short", 26, ranks=3, heads=3, requests=6, tokens=2, interleave=4),
        _case("unequal", 27, ranks=8, heads=1, requests=2, tokens=2),
        _case("boundaries", 28, ranks=2, requests=6, tokens=2, page=64),
        _case("padding", 29, ranks=3, requests=4, tokens=3),
    ]
    if tier == "full":
        for number, (ranks, heads) in enumerate(((8, 12), (16, 6))):
            size = {"ranks": ranks, "heads": heads, "page": 64}
            for requests, tokens in _BATCHES + _VERIFY:
                shape = {"requests": requests, "tokens": tokens, "interleave": 1 + 3 * (requests % 2)}
                found.append(_case("typical", 100 + 100 * number + len(found), **size, **shape, length=4096))
            for i, regime in enumerate(REGIMES):
                few = {"ranks": 2, "heads": heads} if regime.name == "wide_offsets" else {}
                shape = {"requests": 4, "tokens": 1 + i % 3, "length": 2000 + i} | few
                found.append(_case(regime.name, 300 + 100 * number + i, **(size | shape)))
    return tuple(found)


CONTRACT = Contract(
    name="mla_dcp",
    summary="latent attention over a sharded cache, merged by log-sum-exp",
    arguments=MlaDcpArguments,
    outputs=(latent_rows(_view_out),),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED, "library": LIBRARY},
    strides=strides,
)
