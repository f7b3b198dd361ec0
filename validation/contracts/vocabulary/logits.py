"""Final RMSNorm and logits: norm, one product a vocabulary shard, gather, scale (operation 3.20 of the
subject).

Catches: a hidden row normalised twice, not at all or with another eps, rows sampled in the wrong order, BF16
accumulation, lost K tiles, the padding of the vocabulary among the logits, shards joined in the wrong order,
a scale applied before the rounding, ranks whose copies differ, offsets beyond 2**31. Cannot catch: a
different but honest order of the FP32 sums, by design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from validation.contracts.contract import Case, Contract, Output, Tier, read, update, write
from validation.contracts.vocabulary.logits_inputs import NORMS, REGIMES, SCALES, draw
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.value import Value

HIDDEN = 7168
SHARDS = (20480, 10240)  # rows of one rank's lm_head at TP8 and TP16


@dataclass
class LogitsArguments:
    """out[every rank, sample] = scale * (norm(x[rows_wanted[sample]]) @ lm_head^T), cut to ``org_vocab``.

    ``x`` is the BF16 mixture of the last AttnRes. ``norm``: ``sampled`` (the wanted rows are normalised on
    the way: a stock step), ``all`` (every row is normalised first, into ``hidden``: a stock step of a process
    whose logits no longer normalise) or ``done`` (``x`` is normalised already: a specialised step; ``gamma``
    must not be read). ``weight[r]`` holds rows r * shard to (r + 1) * shard - 1 of lm_head; those from
    ``org_vocab`` on pad the vocabulary. ``wide_rows`` asks the arena for rows of lm_head 2**30 elements
    apart.
    """

    x: Tensor = read("row column", "bf16")
    gamma: Tensor = read("column", "bf16")
    weight: Tensor = read("rank token column", "bf16")
    rows_wanted: Tensor = read("sample", "i64")
    hidden: Tensor = update("row column", "bf16")
    out: Tensor = write("rank sample token", "bf16")
    org_vocab: int = 0
    norm: Literal["sampled", "all", "done"] = "sampled"
    scale: float = 1.0
    eps: float = 1e-5
    wide_rows: bool = False


# Norm and product are stored in BF16; a scale other than 1 is applied to the stored logits and rounds again.
_SITES = {"logits.norm": BF16, "logits.projection": BF16, "logits.out": BF16}
# The sum of squares may be one chain. Shorter chains err more than their random model says: squares of BF16
# values are quadratic residues in units of the sum's last place, of which more round down than up, so that
# chains of 896 terms came out at -70 of the model's units where it expects a deviation of 7.
STOCK = Profile("stock", _SITES)
SPECIALIZED = Profile("specialized", _SITES, functions="triton", functions_on_cuda="triton")


def build(case: Case) -> LogitsArguments:
    """Draw the mixture rows, lm_head and the wanted rows on the CPU."""
    norm = NORMS[case["norm"]]
    drawn = draw(case, norm)
    rows, width = drawn["x"].shape
    return LogitsArguments(
        x=drawn["x"],
        gamma=drawn["gamma"],
        weight=drawn["weight"],
        rows_wanted=drawn["rows_wanted"],
        hidden=torch.zeros(rows, width, dtype=torch.bfloat16),
        out=torch.zeros(case["ranks"], case["wanted"], case["org"], dtype=torch.bfloat16),
        org_vocab=case["org"],
        norm=norm,
        scale=SCALES[case["scale"]],
        eps=4e-5 if case.regime in ("small", "zero_row") else 1e-5,
        wide_rows=case.regime == "wide_offsets",
    )


def reference(ar: Arithmetic, a: LogitsArguments) -> dict[str, Value]:
    """The logits of the wanted rows, that all ranks hold the same bits, and the rows normalised on the
    way."""
    result = {}
    if a.norm == "all":
        every = _normed(ar, a, a.x)
        result["hidden"] = ar.store(every, "logits.norm")
        wanted = ar.round(every, "logits.norm")[a.rows_wanted]
    elif a.norm == "sampled":
        wanted = ar.round(_normed(ar, a, a.x[a.rows_wanted]), "logits.norm")
    else:
        wanted = ar.load(a.x[a.rows_wanted])
    head = a.weight.reshape(-1, a.weight.shape[-1])[: a.org_vocab]
    logits = ar.matmul(wanted, head)
    if a.scale == 1.0:
        result["out"] = ar.store(logits, "logits.projection")
    else:
        result["out"] = ar.store(ar.round(logits, "logits.projection") * a.scale, "logits.out")
    same = torch.zeros((), dtype=torch.float64, device=logits.mean.device)
    result["copies"] = Value(ar, same.expand(a.weight.shape[0], *logits.shape))
    return result


def _normed(ar: Arithmetic, a: LogitsArguments, x: Tensor) -> Value:
    """x * rsqrt(mean(x**2) + eps) * gamma in FP32, unrounded."""
    rows = ar.load(x)
    inverse = ar.rsqrt(ar.sum_of_squares(rows, -1, keepdim=True) * (1.0 / x.shape[-1]) + a.eps)
    return rows * inverse * ar.load(a.gamma)


def _differing_bits(a: LogitsArguments) -> Tensor:
    """Bits in which each rank's copy differs from that of rank 0. int16 [rank, sample, token]"""
    bits = a.out.view(torch.int16)
    return bits ^ bits[:1]


