"""What every contract keeps: cases print and build, inputs depend on the line alone, references only read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from validation.contracts import contract_named, contracts
from validation.contracts.arena import Arena
from validation.contracts.contract import DTYPES, Case, Contract, tensor_specs
from validation.contracts.regimes import generator, log_uniform_half_lives, sparse_slots
from validation.errors import UserError
from validation.numerics.arithmetic import Noise, Rounded

ALL = list(contracts().values())
QUICK = [case.line() for contract in ALL for case in contract.cases("quick")]
each = pytest.mark.parametrize("contract", ALL, ids=lambda c: c.name)


def built(line: str) -> tuple[Contract, Any]:
    case = Case.parse(line)
    contract = contract_named(case.op)
    return contract, contract.build(case)


def tensors(arguments: Any) -> dict[str, torch.Tensor]:
    """Those that the case has (None: absent)."""
    given = {name: getattr(arguments, name) for name in tensor_specs(arguments)}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, NaN payloads and signs of zero included."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


@each
@pytest.mark.parametrize("tier", ["quick", "full"])
def test_every_case_prints_as_a_line_that_reads_back(contract: Contract, tier: str) -> None:
    cases = contract.cases(tier)
    lines = [case.line() for case in cases]
    assert [Case.parse(line) for line in lines] == list(cases)
    assert len(set(lines)) == len(lines), "no case twice"
    for case in cases:
        assert case.op == contract.name
        assert contract.regime(case.regime).kinds, "a regime says what it is for"
        assert all(size >= -1 for _, size in case.shape)


@each
def test_the_full_tier_contains_the_quick_one_and_every_regime(contract: Contract) -> None:
    quick, full = set(contract.cases("quick")), set(contract.cases("full"))
    assert quick < full
    regimes = {regime.name for regime in contract.regimes}
    assert {case.regime for case in full} == regimes
    assert regimes - {case.regime for case in quick} <= {"wide_offsets"}


@pytest.mark.parametrize("line", QUICK)
def test_a_case_builds_what_it_declares_from_its_line_alone(line: str) -> None:
    contract, arguments = built(line)
    torch.manual_seed(1234)
    _, again = built(line)
    for name, value in tensors(arguments).items():
        spec = tensor_specs(arguments)[name]
        assert value.dtype == getattr(torch, DTYPES[spec.dtype]), name
        assert value.dim() == len(spec.axes), name
        assert same(value, getattr(again, name)), name
    for output in contract.outputs:
        if output.present(arguments):
            assert output.view(arguments).dim() == len(output.axes)
            grouped = {axis.split("/")[0] for group in output.slices for axis in group}
            assert grouped | set(output.shared) <= set(output.axes)


@each
def test_other_lines_draw_other_inputs(contract: Contract) -> None:
    case = contract.cases("quick")[0]
    base = tensors(contract.build(case))
    others = [Case(case.op, case.shape, case.regime, case.seed + 1)]
    others += [
        Case(case.op, case.shape, r.name, case.seed) for r in contract.regimes if r.name != case.regime
    ]
    for other in others:
        values = tensors(contract.build(other))
        kinds = [n for n, t in base.items() if t.is_floating_point() or t.dtype == torch.uint8]
        drawn = [n for n in kinds if bool((base[n] != 0).any())]
        moved = [n for n in drawn if n in values and not same(values[n], base[n])]
        # Neighbouring seeds share the weights; the embedding draws nothing else that is not an id, the
        # quantiser nothing but its rows.
        few = ("projection", "embedding", "prefetch", "dense_mlp", "mx_quantize")
        least = 1 if contract.name in few else 2
        assert len(moved) >= least, other.line()


@pytest.mark.parametrize("line", QUICK)
def test_the_reference_predicts_every_output_and_modifies_nothing(line: str) -> None:
    contract, arguments = built(line)
    kept = copy.deepcopy(arguments)
    present = [output for output in contract.outputs if output.present(arguments)]
    for profile in contract.profiles.values():
        for reading in (Noise(profile), Rounded(profile), Noise(profile.accuracy())):
            values = contract.reference(reading, arguments)
            assert set(values) == {output.name for output in present}
            for output in present:
                assert values[output.name].shape == output.view(arguments).shape, output.name
            if reading.noisy:
                exact = {o.name for o in present if o.exact}
                assert {n for n, v in values.items() if v.variance is None} == exact
    for name, value in tensors(kept).items():
        assert same(value, getattr(arguments, name)), name


@pytest.mark.parametrize("line", QUICK)
def test_the_noise_of_a_case_is_finite_and_small_wherever_the_result_is_finite(line: str) -> None:
    contract, arguments = built(line)
    for profile in contract.profiles.values():
        for name, value in contract.reference(Noise(profile), arguments).items():
            if value.variance is None:
                continue
            finite = value.mean.isfinite()
            variance = value.variance[finite]
            assert bool(variance.isfinite().all()), name
            assert bool((variance >= 0).all()), name
            if (
                not bool(finite.any()) or "cancelling" in line
            ):  # the quadratic norm does lose all digits there
                continue
            scale = float(value.mean[finite].abs().max())
            assert float(variance.max().sqrt()) <= 2.0**-9 * scale, "less than BF16 resolves"


@pytest.mark.parametrize("line", QUICK)
def test_an_untouched_arena_holds_what_was_built(line: str) -> None:
    contract, arguments = built(line)
    arena = Arena(contract, arguments)
    for name, given in tensors(arguments).items():
        if tensor_specs(arguments)[name].access != "write":
            assert same(getattr(arena.arguments, name), given), name
    assert {v.statistic for v in arena.check()} == {"unwritten"}


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "",
        "kda",
        "kda:heads=2:unit",
        "kda:heads:unit:1",
        "kda:heads=two:unit:1",
        "kda:heads=2:unit:x",
        "a:b=1:c:2:3",
    ],
)
def test_a_line_that_is_no_case_is_refused_with_the_form(line: str) -> None:
    with pytest.raises(UserError, match=r"is not a case; a case reads OP:name=value,...:REGIME:SEED"):
        Case.parse(line)


def test_a_case_gives_its_sizes_by_name() -> None:
    case = Case.of("op", "typical", 4, rows=2, width=-1)
    assert (case["rows"], case["width"]) == (2, -1)
    assert case.line() == "op:rows=2,width=-1:typical:4"
    assert Case.parse("op::typical:4").shape == ()
    with pytest.raises(KeyError):
        case["columns"]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown operation 'gemm'; known: embedding, attn_res, projection"):
        contract_named("gemm")
    with pytest.raises(UserError, match="attn_res has no regime 'wild'; known: typical, small"):
        contract_named("attn_res").regime("wild")


# -- generators ------------------------------------------------------------------------------------


def test_a_generator_depends_on_the_whole_line() -> None:
    cases = [
        Case.of("a", "r", 1, n=1),
        Case.of("a", "r", 1, n=2),
        Case.of("a", "r", 2, n=1),
        Case.of("b", "r", 1, n=1),
    ]
    draws = [float(torch.rand((), generator=generator(case))) for case in cases]
    assert len(set(draws)) == 4
    assert draws == [float(torch.rand((), generator=generator(case))) for case in cases]


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_slots_are_distinct_positive_and_leave_one_free(count: int) -> None:
    slots = sparse_slots(torch.Generator().manual_seed(count), count)
    assert slots.dtype == torch.int32
    assert len(slots.unique()) == count
    assert int(slots.min()) >= 1
    assert int(slots.max()) <= 2 * count + 2


def test_half_lives_span_five_decades() -> None:
    drawn = log_uniform_half_lives(torch.Generator().manual_seed(1), 20_000)
    decades = torch.log10(drawn)
    assert float(decades.min()) >= 0
    assert float(decades.max()) <= 5
    counts = torch.histc(decades, 5, 0, 5)
    assert float((counts - 4_000).abs().max()) < 5 * 4_000**0.5, "seed 1"
