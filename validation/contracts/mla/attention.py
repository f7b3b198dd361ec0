"""Latent attention over a paged FP8 cache: plain decode and q-token verify (operation 3.8 of the subject).

Catches: a wrong page, position, length or causal bound; splits merged with the wrong base, without the
maximum or from stale partials; a scale missing, inverted or on the wrong side; weights or sums in low
precision; positions read that no request owns. Cannot catch: a different but honest split of the keys, by
design; FP8 weights of the value sum, which some libraries have and no profile here declares; ordering between
kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Tier
from validation.contracts.mla.attention_arguments import WIDTH, MlaAttentionArguments
from validation.contracts.mla.attention_inputs import REGIMES, build
from validation.contracts.mla.latent import attended, known_to_the_bit
from validation.contracts.mla.rows import latent_rows, row_strides
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

_SITES = {"mla_attention.out": BF16}
STOCK = Profile("stock", _SITES)
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"mla_attention.softmax": "two"},
)


# A library that takes the FP8 cache apart on loading; see ``library``.
LIBRARY = Profile(
    "library",
    _SITES,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"mla_attention.operands": "bf16"},
)


def reference(ar: Arithmetic, a: MlaAttentionArguments) -> dict[str, Value]:
    """Latent rows by request and token. [request, token, head, 512]; 0 for padding requests."""
    base = ar.algebra("mla_attention.softmax", "natural")
    query = a.query.reshape(-1, a.tokens, *a.query.shape[1:])
    scale, key_scale = a.softmax_scale, None
    if ar.algebra("mla_attention.operands", "bytes") == "bf16":
        scale, key_scale = a.softmax_scale / a.k_scale, a.k_scale
    rows = []
    for request, length in enumerate(a.lengths.tolist()):
        keys = keys_of(a.cache, a.block_table[request], length)
        seen = (length - a.tokens + 1 + torch.arange(a.tokens, device=keys.device)).clamp(min=0)
        latent, _, largest = attended(
            ar, query[request], keys, seen if length else 0 * seen, scale, base, key_scale
        )
        scaled = latent * a.k_scale if key_scale is None else latent
        rows.append(known_to_the_bit(ar, scaled, largest))
    out = ar.store(ar.stack(rows, 0), "mla_attention.out")
    return {"out": ar.where((a.lengths > 0)[:, None, None, None], out, 0.0)}


def keys_of(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The first ``length`` keys of one request (at least one row, which nobody sees). Bytes [key, 576]"""
    page = cache.shape[1]
    pages = max(1, -(-length // page))
    if not length:
        return torch.zeros(1, cache.shape[2], dtype=cache.dtype, device=cache.device)
    return cache[table[:pages].long()].reshape(pages * page, -1)[:length]


def _view_out(a: MlaAttentionArguments) -> Tensor:
    """Rows by request and token; rows of padding requests may hold anything."""
    out = a.out.reshape(-1, a.tokens, *a.out.shape[1:])
    return torch.where((a.lengths > 0)[:, None, None, None], out, torch.zeros_like(out))


def strides(a: MlaAttentionArguments) -> dict[str, tuple[int, ...]]:
    """Rows and tables with a pitch; pages with a hole behind each, far apart in a ``wide`` case."""
    pages = a.block_table.shape[1]
    row = a.cache.shape[1] * WIDTH
    return {
        "cache": (_WIDE_STRIDE if a.wide_pages else row + 1152, WIDTH, 1),
        "block_table": (pages + 3, 1),
    } | row_strides(a.query.shape[1])


# Page 2 of pages 2**30 bytes apart begins at 2**31: 32-bit offsets wrap.
_WIDE_STRIDE = 2**30


def _case(regime: str, seed: int, **shape: int) -> Case:
    base = {"requests": 3, "tokens": 1, "heads": 12, "page": 32, "length": 150}
    return Case.of("mla_attention", regime, seed, **(base | shape))


# (requests, tokens): every number of rows of note, plain and verify.
_BATCHES = tuple((n, 1) for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64))
_VERIFY = ((1, 2), (1, 8), (2, 3), (2, 4), (4, 4), (8, 8), (16, 4), (32, 2))


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime, both sides of the dispatch thresholds (15 and 16 rows, 1 and more tokens), odd
    heads. full: TP8 and TP16 heads at every prepared batch, lengths to 8,192, one of 32,768, every regime."""
    found = [_case(regime.name, i, length=150 + i) for i, regime in enumerate(REGIMES)]
    found += [
        _case("typical", 20, requests=1, length=333, heads=6, page=64),
        _case("typical", 21, requests=15, length=70, heads=1),
        _case("typical", 22, requests=16, length=280, heads=1),
        _case("typical", 23, requests=2, tokens=4, heads=12),
        _case("typical", 24, requests=1, tokens=8, heads=6, page=64),
        _case("boundaries", 25, requests=8, tokens=3, heads=2),
        _case("boundaries", 26, requests=8, heads=3, page=64),
        _case("unequal", 27, requests=2, tokens=2, heads=5, length=400),
        _case("poisoned", 28, requests=2, tokens=3, heads=2),
        _case("padding", 29, requests=4, tokens=2, heads=6),
        _case("flat", 30, requests=1, heads=6, length=700),
        _case("unequal", 31, requests=1, heads=3, length=800),  # splits of several blocks of keys
        _case("unequal", 32, requests=16, heads=12, length=140),
        _case("typical", 33, requests=1, tokens=8, heads=12, length=90),
        _case("peaked", 35, requests=2, heads=3, length=300),
        # The first row sees none of the keys behind the last whole block.
        _case("typical", 34, requests=1, tokens=4, heads=2, length=259),
    ]
    if tier == "full":
        for number, heads in enumerate((12, 6)):
            for requests, tokens in _BATCHES + _VERIFY:
                longest = 32768 if requests == tokens == 1 else 8192
                size = {"requests": requests, "tokens": tokens, "heads": heads, "page": 64}
                found.append(_case("typical", 100 + 100 * number + len(found), **size, length=longest))
            for i, regime in enumerate(REGIMES):
                size = {"requests": 4 + 4 * (i % 2), "tokens": 1 + 3 * (i % 3 == 0), "heads": heads}
                if regime.name == "wide_offsets":
                    size["requests"] = 3  # every page is a gigabyte of address space
                found.append(_case(regime.name, 300 + 100 * number + i, **size, length=2000 + i))
    return tuple(found)


CONTRACT = Contract(
    name="mla_attention",
    summary="attention over a paged FP8 cache in latent space",
    arguments=MlaAttentionArguments,
    outputs=(latent_rows(_view_out),),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED, "library": LIBRARY},
    strides=strides,
)
