"""The o-projection of all ranks, their all-reduce, and the AttnRes after attention (the subject's 3.11).

Catches: a lost, doubled or stale shard, a shard of another rank or row, partials or sums in too little
precision, an order of the sum other than the declared one (four groups of ranks, or rank order above the
two-shot threshold), a prefix added where it is replaced, a stale block, a lost eps, -0 in a mailbox or in the
MoE's input, writes beyond the step's rows. Cannot catch: mailbox and ordering faults (one process plays all
ranks), and an order of the sum where it makes no difference, which is nearly everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts import attn_res
from validation.contracts.attn_res import BLOCKS
from validation.contracts.contract import Case, Contract, Output, Tier
from validation.contracts.oproj_arguments import OprojArguments
from validation.contracts.oproj_inputs import REGIMES, build
from validation.contracts.rank_sums import chance, judged, positive_zeros, rank_sum, rounded_rarely
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction
from validation.numerics.value import Value, accumulate, largest

HIDDEN = 7168
# Ranks -> columns of one rank's shard: 12 heads of 128 at TP8, 6 at TP16, for KDA and MLA alike.
SHARDS = {8: 1536, 16: 768}
_SITES = {"oproj.partial": BF16, "oproj.reduced": BF16, "oproj.prefix": BF16, "oproj.out": BF16}
# A slot stride of 2**30 elements puts row 2 beyond 2**31 elements.
_WIDE_STRIDE = 2**30

STOCK = Profile("stock", _SITES, sums=Reduction(chain=256))
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    sums=Reduction(chain=256),
    functions="triton",
    functions_on_cuda="triton",
    algebra={
        "attn_res.norm": "quadratic",
        "oproj.rank_sum": "four_groups",
        "oproj.rank_sum_two_shot": "rank",
    },
)


def reference(ar: Arithmetic, a: OprojArguments) -> dict[str, Value]:
    """The new prefix, the normed mixture, and what must be zero: -0 in the mailbox, differences of x_moe."""
    shards = [ar.matmul(ar.load(y), w) for y, w in zip(a.y, a.weight, strict=True)]
    partials = positive_zeros(ar.round(ar.stack(shards, 0), "oproj.partial"))
    site = "oproj.rank_sum_two_shot" if a.two_shot else "oproj.rank_sum"
    total, rarely, last = rank_sum(ar, partials, 0, site), chance(partials, 0), "oproj.reduced"
    prefix = rounded_rarely(ar, total, last, rarely)
    if a.merge == "add":
        total, last = _added(ar, ar.load(a.prefix), prefix), "oproj.prefix"
        prefix = rounded_rarely(ar, total, last, rarely)
    out = attn_res.mixed(ar, a.boundary(a.prefix), prefix)
    result = {
        "prefix": judged(ar, total, prefix, last),
        "out": ar.store(out, "oproj.out"),
        "mailbox": _nothing(ar, a.mailbox[:, : a.rows]),
    }
    if a.write_x_moe:
        result["x_moe"] = _nothing(ar, a.x_moe)
    return result


def _added(ar: Arithmetic, prefix: Value, delta: Value) -> Value:
    """prefix + delta of two BF16 values: rounding the FP32 sum once more is exact, so the addition adds no
    noise."""
    zero = torch.zeros_like(prefix.mean)
    return Value(
        ar,
        prefix.mean + delta.mean,
        accumulate(delta.variance, zero) if ar.noisy else None,
        delta.jump_variance,
        largest(delta.jump),
    )


def _nothing(ar: Arithmetic, like: Tensor) -> Value:
    return Value(ar, torch.zeros(like.shape, dtype=torch.float64, device=like.device))


def minus_zeros(a: OprojArguments) -> Tensor:
    """1 where a slot of the step holds -0, which would be taken for a word not yet written. int32"""
    used = a.mailbox[:, : a.rows]
    return ((used == 0) & torch.signbit(used)).int()


def not_copied(a: OprojArguments) -> Tensor:
    """1 where x_moe is not the output with +0 for -0, bit for bit (any NaN for a NaN). int32"""
    expected = torch.where(a.out == 0, torch.zeros_like(a.out), a.out).contiguous()
    same = a.x_moe.contiguous().view(torch.int16) == expected.view(torch.int16)
    return (~(same | (a.x_moe.isnan() & expected.isnan()))).int()


def touched(a: OprojArguments) -> dict[str, Tensor]:
    slots = torch.arange(a.mailbox.shape[1], device=a.mailbox.device) < a.rows
    one = torch.ones(1, 1, dtype=torch.bool, device=a.mailbox.device)
    return {"prefix": one, "mailbox": slots.view(1, -1, 1), "x_moe": one & a.write_x_moe}


def strides(a: OprojArguments) -> dict[str, tuple[int, ...]]:
    """Rows with a pitch of their own each; the blocks as in a pool of rows of eight."""
    width = a.out.shape[1]
    pitches = {"y": 32, "weight": 64, "mailbox": 48}
    found: dict[str, tuple[int, ...]] = {}
    for name, pitch in pitches.items():
        _, rows, columns = getattr(a, name).shape
        found[name] = (rows * (columns + pitch) + 128, columns + pitch, 1)
    found |= {name: (width + pitch, 1) for name, pitch in {"prefix": 64, "x_moe": 96, "out": 160}.items()}
    return found | {"blocks": (_WIDE_STRIDE if a.wide_rows else BLOCKS * width + 128, width, 1)}


def case(regime: str, seed: int, ranks: int, rows: int, **shape: int) -> Case:
    base = {"k": 64, "width": 256, "blocks": 4, "merge": 0, "moe": 0}
    return Case.of("oproj", regime, seed, ranks=ranks, rows=rows, **(base | shape))


# Ranks and rows of cases whose products take several steps, one for each way to take them.
_DEEP = ((9, 1), (2, 2), (3, 3))


def _quick() -> list[Case]:
    """Every block count, both merges, both sides of every row threshold at 8 and 16 ranks, every regime, odd
    numbers of ranks and tails, one of the subject's widths."""
    found = [case("typical", n, 8, 2, k=72, blocks=n, merge=n % 2, moe=n % 2) for n in (0, 1, 8)]
    for number, rows in enumerate((1, 2, 3, 16, 17, 32, 33)):
        ranks = 8 if rows <= 3 else 4
        found.append(case("typical", 10 + number, ranks, rows, width=320, blocks=1 + number, moe=number % 2))
    for number, rows in enumerate((1, 2, 3, 16, 17)):
        found.append(case("typical", 20 + number, 16, rows, k=80, merge=number % 2, moe=1 - number % 2))
    found += [case("typical", 30, 1, 3, k=100, width=72), case("typical", 31, 3, 2, k=24, width=328)]
    for number, regime in enumerate(REGIMES[1:]):
        options = {"merge": 1} if regime.name == "minus_zero" else {}
        options |= {"blocks": 1} if regime.name == "opposed" else {}
        ranks = 16 if number % 2 else 8
        found.append(case(regime.name, 40 + number, ranks, 3, moe=1, **options))
    found += [
        case("cancelling_order", 60, 16, 2),
        case("cancelling_order", 61, 8, 33),
        case("cancelling_order", 62, 16, 17),
    ]
    found += [case("typical", 65 + n, ranks, rows, k=300, width=72) for n, (ranks, rows) in enumerate(_DEEP)]
    # Each kernel that writes a mailbox: see above for three rows.
    found += [
        case("minus_zero", 67 + n, ranks, rows, merge=1) for n, (ranks, rows) in enumerate(((16, 1), (8, 2)))
    ]
    found += [case("cancelling_order", 63, 8, 1, merge=1), case("cancelling", 64, 8, 1, width=320, merge=1)]
    return [*found, case("typical", 70, 2, 1, k=384, width=HIDDEN, blocks=3, moe=1)]


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: see ``_quick``. full: the subject's shapes at every prepared batch, and every regime there."""
    found = _quick()
    if tier == "full":
        for ranks, k in SHARDS.items():
            real = {"k": k, "width": HIDDEN}
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
                more = {"blocks": 1 + rows % BLOCKS, "merge": int(rows % 3 == 0), "moe": int(rows < 9)}
                found.append(case("typical", 100 * ranks + rows, ranks, rows, **real, **more))
            for number, regime in enumerate(REGIMES):
                options = {"blocks": 1} if regime.name == "opposed" else {"blocks": 7}
                options |= {"merge": int(regime.name == "minus_zero"), "moe": number % 2}
                rows = 3 if regime.name == "wide_offsets" else (4, 16)[number % 2]
                found.append(case(regime.name, 100 * ranks + 70 + number, ranks, rows, **real, **options))
    return tuple(found)


_AXES = ("row", "column")

CONTRACT = Contract(
    name="oproj",
    summary="o-projection, all-reduce, and the attention-residual mix after attention",
    arguments=OprojArguments,
    outputs=(
        Output("prefix", _AXES, "bf16", lambda a: a.prefix, slices=(("row",), ("row", "column/64"))),
        Output("out", _AXES, "bf16", lambda a: a.out, slices=(("row",),), shared=("column",)),
        Output("mailbox", ("rank", *_AXES), "bf16", minus_zeros, exact=True),
        Output("x_moe", _AXES, "bf16", not_copied, exact=True, present=lambda a: a.write_x_moe),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=touched,
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
