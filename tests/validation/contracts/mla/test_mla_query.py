"""The reference of ``mla_query`` against plain loops, its regimes, and what may not be read."""

from __future__ import annotations

import math

import pytest
import torch

from validation.contracts.arena import Arena
from validation.contracts.contract import Case
from validation.contracts.mla import query
from validation.contracts.mla.query import inserted, reference, touched
from validation.contracts.mla.query_arguments import MlaQueryArguments
from validation.contracts.mla.query_inputs import REGIMES, build
from validation.numerics.arithmetic import Exact, Noise, Rounded
from validation.numerics.formats import E4M3

# float64 sums of up to 40 terms and half a dozen products in another order.
CLOSE = 64 * 2.0**-53
SIZES = {"rows": 4, "heads": 2, "rank": 40, "nope": 8, "rope": 4, "latent": 12, "page": 6}


def drawn(regime: str, seed: int = 3, **sizes: int) -> MlaQueryArguments:
    return build(Case.of("mla_query", regime, seed, **(SIZES | sizes)))


def e4m3(code: int) -> float:
    """The value of an E4M3FN byte, from its fields."""
    sign, exponent, fraction = -1.0 if code & 0x80 else 1.0, (code >> 3) & 15, code & 7
    if code & 0x7F == 0x7F:
        return math.nan
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return sign * (1 + fraction / 8) * 2.0 ** (exponent - 7)


def normed(x: list[float], weight: list[float], eps: float) -> list[float]:
    mean_square = math.fsum(v * v for v in x) / len(x)
    return [v / math.sqrt(mean_square + eps) * w for v, w in zip(x, weight, strict=True)]


@pytest.mark.parametrize("regime", ["typical", "scaled_up", "small", "rope_large"])
def test_the_reference_is_the_plain_loop(regime: str) -> None:
    a = drawn(regime)
    found = {name: value.mean for name, value in reference(Exact(), a).items()}
    w_q, w_uk = a.w_q.double().tolist(), a.w_uk.double().tolist()
    for row in range(4):
        x = a.projected[row].double().tolist()
        c = normed(x[:40], a.q_norm.double().tolist(), a.eps)
        for head in range(2):
            q = [math.fsum(p * w for p, w in zip(c, w_q[head * 12 + j], strict=True)) for j in range(12)]
            size = sum(abs(v) for v in c) * float(a.w_q.abs().max()) * float(a.w_uk.abs().max()) * 8
            for column in range(12):
                expected = math.fsum(q[p] * w_uk[head][p][column] for p in range(8)) * a.q_inverse
                assert abs(float(found["query"][row, head, column]) - expected) <= CLOSE * size * a.q_inverse
            for column in range(4):
                error = float(found["query"][row, head, 12 + column]) - q[8 + column] * a.q_inverse
                assert abs(error) <= CLOSE * size * a.q_inverse
        n = normed(x[40:52], a.kv_norm.double().tolist(), a.eps)
        for column in range(12):
            expected = n[column] * a.k_inverse
            assert abs(float(found["latent"][row, column]) - expected) <= CLOSE * abs(expected)
        for column in range(4):
            product = torch.tensor(x[52 + column], dtype=torch.float32) * a.k_inverse
            assert float(found["k_pe"][row, column]) == float(product)


def test_predictions_lie_on_the_grid_of_e4m3_and_away_from_its_ties() -> None:
    """With scales that are no powers of two no rounded value may sit on a tie, or bytes were not known."""
    a = drawn("typical", rank=256, latent=64)
    for name in ("query", "latent"):
        rounded = reference(Rounded(query.STOCK), a)[name].mean
        assert torch.equal(rounded, E4M3.round(rounded))
        before = reference(Noise(query.STOCK), a)[name].mean
        low, high = E4M3.bracket(E4M3.round(before))
        assert bool((torch.minimum(before - low, high - before) > 2.0**-20 * before.abs()).all())


def test_the_bytes_are_decoded_as_the_format_says() -> None:
    a = drawn("typical", heads=16, rope=4, latent=12)
    a.query[0] = torch.arange(256).to(torch.uint8).reshape(16, 16)
    decoded = query.CONTRACT.outputs[0].view(a)[0].flatten().tolist()
    expected = [e4m3(code) for code in range(256)]
    assert [math.isnan(v) for v in decoded] == [math.isnan(v) for v in expected]
    assert [v for v in decoded if v == v] == [v for v in expected if v == v]
    assert math.copysign(1, decoded[0x80]) == -1


