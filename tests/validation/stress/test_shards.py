"""Shards of a sharded attention are exact, and another way to merge them gives other bits."""

from __future__ import annotations

import torch

from kernels_under_test import interpreter

interpreter.prepare()

from kernels_under_test.exchanges.runner import words_may_wrap  # noqa: E402
from kernels_under_test.triton_portable.mla_dcp import dcp_merge_kernel  # noqa: E402
from validation.stress.shards import NAN, NOTHING, REQUESTS, TOKENS, Shards, shards  # noqa: E402

HEADS, WIDTH = 2, 64


def drawn(ranks: int, seed: int = 0) -> Shards:
    return shards(torch.Generator().manual_seed(seed), ranks, HEADS, WIDTH)


def counted(x: Shards) -> torch.Tensor:
    """Does a rank's row of a head count? bool [rank, row, head]"""
    sums, keys = x.log_sums.view(torch.float32), (x.lengths > 0).repeat_interleave(TOKENS, 1)
    return keys[..., None] & sums.isfinite() & (sums > -3e38)


def test_empty_shards_are_among_them_and_leave_what_must_not_be_looked_at() -> None:
    for ranks in (2, 3, 4, 8):
        x = drawn(ranks)
        assert (x.lengths[:, 1] > 0).sum() == 1
        assert not x.lengths[:, 2].any()
        assert torch.equal(x.totals, x.lengths.sum(0).int())
        assert not x.merged[2 * TOKENS : 3 * TOKENS].any()
        left = x.words.view(torch.bfloat16)[:, 2 * TOKENS : 3 * TOKENS]
        assert left.isnan().any()
        missing = counted(x)[:, -1].logical_not().any(1)
        assert int(missing.sum()) == 1, "one rank's rows of the last request saw no key"


def test_the_merge_kernel_of_one_process_gives_the_same_bits() -> None:
    """What an owner merges is what ``mla_dcp`` merges, once empty shards are zeros of no weight."""
    words_may_wrap()
    for ranks in (2, 3, 4):
        x = drawn(ranks, ranks)
        count = counted(x)
        keys = (x.lengths > 0).repeat_interleave(TOKENS, 1)[..., None, None]
        rows = torch.where(keys, x.words, 0).view(torch.bfloat16).contiguous()
        sums = torch.where(count, x.log_sums.view(torch.float32), -torch.inf).contiguous()
        out = torch.zeros(REQUESTS * TOKENS, ranks * HEADS, WIDTH, dtype=torch.bfloat16)
        dcp_merge_kernel[REQUESTS * TOKENS, 1](
            rows, sums, out, x.totals, rows.stride(0), sums.stride(0), out.stride(0), TOKENS, ranks * HEADS,
            ranks, HEADS=8, D=WIDTH,
        )  # fmt: skip
        bits = torch.where(out.isnan(), NAN, out.view(torch.int16)).to(torch.int16).view(torch.int32)
        assert torch.equal(bits, x.merged)


def test_weights_matter() -> None:
    """Equal weights, or those of base e, would give other bits on most rows with two ranks or more."""
    x = drawn(3)
    count = counted(x)
    values = torch.where(count[..., None], x.words.view(torch.bfloat16).double(), 0.0)
    equal = values.sum(0) / count.sum(0)[..., None].clamp(min=1)
    different = (equal.bfloat16().view(torch.int32) != x.merged).any(-1)
    assert different[:TOKENS].all()


def test_what_says_no_key_is_never_a_log_sum() -> None:
    assert not [x for x in torch.tensor(NOTHING).tolist() if -3e38 < x < float("inf")]
