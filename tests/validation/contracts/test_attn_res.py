"""AttnRes: its reference against a loop written from the subject's formula (3.2), and its properties."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from validation.contracts import attn_res
from validation.contracts.arguments import AttnResArguments
from validation.contracts.attn_res import BLOCKS, build
from validation.contracts.contract import Case
from validation.numerics.arithmetic import Arithmetic, Exact, Rounded

QUICK = [case.line() for case in attn_res.cases("quick")]
# float64 sums of up to 7,168 terms in another order; a cancelling mixture loses up to four digits of it.
CLOSE = 2.0**-36
MERGES, FINISHES = ("add", "replace", "keep"), ("norm", "final", "mix")


def drawn(regime: str = "typical", blocks: int = 4, **options: int) -> AttnResArguments:
    base = {"rows": 3, "width": 320, "blocks": blocks, "write": -1, "merge": 0, "finish": 0, "aux": 0}
    return build(Case.of("attn_res", regime, 12, **(base | options)))


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def to_bf16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).bfloat16().double().numpy()


def plain_loop(a: AttnResArguments, rounds: bool = False) -> dict[str, np.ndarray]:
    """Row by row, source by source."""
    result: dict[str, np.ndarray] = {name: np.zeros(a.prefix.shape) for name in ("prefix", "out")}
    w = numbers(a.score_gamma) * numbers(a.score_proj)
    for row in range(a.prefix.shape[0]):
        old, delta = numbers(a.prefix)[row], numbers(a.delta)[row]
        p = {"add": old + delta, "replace": delta, "keep": old}[a.merge]
        p = to_bf16(p) if rounds else p
        sources = [numbers(a.blocks)[row, b] for b in range(a.blocks_read)] + [p]
        scores = [(v * w).sum() / np.sqrt((v * v).mean() + a.eps_score) for v in sources]
        weights = np.exp(np.array(scores) - max(scores))
        mixture = sum(e * v for e, v in zip(weights / weights.sum(), sources, strict=True))
        if a.finish == "final" and rounds:
            mixture = to_bf16(mixture)
        out = mixture
        if a.finish != "mix":
            out = mixture / np.sqrt((mixture * mixture).mean() + a.eps) * numbers(a.gamma)
        result["prefix"][row], result["out"][row] = p, to_bf16(out) if rounds else out
    if a.write_block >= 0:
        result["block"] = result["prefix"]
    if a.write_aux:
        result["aux"] = result["prefix"]
    return result


def reference(a: AttnResArguments, ar: Arithmetic | None = None) -> dict[str, torch.Tensor]:
    return {name: value.mean for name, value in attn_res.reference(ar or Exact(), a).items()}


def quadratic() -> Arithmetic:
    """Exact, with the norm as a quadratic form."""
    return Arithmetic(attn_res.SPECIALIZED, rounds=False, noisy=False)


def apart(found: torch.Tensor, expected: torch.Tensor | np.ndarray) -> float:
    """Largest difference over the size of the numbers; NaN must stand in the same places."""
    expected = torch.as_tensor(expected)
    assert found.shape == expected.shape
    assert torch.equal(found.isnan(), expected.isnan())
    size = float(expected.nan_to_num(0.0).abs().max()) or 1.0
    return float((found - expected).nan_to_num(0.0).abs().max()) / size


def positions() -> list[AttnResArguments]:
    """Every block count with every merge and finish."""
    return [
        drawn(blocks=blocks, merge=merge, finish=finish, width=64)
        for blocks in range(BLOCKS + 1)
        for merge in range(3)
        for finish in range(3)
    ]


@pytest.mark.parametrize("line", QUICK)
def test_the_reference_is_the_plain_loop(line: str) -> None:
    a = build(Case.parse(line))
    found, expected = reference(a), plain_loop(a)
    assert set(found) == set(expected)
    for name in expected:
        assert apart(found[name], expected[name]) < CLOSE, name


def test_every_block_count_merge_and_finish_is_the_plain_loop() -> None:
    seen = set()
    for a in positions():
        assert apart(reference(a)["out"], plain_loop(a)["out"]) < CLOSE, (a.blocks_read, a.merge, a.finish)
        seen.add((a.blocks_read, a.merge, a.finish))
    assert len(seen) == 9 * 3 * 3


@pytest.mark.parametrize("line", QUICK)
def test_the_norm_as_a_quadratic_form_is_the_direct_one(line: str) -> None:
    a = build(Case.parse(line))
    assert apart(reference(a, quadratic())["out"], reference(a)["out"]) < CLOSE
    if a.blocks_read and a.finish == "norm":
        a = replace(a, eps=1.0)  # eps counts with the squared denominator
        assert apart(reference(a, quadratic())["out"], reference(a)["out"]) < CLOSE


@pytest.mark.parametrize("finish", [0, 1, 2])
def test_the_sites_round_where_they_say(finish: int) -> None:
    a = drawn(finish=finish)
    found, expected = reference(a, Rounded(attn_res.STOCK)), plain_loop(a, rounds=True)
    assert torch.equal(found["prefix"], (a.prefix + a.delta).double()), "as BF16 adds, bit for bit"
    # What is stored in BF16 may land on the other side of a tie; after a rounded mixture a few may.
    assert int((found["out"] != torch.from_numpy(expected["out"])).sum()) <= (3 if finish == 1 else 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_of_two_bf16_numbers_rounds_once_even_by_way_of_fp32(seed: int) -> None:
    """Why the prefix is known to the bit: FP32 never brings it onto a tie."""
    g = torch.Generator().manual_seed(seed)
    a, b = (
        (torch.randn(200_000, generator=g) * torch.exp2(12 * torch.randn(200_000, generator=g))).bfloat16()
        for _ in range(2)
    )
    exact = Rounded(attn_res.STOCK)
    total = exact.round(exact.load(a) + exact.load(b), "attn_res.prefix").mean
    assert torch.equal(total, (a.float() + b.float()).bfloat16().double())


@pytest.mark.parametrize("blocks", range(BLOCKS + 1))
@pytest.mark.parametrize("form", [Exact, quadratic])
def test_blocks_beyond_the_count_are_not_read(blocks: int, form: type) -> None:
    a = drawn(blocks=blocks)
    stale = copy.deepcopy(a)
    stale.blocks[:, blocks:] = float("nan")
    assert torch.equal(reference(stale, form())["out"], reference(a, form())["out"])
    if blocks < BLOCKS:
        assert bool(a.blocks[:, blocks:].isfinite().all())
        assert float(a.blocks[:, blocks:].float().std()) > 20, "finite and large: a NaN would be too easy"
        assert apart(reference(replace(a, blocks_read=blocks + 1))["out"], reference(a)["out"]) > 0.1


def test_rows_may_come_in_any_order_and_do_not_mix() -> None:
    a, order = drawn(rows=5), [3, 0, 4, 1, 2]
    rows = {n: getattr(a, n)[order] for n in ("prefix", "delta", "blocks", "aux", "out")}
    assert apart(reference(replace(a, **rows))["out"], reference(a)["out"][order]) < CLOSE
    spoiled = copy.deepcopy(a)
    spoiled.blocks[2] *= 2
    spoiled.delta[2] *= -1
    others = [0, 1, 3, 4]
    assert torch.equal(reference(spoiled)["out"][others], reference(a)["out"][others])
    assert not torch.equal(reference(spoiled)["out"][2], reference(a)["out"][2])


def test_the_order_of_blocks_does_not_matter() -> None:
    a = drawn(blocks=8)
    turned = replace(a, blocks=a.blocks.flip(1))
    for form in (Exact, quadratic):
        assert apart(reference(turned, form())["out"], reference(a, form())["out"]) < CLOSE


def test_the_block_written_is_the_new_prefix_and_no_source_of_the_same_call() -> None:
    a = drawn(blocks=3, write=3)
    found = reference(a)
    assert torch.equal(found["block"], found["prefix"])
    assert torch.equal(found["out"], reference(replace(a, write_block=-1))["out"])
    assert apart(found["out"], reference(replace(a, blocks_read=4))["out"]) > 0.1


@pytest.mark.parametrize("tier", ["quick", "full"])
def test_cases_write_the_block_behind_those_they_read_and_hold_layer_0(tier: str) -> None:
    """As the subject does; a written block that is also read would be another operation."""
    found = [dict(case.shape) for case in attn_res.cases(tier)]
    writing = [shape for shape in found if shape["write"] >= 0]
    assert all(shape["write"] == shape["blocks"] for shape in writing)
    assert any(shape["blocks"] == 0 and shape["merge"] == MERGES.index("replace") for shape in writing)


@pytest.mark.parametrize("regime", ["small", "zero_row"])
def test_where_eps_decides_the_two_differ_and_are_no_defaults(regime: str) -> None:
    a = drawn(regime)
    assert len({a.eps, a.eps_score, AttnResArguments.eps}) == 3


def test_what_a_boundary_does_not_use_is_nan_and_not_read() -> None:
    replaced, kept = drawn(merge=1), drawn(merge=2)
    assert replaced.prefix.isnan().all()
    assert kept.delta.isnan().all()
    for a in (replaced, kept):
        assert bool(reference(a)["out"].isfinite().all())
    assert torch.equal(reference(replaced)["prefix"], replaced.delta.double())
    assert torch.equal(reference(kept)["prefix"], kept.prefix.double())


@pytest.mark.parametrize("merge", range(3))
@pytest.mark.parametrize("write", [-1, 0, 5])
@pytest.mark.parametrize("aux", [0, 1])
def test_touched_says_what_a_boundary_writes(merge: int, write: int, aux: int) -> None:
    a = drawn(blocks=5, merge=merge, write=write, aux=aux)
    touched = {n: m.broadcast_to(getattr(a, n).shape) for n, m in attn_res.touched(a).items()}
    assert bool(touched["prefix"].all()) == bool(touched["prefix"].any()) == (merge != 2)
    assert bool(touched["aux"].all()) == bool(touched["aux"].any()) == bool(aux)
    written = touched["blocks"].flatten(2).all(2).all(0)
    assert written.nonzero().flatten().tolist() == ([write] if write >= 0 else [])
    assert torch.equal(written, touched["blocks"].flatten(2).any(2).any(0))
    found = reference(a)
    assert ("aux" in found, "block" in found) == (bool(aux), write >= 0)
