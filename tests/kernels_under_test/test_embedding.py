"""The embedding kernels against a plain look-up: every bit is known."""

import pytest
import torch

from kernels_under_test.triton_portable.embedding_kernels import TABLE, embedding
from tests.kernels_under_test.memory import NAN, spread
from validation.contracts.guarded import bits
from validation.contracts.vocabulary.embedding import EmbeddingArguments
from validation.dispatch.launches import recorded
from validation.errors import UserError

SHARD, ORG = 6, 21


def arguments(rows: int, ranks: int = 4, columns: int = 40, narrow: bool = False) -> EmbeddingArguments:
    """Random rows with -0.0, NaN beyond the vocabulary; ids of all sorts, the first of them invalid."""
    draw = torch.Generator().manual_seed(rows + ranks)
    weight = torch.randn(ranks, SHARD, columns, generator=draw).bfloat16()
    weight[:, :, ::3] = -0.0
    weight.view(ranks * SHARD, columns)[ORG:] = NAN
    ids = torch.randint(0, ORG, (rows,), generator=draw)
    ids[: min(rows, 4)] = torch.tensor([-1, ORG, ranks * SHARD + 2, 2**31 - 1])[: min(rows, 4)]
    out = torch.full((ranks, rows, columns), NAN, dtype=torch.bfloat16)
    weight, out = spread(weight), spread(out)
    unused = torch.zeros(rows, dtype=torch.int64, device=weight.device)
    ids = ids.to(weight.device)
    return EmbeddingArguments(
        ids=unused if narrow else ids, ids32=(ids if narrow else unused).int(), weight=weight, out=out,
        org_vocab=ORG, narrow=narrow,
    )  # fmt: skip


def expected(a: EmbeddingArguments) -> torch.Tensor:
    table = a.weight.reshape(-1, a.weight.shape[-1])
    rows = [table[i] if 0 <= i < ORG else torch.zeros_like(table[0]) for i in a.tokens.tolist()]
    found = torch.stack(rows)
    return found if len(a.weight) == 1 else torch.where(found == 0, torch.zeros_like(found), found)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 64, 65])  # both sides of the switch of kernels
def test_every_rank_ends_with_the_rows_that_the_ids_name(rows, narrow):
    a = arguments(rows, narrow=narrow)
    embedding(a)
    for copy in a.out:
        assert torch.equal(bits(copy), bits(expected(a)))


@pytest.mark.parametrize("rows", [5, 65])
@pytest.mark.parametrize("columns", [1, 31, 1025])
def test_odd_widths_leave_the_gaps_alone(rows, columns):
    a = arguments(rows, columns=columns)
    embedding(a)
    assert torch.equal(bits(a.out[1].contiguous()), bits(expected(a)))
    gap = a.out.as_strided((len(a.out), 7), (a.out.stride(0), 1), 0)
    assert gap.isnan().all()


@pytest.mark.parametrize("rows", [9, 70])
def test_one_rank_copies_and_keeps_negative_zero(rows):
    a = arguments(rows, ranks=1)
    a.org_vocab = SHARD
    a.ids.copy_(torch.arange(rows) % SHARD)
    embedding(a)
    assert torch.equal(bits(a.out[0]), bits(a.weight[0][a.ids]))
    assert torch.signbit(a.out[a.out == 0]).all()


def test_ids_may_lie_apart():
    a = arguments(8)
    dense = a.ids.clone()
    apart = torch.full((8, 3), 5, dtype=torch.int64, device=dense.device)
    apart[:, 0] = dense
    a.ids = apart[:, 0]
    embedding(a)
    a.ids = dense
    assert torch.equal(bits(a.out[2]), bits(expected(a)))


def test_the_table_of_the_dispatch_is_what_is_launched():
    for rows in (64, 65):
        with recorded() as names:
            embedding(arguments(rows))
        assert tuple(names) == next(route.kernels for route in TABLE if rows <= route.rows)


def test_a_table_stored_by_columns_is_refused_before_anything_is_launched():
    a = arguments(3)
    a.weight = a.weight.transpose(1, 2).contiguous().transpose(1, 2)
    with recorded() as names, pytest.raises(UserError, match="weight must be dense"):
        embedding(a)
    assert names == []
