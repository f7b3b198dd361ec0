"""Vocabulary-parallel embedding: gather on every rank, sum over ranks (operation 3.1 of the subject).

Catches: a shard's bounds off by one, a token owned by two ranks or by none, ids that are negative, in the
padding of the vocabulary or beyond 32 bits, rows that nobody owns left unwritten, -0.0 that survives the sum,
a rank whose copy differs, offsets beyond 2**31, ids read with the wrong width or stride. Cannot catch: the
order of the ranks' sum (one addend is not zero), and ordering faults of a real all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.regimes import generator, shared_weight, uniform
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

HIDDEN = 7168
WHOLE_SHARD = 20480  # tokens of one rank at TP8


@dataclass
class EmbeddingArguments:
    """out[every rank, t] = E[id_t] where 0 <= id_t < org_vocab, else a row of +0.

    ``weight[r]`` holds rows r * shard to (r + 1) * shard - 1 of E; rows from ``org_vocab`` on pad the
    vocabulary. The step's ids are ``ids``, or ``ids32`` where ``narrow``; the other tensor must not be read.
    Rows are summed over ranks, which makes +0 of -0.0; a single rank copies. ``strided`` and ``wide_rows``
    ask the arena for ids with gaps, and for rows of E 2**30 elements apart.
    """

    ids: Tensor = read("row", "i64")
    ids32: Tensor = read("row", "i32")
    weight: Tensor = read("rank token column", "bf16")
    out: Tensor = write("rank row column", "bf16")
    org_vocab: int = 0
    narrow: bool = False
    strided: bool = False
    wide_rows: bool = False

    @property
    def tokens(self) -> Tensor:
        """The ids of the step, int64 or int32 [row]."""
        return self.ids32 if self.narrow else self.ids


_SITES = {"embedding.out": BF16}
STOCK = Profile("stock", _SITES)
SPECIALIZED = Profile("specialized", _SITES, functions="triton", functions_on_cuda="triton")

REGIMES = (
    Regime("typical", ("F01", "F05", "F08", "F09", "F16", "F48"), "ids over all shards, some of them twice"),
    Regime("edges", ("F24", "F48"), "the first and last row of every shard, and of the vocabulary"),
    Regime(
        "invalid",
        ("F04", "F08", "F16", "F23", "F45", "F50"),
        "-1, other negative ids, the padding of the vocabulary, ids beyond it and beyond 32 bits",
    ),
    Regime("poison", ("F01", "F51"), "every row that no id names, and row 0 of every shard, is NaN"),
    Regime("extreme", ("F06",), "values from the smallest subnormal to the largest finite BF16"),
    Regime("negative_zero", ("F36",), "-0.0 in half the elements: the sum over ranks makes it +0"),
    Regime("nan_row", ("F51",), "one row holds a NaN and infinities: they must stay in that row"),
    Regime("narrow", ("F53",), "int32 ids"),
    Regime("strided", ("F01",), "ids with gaps between them"),
    Regime("wide_offsets", ("F50",), "rows of the table 2**30 elements apart: row 2 is beyond 2**31"),
)

# A row of the table this many elements after the one before: row 2 starts at 2**31.
_WIDE_STRIDE = 2**30


def build(case: Case) -> EmbeddingArguments:
    """Draw the table and the ids on the CPU."""
    g = generator(case)
    rows, ranks, shard, width = case["rows"], case["ranks"], case["shard"], case["width"]
    padded, org = ranks * shard, case["org"]
    tokens = _tokens(g, case.regime, rows, shard, org, padded)
    table = shared_weight("embedding", case.seed // 100, padded, width).clone()
    if padded * width <= 1 << 22:
        table[uniform(g, padded, width) < 0.02] = -0.0
    _regime(g, case.regime, table, tokens, shard, org)
    table[org:] = float("nan")
    narrow = case.regime == "narrow"
    # What this step does not use names a row that exists, but another one.
    unused = (tokens.clamp(0, org - 1) + 1) % org
    return EmbeddingArguments(
        ids=unused if narrow else tokens,
        ids32=(tokens if narrow else unused).to(torch.int32),
        weight=table.reshape(ranks, shard, width),
        out=torch.zeros(ranks, rows, width, dtype=torch.bfloat16),
        org_vocab=org,
        narrow=narrow,
        strided=case.regime == "strided",
        wide_rows=case.regime == "wide_offsets",
    )


def _tokens(g: Generator, regime: str, rows: int, shard: int, org: int, padded: int) -> Tensor:
    """The ids of a step. int64 [row]"""
    tokens = torch.randint(0, org, (rows,), generator=g)
    tokens[rows // 2] = tokens[0]
    if regime == "edges":
        starts = torch.arange(0, org, shard)
        edges = torch.cat([starts, (starts + shard - 1).clamp(max=org - 1), starts[1:] + 1])
        edges = edges[torch.randperm(len(edges), generator=g)]
        edges = torch.cat([torch.tensor([org - 1, 0]), edges])[:rows].clamp(max=org - 1)
        tokens[: len(edges)] = edges
    if regime == "invalid":
        wrapped = 2**32 + int(tokens[0])
        strange = [-1, org, wrapped, padded - 1, -2, padded, -shard, -(2**32) + 1, padded + 5, 2**40]
        found = torch.tensor(strange)[: max(rows - 1, 1)]
        tokens[torch.randperm(rows, generator=g)[: len(found)]] = found
    if regime == "wide_offsets":
        tokens[0] = org - 1
    return tokens


def _regime(g: Generator, regime: str, table: Tensor, tokens: Tensor, shard: int, org: int) -> None:
    """Make the table [token, column] what the regime says, in place."""
    width = table.shape[1]
    named = tokens[(tokens >= 0) & (tokens < org)]
    if regime == "poison":
        kept = table[named].clone()
        table[:] = float("nan")
        table[named] = kept
    if regime == "extreme":
        exponents = torch.randint(-133, 128, (org, width), generator=g).double()
        signs = torch.where(uniform(g, org, width) < 0.5, -1.0, 1.0)
        table[:org] = (torch.exp2(exponents) * signs).bfloat16()
    if regime == "negative_zero":
        table[uniform(g, *table.shape) < 0.5] = -0.0
        table[named[0]] = -0.0
    if regime == "nan_row":
        spoiled = table[named[len(named) // 2]]
        spoiled[width // 3], spoiled[0], spoiled[width - 1] = float("nan"), float("inf"), -float("inf")


def reference(ar: Arithmetic, a: EmbeddingArguments) -> dict[str, Value]:
    """Each rank's rows, summed over ranks; every rank ends with a copy."""
    ranks, shard, _ = a.weight.shape
    tokens = a.tokens.long()
    shards = []
    for rank in range(ranks):
        local = tokens - rank * shard
        mine = (tokens >= 0) & (tokens < a.org_vocab) & (local >= 0) & (local < shard)
        rows = ar.load(a.weight[rank][local.clamp(0, shard - 1)])
        shards.append(ar.where(mine[:, None], rows, 0.0))
    stacked = ar.stack(shards, 0)
    # At most one addend is not zero, so the sum is known to the bit in every order. A single rank copies.
    total = stacked[0] if ranks == 1 else Value(ar, stacked.mean.sum(0))
    copies = ar.store(total, "embedding.out").unsqueeze(0).map(lambda p: p.expand(ranks, *p.shape[1:]))
    return {"out": copies}