@pytest.mark.parametrize("regime", [r.name for r in REGIMES])
def test_slots_are_distinct_sparse_and_never_in_the_null_page(regime: str) -> None:
    a = drawn(regime, rows=6, page=8)
    pages, page, _ = a.cache.shape
    live = a.slot[a.slot >= 0].tolist()
    assert len(set(live)) == len(live)
    assert all(page <= slot < pages * page for slot in live)
    assert a.free_slot >= page
    assert a.free_slot not in live
    assert int(touched(a)["cache"].sum()) == len(live)
    assert live != sorted(live), "in order, a shift by one request would be a shift by one slot"
    assert (a.slot.min() == -1) == (regime == "padding")


def test_page_edges_are_first_and_last_places_of_odd_pages() -> None:
    case = next(c for c in query.cases("quick") if c.regime == "page_edges")
    a = build(case)
    page = case["page"]
    assert page & (page - 1) != 0
    assert set((a.slot % page).tolist()) == {0, page - 1}


def test_padding_rows_insert_nothing_and_rows_of_minus_one_are_not_the_last() -> None:
    a = drawn("padding")
    assert a.slot.tolist()[0] == a.slot.tolist()[3] == -1
    pages, page, _ = a.cache.shape
    owned = touched(a)["cache"].expand_as(a.cache)
    assert not bool(owned[0].any()), "where -1 ends up when it is clamped"
    assert not bool(owned[pages - 1, page - 1].any()), "where -1 ends up when it wraps"
    assert not bool(inserted(a)[0].any())


def test_saturated_reaches_beyond_the_range_in_every_part() -> None:
    a = drawn("saturated", rank=256, latent=64)
    exact = reference(Exact(), a)
    for name, least in (("query", 0.05), ("latent", 0.05), ("k_pe", 0.05)):
        beyond = (exact[name].mean.abs() > 464).double().mean()
        assert least < float(beyond) < 0.9, name
    assert float(a.part("k_pe")[0, 0]) == math.inf


def test_rope_parts_are_ten_times_larger_and_fit() -> None:
    exact = reference(Exact(), drawn("rope_large", rank=256, nope=32, latent=64, rope=16))
    rope, latent = exact["query"].mean[..., 64:], exact["query"].mean[..., :64]
    assert float(rope.std() / latent.std()) > 5
    assert float(rope.abs().max()) < 448
    assert float(exact["k_pe"].mean.abs().max()) < 448
    assert float(exact["k_pe"].mean.std() / exact["latent"].mean.std()) > 5


def test_the_eps_decides_in_small_and_not_in_typical() -> None:
    def moved(regime: str) -> float:
        a = drawn(regime)
        before = reference(Exact(), a)["latent"].mean
        a.eps = 1e-6
        return float(((reference(Exact(), a)["latent"].mean - before) / before).abs().max())

    assert moved("small") > 0.2
    assert moved("typical") < 1e-4


def test_ties_are_ties_and_subnormals_have_both_signs() -> None:
    a = drawn("ties", rows=8, rope=32)
    value = a.part("k_pe").double() / a.k_scale
    low, high = E4M3.bracket(E4M3.round(value))
    assert float(((value == low) | (value == high)).double().mean()) > 0.7
    small = value[(value.abs() < 2.0**-6) & (value != 0)]
    assert bool((small > 0).any())
    assert bool((small < 0).any())


def test_minus_zero_keys_have_the_byte_0x80() -> None:
    keys = reference(Rounded(query.STOCK), drawn("zero_row"))["k_pe"].mean
    assert bool((torch.signbit(keys) & (keys == 0)).any())


def test_a_nan_stays_in_its_row() -> None:
    found = reference(Exact(), drawn("nan_row"))
    for name, value in found.items():
        assert value.mean.isnan().flatten(1).any(1).tolist() == [False, False, True, False], name


def test_what_follows_k_pe_is_not_read() -> None:
    a = drawn("typical")
    assert bool(a.projected[:, 40 + 12 + 4 :].isnan().all())
    assert all(bool(v.mean.isfinite().all()) for v in reference(Exact(), a).values())


def test_a_row_of_nan_is_an_answer_and_an_untouched_row_is_not() -> None:
    a = drawn("nan_row")
    arena = Arena(query.CONTRACT, a)
    arena.arguments.query[2] = 0x7F
    unwritten = [v for v in arena.check() if v.statistic == "unwritten"]
    assert [v.mask[:, :, 0].tolist() for v in unwritten] == [
        [[True] * 2, [True] * 2, [False] * 2, [True] * 2]
    ]


def test_wide_pages_reach_beyond_32_bits() -> None:
    a = drawn("wide_offsets")
    stride = query.strides(a)["cache"][0]
    assert int(a.slot.max()) // a.cache.shape[1] * stride > 2**31
