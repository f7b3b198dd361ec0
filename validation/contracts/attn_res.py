"""AttnRes: attention-residual mix and RMSNorm (Kimi K3, operation 3.2 of the subject's specification).

Catches: a wrong block count, a prefix added where it is replaced, a stale or lost block write, a missing eps
compensation in the quadratic norm, a wrong eps, a norm of the wrong vector, BF16 partial sums, unmasked
columns, stale fragments. Cannot catch: mailbox and ordering faults (one process plays the rank).
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.arguments import AttnResArguments
from validation.contracts.contract import Case, Contract, Output, Regime, Tier
from validation.contracts.regimes import generator, normal, outliers
from validation.numerics.arithmetic import Arithmetic
from validation.numerics.formats import BF16
from validation.numerics.profile import Profile
from validation.numerics.reductions import Reduction
from validation.numerics.value import Value

BLOCKS = 8
MERGES = ("add", "replace", "keep")
FINISHES = ("norm", "final", "mix")
_SITES = {"attn_res.prefix": BF16, "attn_res.mixture": BF16, "attn_res.out": BF16}

STOCK = Profile("stock", _SITES, sums=Reduction(chain=256))
SPECIALIZED = Profile(
    "specialized",
    _SITES,
    sums=Reduction(chain=256),
    functions="triton",
    functions_on_cuda="triton",
    algebra={"attn_res.norm": "quadratic"},
)

REGIMES = (
    Regime(
        "typical", ("F01", "F12"), "gamma, projection and block scales far from neutral; stale blocks finite"
    ),
    Regime("small", ("F12",), "activations near 1e-3, so that the norms' eps decides"),
    Regime(
        "peaked",
        ("F03", "F07"),
        "logits more than 80 apart, some all below -80: softmax terms underflow to 0",
    ),
    Regime(
        "cancelling", ("F06",), "the prefix nearly cancels the block mixture: the quadratic norm loses digits"
    ),
    Regime("identical", ("F17",), "all sources equal: every weight is 1/n and the mixture is the source"),
    Regime("outliers", ("F06",), "a few columns thousands of times larger, as residual streams have"),
    Regime("zero_row", ("F12",), "a row of zeros: eps alone keeps the norm finite"),
    Regime("nan_row", ("F51",), "one row holds a NaN: it must stay in that row"),
)


def build(case: Case) -> AttnResArguments:
    """Draw the arguments of a case on the CPU. Blocks that must not be read hold large finite values."""
    g = generator(case)
    rows, width, read, merge = case["rows"], case["width"], case["blocks"], MERGES[case["merge"]]
    scale = 2e-3 if case.regime == "small" else 1.0
    growth = torch.linspace(0.5, 2.0, BLOCKS).view(1, BLOCKS, 1)
    blocks = normal(g, rows, BLOCKS, width) * growth * scale
    prefix, delta = normal(g, rows, width) * 1.3 * scale, normal(g, rows, width) * 0.6 * scale
    score_proj = normal(g, width) * 2.0 / width**0.5
    if case.regime == "peaked":
        score_proj = score_proj * 60
        # In the first row the prefix has the largest score by far, elsewhere chance decides.
        prefix[0] = 3 * width**0.5 * score_proj / score_proj.norm()
        delta[0] = prefix[0] if merge == "replace" else 0.01 * delta[0]
        if rows > 1:
            # In the last row all scores are so low that exp underflows unless the largest is subtracted.
            low = 0.3 * width**0.5 * score_proj / score_proj.norm()
            blocks[-1] -= low * growth[0]
            prefix[-1] -= 1.3 * low
            delta[-1] -= low if merge == "replace" else 0
    if case.regime == "outliers":
        columns = outliers(g, width)
        blocks[..., columns] *= 2000
        prefix[:, columns] *= 3000
    if case.regime == "cancelling":
        score_proj = score_proj * 0.01
        prefix = -blocks[:, :read].sum(1) if read else prefix
        delta = normal(g, rows, width) * 0.01 + (prefix if merge == "replace" else 0)
    if case.regime == "identical":
        added = prefix.bfloat16() + delta.bfloat16()
        blocks[:] = {"add": added, "replace": delta, "keep": prefix}[merge][:, None]
    # Stale blocks are finite, as another step's are; where a weight of 0 would hide them, no number.
    blocks[:, read:] = 40 * normal(g, rows, BLOCKS - read, width)
    if case.regime in ("peaked", "identical"):
        blocks[:, read:] = float("nan")
    if case.regime == "typical":
        prefix[:, 3], delta[:, 3], blocks[:, :read, 3] = -0.0, -0.0, -0.0
    if case.regime == "zero_row":
        for tensor in (prefix, delta, blocks):
            tensor[rows // 2] = 0
    if case.regime == "nan_row":
        (prefix if merge == "keep" else delta)[rows // 2, width // 3] = float("nan")
    # What this boundary does not use must not be read.
    if merge == "replace":
        prefix[:] = float("nan")
    if merge == "keep":
        delta[:] = float("nan")
    return AttnResArguments(
        prefix=prefix.bfloat16(),
        delta=delta.bfloat16(),
        blocks=blocks.bfloat16(),
        score_gamma=(1 + 0.3 * normal(g, width)).bfloat16(),
        score_proj=score_proj.bfloat16(),
        gamma=(1 + 0.4 * normal(g, width)).bfloat16(),
        aux=torch.zeros(rows, width, dtype=torch.bfloat16),
        out=torch.zeros(rows, width, dtype=torch.bfloat16),
        blocks_read=read,
        write_block=case["write"],
        merge=merge,  # type: ignore[arg-type]
        finish=FINISHES[case["finish"]],  # type: ignore[arg-type]
        write_aux=bool(case["aux"]),
        eps_score=4e-5 if case.regime in ("small", "zero_row") else 1e-5,
        eps=2e-5 if case.regime in ("small", "zero_row") else 1e-5,
    )


def reference(ar: Arithmetic, a: AttnResArguments) -> dict[str, Value]:
    """The new prefix, the block written, the auxiliary row and the normalised mixture."""
    prefix = _merged(ar, a)
    result = {"prefix": prefix}
    if a.write_block >= 0:
        result["block"] = prefix
    if a.write_aux:
        result["aux"] = prefix
    result["out"] = ar.store(mixed(ar, a, prefix), "attn_res.out")
    return result


def mixed(ar: Arithmetic, a: AttnResArguments, prefix: Value) -> Value:
    """The normalised mixture of the blocks and the new prefix before its store; ``a.prefix`` is not read."""
    sources = prefix.unsqueeze(1)
    if a.blocks_read:
        sources = ar.cat([ar.load(a.blocks[:, : a.blocks_read]), sources], 1)
    scores = _scores(ar, a, sources)
    if a.finish == "norm" and a.blocks_read and ar.algebra("attn_res.norm", "direct") == "quadratic":
        return _quadratic(ar, a, sources, scores)
    return _direct(ar, a, sources, scores)


def _merged(ar: Arithmetic, a: AttnResArguments) -> Value:
    if a.merge == "keep":
        return ar.load(a.prefix)
    if a.merge == "replace":
        return ar.load(a.delta)
    # The FP32 sum of two BF16 values is never within reach of a BF16 tie it did not start on: rounding it
    # once more is exact, so the prefix is known to the bit.
    total = Value(ar, a.prefix.double() + a.delta.double())
    return ar.round(total, "attn_res.prefix")


def _scores(ar: Arithmetic, a: AttnResArguments, sources: Value) -> Value:
    """l(v) = w_s . RMSNorm(v; g_s) for every source. [row, source]"""
    weight = ar.load(a.score_gamma) * ar.load(a.score_proj)
    width = sources.shape[-1]
    inverse = ar.rsqrt(ar.sum_of_squares(sources, -1) * (1.0 / width) + a.eps_score)
    return ar.dot(sources, weight, -1) * inverse


def _direct(ar: Arithmetic, a: AttnResArguments, sources: Value, scores: Value) -> Value:
    """Divide by the softmax denominator, then normalise. With one source the mixture is that source."""
    if sources.shape[1] == 1:
        mixture = sources[:, 0]
    else:
        mixture = ar.dot(ar.softmax(scores, 1).unsqueeze(-1), sources, 1)
    if a.finish == "mix":
        return mixture
    if a.finish == "final":
        mixture = ar.round(mixture, "attn_res.mixture")
    width = mixture.shape[-1]
    inverse = ar.rsqrt(ar.sum_of_squares(mixture, -1, keepdim=True) * (1.0 / width) + a.eps)
    return mixture * inverse * ar.load(a.gamma)


def _quadratic(ar: Arithmetic, a: AttnResArguments, sources: Value, scores: Value) -> Value:
    """The undivided mixture; its norm from sums of U*U, U*P and P*P, and eps times the squared denominator.

    The maxima that are subtracted cancel in the result, so they carry no noise here.
    """
    width = sources.shape[-1]
    blocks, prefix = sources[:, :-1], sources[:, -1]
    of_blocks, of_prefix = scores[:, :-1], scores[:, -1:]
    peak = Value(ar, of_blocks.mean.amax(1, keepdim=True))
    top = Value(ar, torch.maximum(peak.mean, of_prefix.mean))
    e = ar.exp(of_blocks - peak)
    mixed = ar.dot(e.unsqueeze(-1), blocks, 1)
    alpha, epsilon = ar.exp(peak - top), ar.exp(of_prefix - top)
    denominator = alpha * ar.sum(e, 1, keepdim=True) + epsilon
    uu = ar.sum_of_squares(mixed, -1, keepdim=True)
    up = ar.dot(mixed, prefix, -1, keepdim=True)
    pp = ar.sum_of_squares(prefix, -1, keepdim=True)
    q = ar.square(alpha) * uu + (alpha * epsilon * 2.0) * up + ar.square(epsilon) * pp
    inverse = ar.rsqrt(q * (1.0 / width) + ar.square(denominator) * a.eps)
    return (alpha * inverse * mixed + epsilon * inverse * prefix) * ar.load(a.gamma)


def touched(a: AttnResArguments) -> dict[str, Tensor]:
    blocks = torch.zeros(1, a.blocks.shape[1], 1, dtype=torch.bool)
    if a.write_block >= 0:
        blocks[0, a.write_block] = True
    one = torch.ones(1, 1, dtype=torch.bool)
    return {"prefix": one & (a.merge != "keep"), "blocks": blocks, "aux": one & a.write_aux}


def strides(a: AttnResArguments) -> dict[str, tuple[int, ...]]:
    """Rows with holes between them, as in a 64-row pool of which a step uses some."""
    width = a.prefix.shape[1]
    pitches = {"prefix": 64, "delta": 32, "aux": 96, "out": 160}
    rows = {name: (width + pitch, 1) for name, pitch in pitches.items()}
    return rows | {"blocks": (BLOCKS * width + 128, width, 1)}


def _case(regime: str, seed: int, rows: int, width: int, blocks: int, **options: int) -> Case:
    base = {"write": -1, "merge": 0, "finish": 0, "aux": 0}
    return Case.of("attn_res", regime, seed, rows=rows, width=width, blocks=blocks, **(base | options))


# Positions in the step: pre-attention, layer 0, block-writing layer before and after attention, auxiliary
# row, final, and the mixture alone that stock hands to its separate last norm.
_POSITIONS: tuple[dict[str, int], ...] = (
    {},
    {"merge": 1, "write": 1, "blocks": 0},
    {"write": 1},
    {"merge": 1},
    {"aux": 1},
    {"finish": 1},
    {"finish": 2, "merge": 2},
)


def _at(position: dict[str, int], seed: int, rows: int, width: int, blocks: int) -> Case:
    """A typical case at a position. Where it writes a block, that is the one behind those it reads."""
    options = {"blocks": blocks} | position
    options["write"] = options["blocks"] if position.get("write") else -1
    return _case("typical", seed, rows, width, **options)


def cases(tier: Tier) -> tuple[Case, ...]:
    """quick: every block count, position and regime at small widths (a power of two, and not), and two at the
    real width. full: the subject's width at every prepared batch."""
    found = [_case("typical", n, 2, 256, n) for n in range(BLOCKS + 1)]
    for number, position in enumerate(_POSITIONS):
        found.append(_at(position, 20 + number, 3, 320, 4 if position.get("merge") != 1 else 3))
    for number, regime in enumerate(REGIMES[1:]):
        found.append(_case(regime.name, 40 + number, 3, 448, 1 if regime.name == "cancelling" else 5))
    found += [_case("typical", 60, 2, 7168, 8), _case("small", 61, 1, 7168, 5, finish=1)]
    found += [_case("outliers", 62, 3, 7168, 7, write=7), _case("typical", 63, 1, 7168, 1, merge=1, aux=1)]
    if tier == "full":
        batches = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
        for rows in batches:
            found += [_case("typical", 100 + rows, rows, 7168, rows % (BLOCKS + 1), aux=1)]
            found += [_case("outliers", 200 + rows, rows, 7168, 7, write=7)]
        for number, position in enumerate(_POSITIONS):
            found.append(_at(position, 300 + number, 8, 7168, 6))
        for number, regime in enumerate(REGIMES):
            found.append(_case(regime.name, 320 + number, 16, 7168, 1 if regime.name == "cancelling" else 8))
    return tuple(found)


_AXES = ("row", "column")

CONTRACT = Contract(
    name="attn_res",
    summary="attention-residual mix and RMSNorm",
    arguments=AttnResArguments,
    outputs=(
        Output("prefix", _AXES, "bf16", lambda a: a.prefix, exact=True),
        Output(
            "block",
            _AXES,
            "bf16",
            lambda a: a.blocks[:, a.write_block],
            exact=True,
            present=lambda a: a.write_block >= 0,
        ),
        Output("aux", _AXES, "bf16", lambda a: a.aux, exact=True, present=lambda a: a.write_aux),
        Output("out", _AXES, "bf16", lambda a: a.out, slices=(("row",),), shared=("column",)),
    ),
    regimes=REGIMES,
    build=build,
    reference=reference,
    cases=cases,
    touched=touched,
    profiles={"stock": STOCK, "specialized": SPECIALIZED},
    strides=strides,
)
