"""The embedding's reference against a plain look-up, token by token, and its regimes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.guarded import bits
from validation.contracts.vocabulary import embedding
from validation.contracts.vocabulary.embedding import EmbeddingArguments, build
from validation.numerics.arithmetic import Exact, Noise, Rounded

SHAPE = {"rows": 11, "ranks": 8, "shard": 24, "width": 40, "org": 187}
REGIMES = [r.name for r in embedding.REGIMES if r.name != "wide_offsets"]


def drawn(regime: str, **shape: int) -> EmbeddingArguments:
    return build(Case.of("embedding", regime, 3, **(SHAPE | shape)))


def result(a: EmbeddingArguments) -> torch.Tensor:
    """Every rank's copy, BF16 [rank, row, column]."""
    return embedding.reference(Rounded(embedding.STOCK), a)["out"].mean.bfloat16()


def looked_up(a: EmbeddingArguments) -> torch.Tensor:
    """Rows of the joined table, or zeros, -0.0 made +0 where ranks are summed. BF16 [row, column]"""
    table = a.weight.reshape(-1, a.weight.shape[-1])
    rows = []
    for token in a.tokens.tolist():
        row = table[token] if 0 <= token < a.org_vocab else torch.zeros_like(table[0])
        rows.append(row if len(a.weight) == 1 else torch.where(row == 0, torch.zeros_like(row), row))
    return torch.stack(rows)


@pytest.mark.parametrize("ranks", [1, 3, 8, 16])
@pytest.mark.parametrize("regime", REGIMES)
def test_the_reference_is_a_plain_look_up(regime: str, ranks: int) -> None:
    a = drawn(regime, ranks=ranks, org=24 * ranks - 5)
    copies, expected = result(a), looked_up(a)
    assert len(copies) == ranks
    for copy in copies:
        assert torch.equal(bits(copy.nan_to_num(7.5)), bits(expected.nan_to_num(7.5)))
        assert torch.equal(copy.isnan(), expected.isnan())


def test_the_prediction_is_exact_and_rounds_nothing() -> None:
    a = drawn("extreme")
    noisy = embedding.reference(Noise(embedding.STOCK), a)["out"]
    assert noisy.variance is None
    assert torch.equal(noisy.mean, embedding.reference(Exact(), a)["out"].mean)


def test_edges_name_the_first_and_last_row_of_every_shard() -> None:
    tokens = set(drawn("edges", rows=26).tokens.tolist())
    starts = {24 * rank for rank in range(8)}
    assert starts | {s + 23 for s in starts if s + 23 < 187} | {186} <= tokens


def test_invalid_ids_are_of_every_sort_and_leave_rows_of_zeros() -> None:
    a = drawn("invalid")
    tokens = a.tokens
    assert {-1, 187, 8 * 24 - 1} <= set(tokens.tolist())
    wrapped = (tokens >= 2**32) & (tokens.remainder(2**32) < 187)
    assert int(wrapped.sum()) >= 1, "an id that is valid when cut to 32 bits"
    invalid = (tokens < 0) | (tokens >= 187)
    out = result(a)
    assert not bool(bits(out[:, invalid]).any()), "not even the sign of a zero"
    assert bool((out[:, ~invalid] != 0).any())


def test_what_no_id_names_is_nan_and_not_read() -> None:
    a = drawn("poison")
    table = a.weight.reshape(-1, 40)
    named = torch.zeros(len(table), dtype=torch.bool)
    named[a.tokens] = True
    assert bool(table[~named].isnan().all())
    assert not bool(result(a).isnan().any())
    for regime in REGIMES:
        padded = drawn(regime).weight.reshape(-1, 40)[187:]
        assert bool(padded.isnan().all()), regime


def test_the_other_width_of_ids_names_other_rows_and_is_not_read() -> None:
    for regime in ("typical", "narrow"):
        a = drawn(regime)
        assert not bool((a.ids == a.ids32).any())
        if a.narrow:
            changed = dataclasses.replace(a, ids=torch.zeros_like(a.ids))
        else:
            changed = dataclasses.replace(a, ids32=torch.zeros_like(a.ids32))
        assert torch.equal(result(changed), result(a))


def test_values_reach_from_subnormals_to_the_largest_binade() -> None:
    size = drawn("extreme").weight.reshape(-1, 40)[:187].double().abs()
    assert float(size.min()) == 2.0**-133
    assert float(size.max()) == 2.0**127


def test_rows_of_the_table_reach_beyond_31_bits() -> None:
    a = build(Case.of("embedding", "wide_offsets", 3, rows=3, ranks=2, shard=4, width=40, org=7))
    step = embedding.strides(a)["weight"][1]
    local = a.tokens.remainder(4)
    assert int((local * step).max()) >= 2**31