# A row of lm_head this many elements after the one before: row 2 starts at 2**31.
_WIDE_STRIDE = 2**30


def strides(a: LogitsArguments) -> dict[str, tuple[int, ...]]:
    """Every matrix with a pitch of its own; logits keep the padded vocabulary's pitch, as a slice does."""
    ranks, shard, width = a.weight.shape
    samples = len(a.rows_wanted)
    head = ((width + 64) * shard + 128, width + 64, 1)
    if a.wide_rows:
        head = (width + 64, _WIDE_STRIDE, 1)
    pitch = ranks * shard + 32
    return {
        "x": (width + 32, 1),
        "hidden": (width + 96, 1),
        "weight": head,
        "out": (pitch * samples + 160, pitch, 1),
    }


def _case(regime: str, seed: int, **shape: int) -> Case:
    base = {"rows": 4, "wanted": 3, "ranks": 8, "shard": 24, "width": 320}
    sizes = base | shape
    padded = sizes["ranks"] * sizes["shard"]
    sizes.setdefault("org", padded - min(5, padded // 4))
    return Case.of(
        "logits", regime, seed, **(sizes | {"norm": shape.get("norm", 0), "scale": shape.get("scale", 0)})
    )


def _norm_of(regime: str, number: int) -> int:
    """Which norm a regime's case has. One-hot rows come normalised: a single product of a row whose norm is
    on the edge of a rounding would move all its logits together."""
    return 2 if regime == "one_hot" else number % 2


def _quick() -> list[Case]:
    found = [
        _case("wide_offsets", 88 + wanted, rows=4, wanted=wanted, ranks=1, shard=4, width=72)
        for wanted in (2, 3)  # one for each kernel of the head
    ]
    for i, regime in enumerate(REGIMES):
        if regime.name != "wide_offsets":
            found.append(_case(regime.name, i, rows=5, scale=i % 4, norm=_norm_of(regime.name, i)))
    for rows in (1, 2, 3, 16, 17):  # both sides of every switch of the kernels
        found.append(
            _case("typical", 20 + rows, rows=rows, wanted=rows, ranks=8 + 8 * (rows % 2), norm=2 * (rows % 2))
        )
    found += [_case("typical", 41 + n, rows=70, wanted=65 + n, width=136, shard=17, norm=n) for n in (0, 1)]
    # More rows than one launch of the stock norm takes with equal block sizes.
    found.append(_case("typical", 45, rows=300, wanted=2, width=64, ranks=3, shard=20, norm=1))
    found += [_case("typical", 50 + s, ranks=(1, 3, 16, 8)[s], scale=s, norm=2) for s in range(4)]
    found.append(_case("padded_vocab", 56, ranks=16, shard=24, org=16 * 24 - 30))
    found += [
        _case("typical", 60, rows=4, wanted=4, shard=8, width=HIDDEN),
        _case("outliers", 61, rows=2, wanted=1, shard=8, width=HIDDEN),
    ]
    return found


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every regime, norm and scale on narrow rows, both sides of every switch of the kernels, one,
    three, 8 and 16 ranks, two at the subject's width. full: one rank's shard of TP8 and TP16 at every
    prepared batch, every regime with all ranks' shards (of 1,280 and 640 tokens), and offsets beyond
    2**31."""
    found = _quick()
    if tier == "full":
        for number, shard in enumerate(SHARDS):
            whole = {"ranks": 1, "shard": shard, "width": HIDDEN, "org": shard}
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
                found.append(
                    _case(
                        "typical", 1000 * (number + 1) + rows, rows=rows, wanted=rows, norm=rows % 3, **whole
                    )
                )
            ranks = (8, 16)[number]
            parts = {"ranks": ranks, "shard": 10240 // ranks, "width": HIDDEN}
            for i, regime in enumerate(REGIMES):
                size = {"rows": 12, "wanted": 8, "norm": _norm_of(regime.name, i), "scale": i % 4} | parts
                if regime.name == "wide_offsets":
                    size |= {"ranks": 1, "shard": 4}
                found.append(_case(regime.name, 100 * ranks + i, **size))
    return tuple(found)


CONTRACT = Contract(
    name="logits",
    summary="final RMSNorm and logits of the sampled rows",
    arguments=LogitsArguments,
    outputs=(
        Output(
            "hidden",
            ("row", "column"),
            "bf16",
            lambda a: a.hidden,
            slices=(("row",),),
            shared=("column",),
            present=lambda a: a.norm == "all",
        ),
        Output(
            "out",
            ("sample", "token"),
            "bf16",
            lambda a: a.out[0],
            slices=(("sample",), ("sample", "token/64")),
            shared=("token",),
        ),
        Output("copies", ("rank", "sample", "token"), "bf16", _differing_bits, exact=True),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=lambda a: {"hidden": torch.tensor(a.norm == "all").reshape(1, 1)},
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
