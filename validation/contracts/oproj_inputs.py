"""How the arguments of the o-projection are drawn, regime by regime."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from validation.contracts.attn_res import BLOCKS
from validation.contracts.contract import Case, Regime
from validation.contracts.oproj_arguments import OprojArguments
from validation.contracts.regimes import generator, normal, outliers, shared_weight, uniform

MERGES = ("add", "replace")
# Slots of the mailbox beyond the step's rows: another step's, not to be written.
SPARE_SLOTS = 2
# Products of two such factors are far below BF16's smallest number: they round to +0 or -0.
_TINY = 2.0**-72

REGIMES = (
    Regime(
        "typical",
        ("F01", "F04", "F05", "F08", "F09", "F12", "F45"),
        "shards, gamma and block scales all different; rows apart, NaN between them; stale blocks, mailbox "
        "rows and spare slots finite",
    ),
    Regime(
        "cancelling_order",
        ("F06", "F31"),
        "partials known to the bit whose FP32 sum depends on the order of the ranks",
    ),
    Regime("one_hot", ("F01",), "every partial is an element of the weight: nothing is uncertain"),
    Regime("outliers", ("F06",), "residual columns thousands of times larger, as residual streams have"),
    Regime("cancelling", ("F06",), "the shards of half the ranks nearly cancel those of the other half"),
    Regime(
        "opposed", ("F06",), "the prefix nearly cancels the block mixture: the quadratic norm loses digits"
    ),
    Regime("small", ("F12",), "activations near 1e-3, so that the norms' eps decides"),
    Regime(
        "peaked",
        ("F03", "F07"),
        "logits more than 80 apart, some all below -80: softmax terms underflow to 0",
    ),
    Regime("minus_zero", ("F36",), "partials that round to -0, which marks an empty mailbox word"),
    Regime("zero_row", ("F12", "F36"), "a row of zeros: eps alone keeps the norm finite, and -0 comes out"),
    Regime("nan_row", ("F51",), "one rank's shard of one row holds a NaN: it must stay in that row"),
    Regime("wide_offsets", ("F50",), "rows of the blocks 2**30 elements apart: 32-bit offsets wrap"),
)


def takes_two_shots(ranks: int, rows: int) -> bool:
    """Whether the sum goes through column owners: above 32 rows, with more than 8 ranks above 16."""
    return rows > (16 if ranks > 8 else 32)


def build(case: Case) -> OprojArguments:
    """Draw the arguments of a case on the CPU."""
    g, regime = generator(case), case.regime
    rows, width = case["rows"], case["width"]
    weight, y = _weight(case, g), _shards(case, g)
    rest = _residual(case, g)
    if regime == "zero_row":
        y[:, rows // 2] = 0
    if regime == "nan_row":
        y[-1, rows // 2, -1] = float("nan")
    return OprojArguments(
        y=y.bfloat16(),
        weight=weight,
        prefix=rest["prefix"],
        blocks=rest["blocks"],
        score_gamma=rest["score_gamma"],
        score_proj=rest["score_proj"],
        gamma=rest["gamma"],
        mailbox=normal(g, case["ranks"], rows + SPARE_SLOTS, width).bfloat16(),
        x_moe=normal(g, rows, width).bfloat16(),
        out=torch.zeros(rows, width, dtype=torch.bfloat16),
        blocks_read=case["blocks"],
        merge=MERGES[case["merge"]],  # type: ignore[arg-type]
        two_shot=takes_two_shots(case["ranks"], rows),
        write_x_moe=bool(case["moe"]),
        eps_score=4e-5 if regime in ("small", "zero_row") else 1e-5,
        eps=2e-5 if regime in ("small", "zero_row") else 1e-5,
        wide_rows=regime == "wide_offsets",
    )


def _weight(case: Case, g: Generator) -> Tensor:
    """W_o by rank [rank, column, k] BF16."""
    ranks, width, k = case["ranks"], case["width"], case["k"]
    weight = shared_weight("oproj", case.seed // 100, ranks, width, k, scale=1.2 / k**0.5)
    if case.regime == "cancelling":
        weight, half = weight.clone(), ranks // 2
        weight[half : 2 * half] = -weight[:half] * (1 + 0.01 * normal(g, half, width, 1))
    if case.regime == "cancelling_order":
        # The first rank's partials are near 4e6 and the last one's take them back: what is added in between
        # is rounded to multiples of 1/2, and which ranks are in between depends on the order.
        weight = normal(g, ranks, width, k)
        weight[0] = (1 + uniform(g, width, 1)) * 2.0**22
        weight[-1] = -weight[0]
        weight = weight.bfloat16()
    if case.regime == "minus_zero":
        weight = weight.clone()
        weight[:, :8] = (weight[:, :8].float() * _TINY).bfloat16()
    return weight


def _shards(case: Case, g: Generator) -> Tensor:
    """y by rank [rank, row, k] FP32, every rank's of another size."""
    ranks, rows, k = case["ranks"], case["rows"], case["k"]
    y = normal(g, ranks, rows, k) * torch.linspace(0.5, 1.5, ranks).view(-1, 1, 1) / ranks**0.5
    if case.regime == "cancelling":
        half = ranks // 2
        y[half : 2 * half] = y[:half]
    if case.regime in ("one_hot", "cancelling_order"):
        y = torch.zeros(ranks, rows, k)
        y.scatter_(2, torch.randint(k, (ranks, rows, 1), generator=g), 1.0)
    if case.regime == "small":
        y = y * 1e-3
    if case.regime == "minus_zero":
        y[:, 0] *= _TINY
    return y


def _residual(case: Case, g: Generator) -> dict[str, Tensor]:
    """Prefix, blocks and the weights of AttnRes, BF16."""
    regime, rows, width, read = case.regime, case["rows"], case["width"], case["blocks"]
    scale = 2e-3 if regime == "small" else 1.0
    blocks = normal(g, rows, BLOCKS, width) * torch.linspace(0.5, 2.0, BLOCKS).view(1, BLOCKS, 1) * scale
    prefix = normal(g, rows, width) * 1.3 * scale
    proj = normal(g, width) * 2.0 / width**0.5
    if regime == "peaked":
        proj = proj * 60
        # In the last row all scores are so low that exp underflows unless the largest is subtracted.
        low = 0.3 * width**0.5 * proj / proj.norm()
        blocks[-1] -= 2 * low
        prefix[-1] -= 2 * low
    if regime == "outliers":
        columns = outliers(g, width)
        blocks[..., columns] *= 2000
        prefix[:, columns] *= 3000
    if regime == "opposed":
        proj = proj * 0.01
        prefix = -blocks[:, :read].sum(1)
    blocks[:, read:] = 40 * normal(g, rows, BLOCKS - read, width)
    if regime == "zero_row":
        prefix[rows // 2] = 0
        blocks[rows // 2] = 0
    if case["merge"] == MERGES.index("replace"):
        prefix[:] = float("nan")  # must not be read
    gamma = 1 + 0.4 * normal(g, width)
    gamma[::7] *= -1  # so that a row of zeros gives -0
    return {
        "prefix": prefix.bfloat16(),
        "blocks": blocks.bfloat16(),
        "score_gamma": (1 + 0.3 * normal(g, width)).bfloat16(),
        "score_proj": proj.bfloat16(),
        "gamma": gamma.bfloat16(),
    }