def strides(a: EmbeddingArguments) -> dict[str, tuple[int, ...]]:
    """Every rank's shard and copy, and every row, with a pitch of its own."""
    _, shard, width = a.weight.shape
    rows = a.tokens.shape[0]
    table = ((width + 16) * shard + 256, width + 16, 1)
    if a.wide_rows:
        table = (width + 16, _WIDE_STRIDE, 1)
    gap = 3 if a.strided else 1
    return {
        "ids": (gap,),
        "ids32": (gap,),
        "weight": table,
        "out": ((width + 48) * rows + 320, width + 48, 1),
    }


def _case(regime: str, seed: int, **shape: int) -> Case:
    base = {"rows": 4, "ranks": 8, "shard": 24, "width": 72}
    sizes = base | shape
    # By default the last shard is partly, and with 16 ranks the very last wholly, padding.
    sizes.setdefault(
        "org", sizes["ranks"] * sizes["shard"] - (sizes["shard"] + 5 if sizes["ranks"] > 8 else 5)
    )
    return Case.of("embedding", regime, seed, **sizes)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime at 8 and 16 ranks, one and three ranks, both sides of the 64 rows that the subject
    prepares (above, too, with ids of either width and stride, far rows, and one rank), odd widths. full: the
    subject's width at every prepared batch for TP8 and TP16 (shards of 256 tokens: the table is not what
    costs), and one whole shard."""
    found = []
    for i, regime in enumerate(REGIMES):
        if regime.name == "wide_offsets":
            for rows in (3, 66):
                found.append(_case(regime.name, 87 + rows, rows=rows, ranks=2, shard=4, width=40, org=7))
            continue
        found.append(_case(regime.name, i, rows=11))
        found.append(_case(regime.name, 20 + i, rows=5 + i % 3, ranks=16, width=40))
    found += [_case("negative_zero", 40, ranks=1, shard=30), _case("edges", 41, ranks=3, rows=9, shard=17)]
    found += [_case("typical", 50 + rows, rows=rows, width=40) for rows in (1, 2, 64)]
    found += [_case("typical", 60, rows=65, width=40), _case("invalid", 61, rows=130, ranks=3, width=33)]
    found += [_case("negative_zero", 62, rows=66, ranks=1, width=33, org=21)]
    found += [
        _case(regime, 63 + i, rows=66 + i, ranks=3, width=33)
        for i, regime in enumerate(("narrow", "strided", "nan_row", "poison"))
    ]
    found += [_case("invalid", 70, rows=4, ranks=8, shard=16, width=HIDDEN, org=127)]
    if tier == "full":
        for ranks in (8, 16):
            shape = {"ranks": ranks, "shard": 256, "width": HIDDEN}
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
                found.append(_case("typical", 100 * ranks + rows, rows=rows, **shape))
            for i, regime in enumerate(REGIMES):
                if regime.name != "wide_offsets":
                    found.append(_case(regime.name, 100 * ranks + 70 + i, rows=16, **shape))
            found.append(
                _case("wide_offsets", 95, rows=3, ranks=ranks, shard=4, width=HIDDEN, org=4 * ranks - 1)
            )
        found.append(_case("edges", 9000, rows=8, ranks=1, shard=WHOLE_SHARD, width=HIDDEN))
    return tuple(found)


CONTRACT = Contract(
    name="embedding",
    summary="vocabulary-parallel embedding",
    arguments=EmbeddingArguments,
    outputs=(Output("out", ("rank", "row", "column"), "bf16", lambda a: a.out, exact=True),),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
