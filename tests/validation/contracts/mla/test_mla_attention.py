"""The latent attention reference against plain loops, and what its regimes promise."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.mla import attention
from validation.contracts.mla.attention_arguments import MlaAttentionArguments
from validation.contracts.mla.attention_inputs import REGIMES, build
from validation.contracts.mla.latent import numbers
from validation.numerics.arithmetic import Exact, Noise, Rounded


def drawn(regime: str, seed: int = 3, **shape: int) -> MlaAttentionArguments:
    base = {"requests": 3, "tokens": 1, "heads": 2, "page": 32, "length": 150}
    return build(Case.of("mla_attention", regime, seed, **(base | shape)))


def truth(a: MlaAttentionArguments) -> torch.Tensor:
    return attention.reference(Exact(), a)["out"].mean


def values(codes: torch.Tensor) -> torch.Tensor:
    return numbers(codes).double()


def scores_of(a: MlaAttentionArguments, request: int, head: int, t: int = 0) -> list[float]:
    """Natural logits of one row, key by key, looked up position by position."""
    page, length = a.cache.shape[1], int(a.lengths[request])
    query = values(a.query[request * a.tokens + t, head])
    found = []
    for position in range(length - a.tokens + 1 + t):
        key = values(a.cache[int(a.block_table[request, position // page]), position % page])
        found.append(float((query * key).sum()) * 192**-0.5 * a.q_scale * a.k_scale)
    return found


@pytest.mark.parametrize(("regime", "tokens"), [("typical", 1), ("unequal", 2), ("peaked", 1), ("flat", 3)])
def test_the_reference_is_the_plain_loop(regime: str, tokens: int) -> None:
    a = drawn(regime, length=70, tokens=tokens)
    page, found = a.cache.shape[1], truth(a)
    for request, t, head in ((0, 0, 0), (2, tokens - 1, 1)):
        logits = scores_of(a, request, head, t)
        e = [math.exp(s - max(logits)) for s in logits]
        for column in (0, 63, 511):
            row = [
                float(values(a.cache[int(a.block_table[request, j // page]), j % page, column]))
                for j in range(len(e))
            ]
            terms = [p * k for p, k in zip(e, row, strict=True)]
            expected = a.k_scale * math.fsum(terms) / math.fsum(e)
            # float64: sums of 576 and of len(e) terms in another order, and exponentials of such logits.
            size = a.k_scale * math.fsum(map(abs, terms)) / math.fsum(e)
            error = (576 * max(map(abs, logits)) + len(e) + 8) * 2.0**-52 * size
            assert abs(float(found[request, t, head, column]) - expected) <= error


def test_a_verify_row_is_the_plain_step_of_its_position() -> None:
    a = drawn("typical", tokens=4)
    for t in range(4):
        plain = copy.copy(a)
        plain.tokens, plain.lengths = 1, a.lengths - 3 + t
        plain.query = a.query[t::4]
        error = (truth(plain)[:, 0] - truth(a)[:, t]).abs().max()
        assert float(error) <= 2.0**-40 * float(truth(a).abs().max()), "float64 sums of other lengths"


def test_the_result_is_rounded_once_to_bf16() -> None:
    a = drawn("typical")
    rounded = attention.reference(Rounded(attention.STOCK), a)["out"].mean
    assert torch.equal(rounded, truth(a).float().bfloat16().double())


@pytest.mark.parametrize("regime", [r.name for r in REGIMES])
def test_what_no_request_owns_is_not_read(regime: str) -> None:
    a = drawn(regime, requests=4, tokens=2)
    owned = torch.zeros(a.cache.shape[:2], dtype=torch.bool)
    for request, length in enumerate(a.lengths.tolist()):
        for position in range(length):
            owned[int(a.block_table[request, position // 32]), position % 32] = True
    spoiled = copy.copy(a)
    spoiled.cache = torch.where(owned[..., None], a.cache, 0x38)
    assert bool((~owned[0]).all()), "page 0 is nobody's"
    assert not bool(owned[a.free_slot].any())
    assert torch.equal(truth(a).nan_to_num(7), truth(spoiled).nan_to_num(7))
    assert bool((values(a.cache[~owned]).abs() != 1).all()), "nothing neutral where nobody owns"


def test_log_sums_of_the_sixths_differ_when_unequal() -> None:
    a = drawn("unequal", requests=1, length=180)
    parts = torch.tensor(scores_of(a, 0, 0), dtype=torch.float64).tensor_split(6)
    sums = torch.stack([part.logsumexp(0) for part in parts])
    assert float((sums.amax() - sums).sort().values[1]) >= 1
    assert float(sums.amax() - sums.amin()) >= 3


def test_one_key_takes_all_when_peaked_and_none_when_flat() -> None:
    peaked = torch.tensor(scores_of(drawn("peaked"), 2, 1), dtype=torch.float64)
    assert float(peaked.amax() - peaked.amin()) > 150
    flat = torch.tensor(scores_of(drawn("flat"), 2, 1), dtype=torch.float64).softmax(0)
    assert float(flat.amax() / flat.amin()) < 1.5
    assert set(scores_of(drawn("flat"), 2, 0)) == {0.0}


def test_boundaries_have_lengths_on_both_sides_of_a_page_and_the_shortest_ones() -> None:
    lengths = drawn("boundaries", requests=8).lengths.tolist()
    assert {1, 31, 32, 33, 63, 64, 97} <= set(lengths)
    assert 3 in drawn("boundaries", requests=8, tokens=3).lengths.tolist(), "only the new tokens"


def test_shared_pages_stand_in_two_tables_at_two_places() -> None:
    a = drawn("shared_pages")
    places: dict[int, set[tuple[int, int]]] = {}
    for request, length in enumerate(a.lengths.tolist()):
        for i in range(length // 32):
            places.setdefault(int(a.block_table[request, i]), set()).add((request, i))
    shared = [p for p in places.values() if len(p) > 1]
    assert any(len({i for _, i in p}) > 1 for p in shared)


def test_padding_poison_and_wide_pages_are_what_they_say() -> None:
    assert drawn("padding").lengths.tolist()[1:] == [0, 0]
    assert bool(values(drawn("poisoned").cache[0]).isnan().all())
    wide = drawn("wide_offsets")
    stride = attention.strides(wide)["cache"][0]
    assert all(int(page) * stride >= 2**31 for page in wide.block_table[:, 0])


def test_a_nan_stays_in_its_row_and_its_request() -> None:
    a = drawn("nan_request")
    rows = truth(a).isnan()
    assert bool(rows[0].all())
    assert bool(rows[1, 0, 1].all())
    assert not bool(rows[1, 0, 0].any())
    assert not bool(rows[2].any())


def test_a_single_key_is_predicted_to_the_bit() -> None:
    a = drawn("boundaries")
    a.lengths[0] = 1
    for profile in (attention.STOCK, attention.SPECIALIZED):
        found = attention.reference(Noise(profile), a)["out"]
        assert found.variance is not None
        assert not bool(found.variance[0].any())
        key = values(a.cache[int(a.block_table[0, 0]), 0, :512]) * a.k_scale
        assert torch.equal(found.mean[0, 0, 0], key)
        assert bool((found.variance[2] > 0).any())
