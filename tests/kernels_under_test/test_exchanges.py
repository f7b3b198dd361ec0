"""Words and exchanges: what is drawn, made canonical, summed and rounded; against plain numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_under_test import interpreter

interpreter.prepare()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kernels_under_test.exchanges import words  # noqa: E402
from kernels_under_test.exchanges.runner import words_may_wrap  # noqa: E402

N = 4096
INDEX, SENTINEL = np.arange(N, dtype=np.uint32), 0x80000000


@triton.jit
def drawn_kernel(out, seed, step, publication, source, N: tl.constexpr):
    index = tl.arange(0, N)
    word = words.drawn(seed.to(tl.uint32), step, publication, source, index.to(tl.uint32), 0x80000000)
    tl.store(out + index, word.to(tl.int32, bitcast=True))


@triton.jit
def canonical_kernel(x, out, N: tl.constexpr):
    index = tl.arange(0, N)
    word = words.canonical(tl.load(x + index).to(tl.uint32, bitcast=True))
    tl.store(out + index, word.to(tl.int32, bitcast=True))


@triton.jit
def publishable_kernel(x, out, holds, N: tl.constexpr):
    index = tl.arange(0, N)
    word = words.publishable(tl.load(x + index).to(tl.uint32, bitcast=True), holds)
    tl.store(out + index, word.to(tl.int32, bitcast=True))


@triton.jit
def paired_kernel(low, high, out, N: tl.constexpr):
    index = tl.arange(0, N)
    word = words.paired(tl.load(low + index), tl.load(high + index))
    tl.store(out + index, word.to(tl.int32, bitcast=True))


@pytest.fixture(autouse=True)
def _wrapping() -> None:
    words_may_wrap()


def drawn(*counters: int) -> torch.Tensor:
    out = torch.zeros(N, dtype=torch.int32)
    drawn_kernel[1,](out, *counters, N=N)
    return out


def test_the_host_draws_what_a_kernel_draws() -> None:
    for counters in ((0, 0, 0, 0), (7, 3, 11, 1), (2**31 - 1, 43_000, 1_200, 7)):
        twin = words.drawn_words(*counters, INDEX, SENTINEL).view(np.int32)
        assert torch.equal(drawn(*counters), torch.from_numpy(twin.copy()))


def test_every_counter_changes_what_is_drawn() -> None:
    first = drawn(1, 2, 3, 4)
    for counters in ((2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5)):
        assert int((drawn(*counters) != first).sum()) > 0.97 * N


def test_hard_words_are_among_them() -> None:
    found = np.concatenate([words.drawn_words(0, step, 0, 0, INDEX, SENTINEL) for step in range(8)])
    for word in (0x80000000, 0x80008000, 0x00008000, 0xFFFFFFFF, 0x7FC17F81, 0, 0x7F800000, 0xFF800000):
        assert (found == word).sum() > 10, hex(word)


def test_no_canonical_word_is_the_sentinel_and_only_negative_zero_changes() -> None:
    x = torch.tensor([0x80000000, 0x80008000, 0x00008000, 0x12348000, 0x80001234, 0xFFFFFFFF, 0x3F80BF80])
    x = torch.cat([x, torch.randint(0, 2**32, (N - len(x),))])
    x = torch.where(x >= 2**31, x - 2**32, x).int()
    out = torch.zeros_like(x)
    canonical_kernel[1,](x, out, N=N)
    halves = x.view(torch.bfloat16)
    expected = torch.where(halves == 0, torch.zeros_like(halves), halves).view(torch.int32)
    assert torch.equal(out, expected)
    assert not bool((out == -(2**31)).any())


def test_sums_are_rounded_as_torch_rounds_and_nan_is_one_pattern() -> None:
    low, high = torch.randn(N), torch.randn(N).exp() * 1e38
    low[:4] = torch.tensor([float("nan"), -0.0, 1e-40, 3.4e38])
    low[4:68] = 1 + torch.arange(64) / 256  # every second one lies midway between two BF16 values
    out = torch.zeros(N, dtype=torch.int32)
    paired_kernel[1,](low, high, out, N=N)
    expected = torch.stack([low, high], 1).bfloat16().view(torch.int16)
    expected[0, 0] = 0x7FFF
    expected[1, 0] = 0
    assert torch.equal(out.view(torch.int16).view(N, 2), expected)


def test_the_host_expects_what_a_writer_makes_canonical() -> None:
    for holds, sentinel in ((0, 0x80000000), (1, 0xFFFFFFFF), (2, 0xFFFFFFFF)):
        raw = words.drawn_words(3, 1, 4, 1, INDEX, sentinel)
        assert (raw == sentinel).sum() > N / 32
        x, out = torch.from_numpy(raw.view(np.int32).copy()), torch.zeros(N, dtype=torch.int32)
        publishable_kernel[1,](x, out, holds, N=N)
        twin = words.publishable_words(raw.copy(), holds)
        assert torch.equal(out, torch.from_numpy(twin.view(np.int32).copy()))
        assert not (twin == sentinel).any()
        assert not torch.equal(out, x)


def test_rows_of_nothing_but_the_sentinel_are_drawn() -> None:
    """As a shard without keys leaves them: once in 16 rows of 32 words."""
    rows = np.concatenate([words.drawn_words(9, step, 2, 1, INDEX, 0xFFFFFFFF) for step in range(8)])
    empty = (rows.reshape(-1, 32) == 0xFFFFFFFF).all(1).mean()
    assert 0.03 < empty < 0.1


def test_bytes_keep_all_but_the_other_nan_and_log_sums_all_but_what_is_no_number() -> None:
    raw = np.array([0xFF00FFFF, 0x7F81FE01, 0xFFFFFFFF, 0x80000000], np.uint32)
    assert [hex(w) for w in words.publishable_words(raw.copy(), 1)] == [
        "0x7f007f7f", "0x7f81fe01", "0x7f7f7f7f", "0x80000000",
    ]  # fmt: skip
    sums = [float("nan"), float("inf"), float("-inf"), -3e38, -3.2e38, -2.9e38, 3.3e38, -0.0, 1.5]
    found = words.publishable_words(np.array(sums, np.float32).view(np.uint32), 2).view(np.float32)
    assert found[:5].tolist() == [np.float32(-3e38)] * 5
    assert found[5:].tolist() == [np.float32(x) for x in sums[5:]]
