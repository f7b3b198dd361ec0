"""L2 prefetch of weight ranges ahead of the operation that reads them (operation 3.21 of the subject).

A prefetch has no result. What is judged: how many bytes of each range the controller decides to fetch, that
no bit of any tensor changes, and that the small product which reads the weights afterwards is right to the
bit. Weights and activations are small integers, so its sums are exact in every order.

Catches: a prefetch that writes, a cap, batch, point or parallelism taken wrongly, tails and empty ranges, a
consumer of other weights or of bytes beyond a range, offsets beyond 2**31. Cannot catch: whether anything
reached L2, a fetch beyond a range (it has no effect), and a side stream that is not joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case, Contract, Output, Regime, Tier, read, write
from validation.contracts.regimes import generator
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

Point = Literal["oproj_down", "attention_moe", "next_attention"]
POINTS: tuple[Point, ...] = ("oproj_down", "attention_moe", "next_attention")
GRANULE = 16  # bytes: a range is fetched in whole granules from its start
CHUNK = 16384  # bytes one thread asks for at once
MIB = 1 << 20
ELEMENT = 2  # bytes of a weight


@dataclass
class PrefetchArguments:
    """Fetch the ranges of one prefetch point, then out[range] = bf16(sum_j x[j] * weights[order[range], j]).

    Weight w holds ``sizes[w]`` elements; what follows in its row is not its own and must not be read, nor any
    weight that ``order`` (the order of consumption) does not name. ``planned[range]``: bytes to fetch.
    ``batch`` rows of the step, ``ranks`` of tensor parallelism, ``mla``: the layer's attention is MLA, not
    KDA. ``unit``: bytes that the caps count in (1 MiB in the subject). ``wide_rows`` asks the arena for
    weights 2**30 elements apart.
    """

    weights: Tensor = read("weight element", "bf16")
    sizes: Tensor = read("weight", "i64")
    order: Tensor = read("range", "i64")
    x: Tensor = read("element", "bf16")
    planned: Tensor = write("range", "i64")
    out: Tensor = write("range", "bf16")
    point: Point = "next_attention"
    batch: int = 1
    ranks: int = 8
    mla: bool = False
    unit: int = MIB
    wide_rows: bool = False


_SITES = {"prefetch.out": BF16}
# The stock step has no controller: nothing is fetched, and the product must come out the same.
STOCK = Profile("stock", _SITES, algebra={"prefetch.controller": "absent"})
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    functions="triton",
    functions_on_cuda="triton",
    algebra={"prefetch.controller": "present"},
)

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F06", "F08", "F09", "F16", "F53"),
        "ranges of odd sizes in permuted order",
    ),
    Regime(
        "tails", ("F04", "F05", "F09", "F24"), "sizes around whole granules of 16 bytes and chunks of 16 KiB"
    ),
    Regime("empty", ("F08", "F16"), "ranges of no bytes at the start, between others and at the end"),
    Regime("capped", ("F05", "F16", "F24", "F53"), "the cap ends within a range, or before the last"),
    Regime(
        "special_bits", ("F09", "F36", "F51"), "-0.0 in the weights, signalling NaN in what is not theirs"
    ),
    Regime("wide_offsets", ("F50",), "weights 2**30 elements apart: weight 2 is beyond 2**31"),
)


def build(case: Case) -> PrefetchArguments:
    """Draw weights, ranges and activations on the CPU."""
    g = generator(case)
    count, longest = case["weights"], case["longest"]
    sizes = _sizes(g, case.regime, count, longest)
    order = torch.randperm(count, generator=g)[: max(count - 1, 1)]
    if case.regime == "wide_offsets":
        order = torch.tensor([2, 0])
    most_weight, most_x = _MOST if longest <= _SHORT else _MOST_LONG
    weights = _integers(count, longest, most_weight, case.seed // 100).clone()
    x = _integers(1, longest, most_x, case.seed // 100)[0].clone()
    if case.regime == "special_bits":
        weights[weights == 0] = -0.0
    # A first product that is not 0: the sign of a sum of nothing but -0.0 would be anybody's.
    weights[:, 0], x[0] = 3.0, 1.0
    beyond = torch.arange(longest)[None] >= sizes[:, None]
    unread = torch.ones(count, dtype=torch.bool)
    unread[order] = False
    weights.view(torch.int16)[beyond | unread[:, None]] = 0x7FA5
    return PrefetchArguments(
        weights=weights,
        sizes=sizes,
        order=order,
        x=x,
        planned=torch.zeros(len(order), dtype=torch.int64),
        out=torch.zeros(len(order), dtype=torch.bfloat16),
        point=POINTS[case["point"]],
        batch=case["batch"],
        ranks=case["ranks"],
        mla=bool(case["mla"]),
        unit=case["unit"],
        wide_rows=case.regime == "wide_offsets",
    )


def _sizes(g: Generator, regime: str, count: int, longest: int) -> Tensor:
    """Elements of each weight. int64 [weight]"""
    sizes = torch.randint(longest // 2, longest, (count,), generator=g) | 1
    sizes = sizes.clamp(max=longest)
    if regime == "tails":
        granule, chunk = GRANULE // ELEMENT, CHUNK // ELEMENT
        tails = torch.tensor([chunk + 1, chunk, chunk - 1, granule - 1, granule, granule + 1, 1])
        sizes = tails.repeat(-(-count // len(tails)))[:count].clamp(max=longest)
    if regime == "empty":
        sizes[0::2] = 0
    return sizes


# Largest weights and activations, so that FP32 holds every partial sum: ranges of up to _SHORT elements have
# products and sums that BF16 does not hold, longer ones sums that it does not.
_SHORT, _MOST, _MOST_LONG = 8300, (60, 30), (4, 3)


@lru_cache(maxsize=4)
def _integers(rows: int, columns: int, most: int, group: int) -> Tensor:
    """Whole numbers from -most to most + 1, BF16. Must not be modified.

    Their mean of 1/2 makes sums that BF16 has to round, yet 23 million products of -4..5 and -3..4 stay below
    2**24."""
    g = generator(Case.of("prefetch", "integers", group, rows=rows, columns=columns, most=most))
    return torch.randint(-most, most + 2, (rows, columns), generator=g, dtype=torch.int8).bfloat16()


def cap_of(point: str, batch: int, ranks: int, mla: bool) -> int | None:
    """What the controller does at a point: None (nothing is fetched), 0 (whole ranges), or a cap in units.

    Source: the subject's operation 3.21 (its RT/prefetch.py).
    """
    if point == "oproj_down":
        return 0 if 3 <= batch <= 8 else None
    if point == "attention_moe":
        return 0 if ranks == 8 and (8 if mla else 5) <= batch <= 8 else None
    if batch > 8:
        return None
    if ranks == 16:
        return 1024
    return {1: 96, 2: 96, 3: 96, 8: 32}.get(batch, 64)


def planned_bytes(a: PrefetchArguments) -> Tensor:
    """Bytes to fetch of each range, in order: whole granules, until the cap is spent. int64 [range]"""
    units = cap_of(a.point, a.batch, a.ranks, a.mla)
    sizes = [int(size) * ELEMENT for size in a.sizes[a.order].tolist()]
    if units is None:
        return torch.zeros(len(sizes), dtype=torch.int64)
    left = units * a.unit if units else sum(sizes)
    planned = []
    for size in sizes:
        planned.append(min(size, left) // GRANULE * GRANULE)
        left -= planned[-1] if units else 0
    return torch.tensor(planned, dtype=torch.int64)


def reference(ar: Arithmetic, a: PrefetchArguments) -> dict[str, Value]:
    """The bytes that the controller decides to fetch, and the product that reads the weights afterwards."""
    planned = planned_bytes(a).to(a.x.device)
    if ar.algebra("prefetch.controller", "present") == "absent":
        planned = torch.zeros_like(planned)
    sums = []
    for number in a.order.tolist():
        size = int(a.sizes[number])
        # Whole numbers whose partial sums FP32 holds: exact in every order.
        sums.append(Value(ar, a.weights[number, :size].double() @ a.x[:size].double()))
    return {
        "planned": Value(ar, planned.double()),
        "out": ar.store(ar.stack(sums, 0), "prefetch.out"),
    }


# A weight this many elements after the one before: weight 2 starts at 2**31.
_WIDE_STRIDE = 2**30


def strides(a: PrefetchArguments) -> dict[str, tuple[int, ...]]:
    """Weights with a pitch that keeps their starts on 16 bytes, as the subject requires."""
    dense = -(-a.weights.shape[1] // 64) * 64 + 192
    return {"weights": (_WIDE_STRIDE if a.wide_rows else dense, 1)}


def _case(regime: str, seed: int, **shape: int) -> Case:
    base = {"ranks": 8, "batch": 1, "point": 2, "mla": 0, "weights": 5, "longest": 3000, "unit": 64}
    return Case.of("prefetch", regime, seed, **(base | shape))


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime, every point on both sides of each of its batches at TP8 and TP16, both kinds of
    attention. full: weights of one TP16 layer with the subject's caps in MiB at every prepared batch."""
    found = [_case(r.name, i, batch=1 + 7 * (i % 2)) for i, r in enumerate(REGIMES[:-1])]
    found.append(_case("wide_offsets", 9, weights=3, longest=700))
    found += [_case("tails", 10 + n, weights=7, longest=8300, point=n, batch=8, unit=1 << 20) for n in (0, 2)]
    for batch in (1, 2, 3, 4, 5, 7, 8, 9, 16):
        for point in range(3):
            ranks = 8 if (batch + point) % 4 else 16
            found.append(
                _case("capped", 20 + batch, batch=batch, point=point, ranks=ranks, longest=900, unit=37)
            )
    found += [_case("typical", 50 + batch, batch=batch, point=1, mla=1, longest=600) for batch in (7, 8, 9)]
    found.append(_case("typical", 62, batch=8, point=1, mla=1, ranks=16, longest=600))
    found += [_case("capped", 72 + n, batch=9, ranks=(8, 16)[n], longest=900, unit=37) for n in (0, 1)]
    found += [_case("typical", 60 + n, batch=6, point=1, ranks=(8, 16)[n], longest=600) for n in (0, 1)]
    found += [
        _case("capped", 70, batch=8, ranks=16, unit=7),
        _case("capped", 71, weights=1, batch=4, unit=64),
    ]
    if tier == "full":
        # The longest weight of a TP16 layer: its packed KDA projection, 3,216 x 7,168.
        real = {"weights": 3, "longest": 3216 * 7168, "unit": MIB}
        for batch in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
            found.append(_case("typical", 100 + batch, batch=batch, ranks=(8, 16)[batch % 2], **real))
        for i, regime in enumerate(REGIMES[:-1]):
            small = {"longest": 1 << 20, "unit": 4096}
            shape = small if regime.name in ("tails", "empty") else real
            # The o-projection's point takes whole ranges, tails and all.
            point = 0 if regime.name == "tails" else 2
            found.append(_case(regime.name, 180 + i, batch=8, point=point, **shape))
        found.append(_case("wide_offsets", 190, weights=3, longest=1 << 20))
    return tuple(found)


CONTRACT = Contract(
    name="prefetch",
    summary="L2 prefetch of weight ranges",
    arguments=PrefetchArguments,
    outputs=(
        Output("planned", ("range",), "fp32", lambda a: a.planned, exact=True),
        Output("out", ("range",), "bf16", lambda a: a.out, exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
