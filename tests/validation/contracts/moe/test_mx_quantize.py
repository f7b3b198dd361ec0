"""The quantiser's reference against rules on bit patterns and a search through all E4M3 values."""

from __future__ import annotations

import math

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.moe import quantize
from validation.contracts.moe.quantize import MxQuantizeArguments, build, decoded
from validation.numerics.arithmetic import Exact

TABLE = [(code, float(v)) for code, v in enumerate(decoded(torch.arange(127, dtype=torch.uint8)).tolist())]


def drawn(regime: str, rule: int = 1, rows: int = 4, width: int = 224) -> MxQuantizeArguments:
    return build(Case.of("mx_quantize", regime, 5, rows=rows, width=width, rule=rule))


def result(a: MxQuantizeArguments) -> tuple[torch.Tensor, torch.Tensor]:
    found = quantize.reference(Exact(), a)
    return found["codes"].mean, found["scales"].mean.long()


def code_of(pattern: int, rule: str) -> int:
    """The scale code from the FP32 bits of a block's maximum."""
    exponent, mantissa = pattern >> 23, pattern & 0x7FFFFF
    if rule == "floor":
        return 254 if exponent == 255 else max(exponent - 8, 0)
    return 0 if exponent == 0 else min(max(exponent - 8 + (mantissa > 0x600000), 0), 254)


def nearest(x: float) -> float:
    """The E4M3 value nearest to ``x``, of two the one with an even code; NaN stays."""
    if math.isnan(x):
        return x
    size = min(abs(x), 448.0)
    _, _, value = min((abs(v - size), code % 2, v) for code, v in TABLE)
    return math.copysign(value, x)


@pytest.mark.parametrize("regime", [r.name for r in quantize.REGIMES if r.name != "wide_rows"])
@pytest.mark.parametrize("rule", [0, 1])
def test_the_reference_is_the_rule_on_the_bits(regime: str, rule: int) -> None:
    a = drawn(regime, rule, rows=2)
    elements, scales = result(a)
    for r in range(2):
        for b in range(a.x.shape[1] // 32):
            block = a.x[r, 32 * b : 32 * b + 32].float()
            largest = block[~block.isnan()].abs().max()
            code = code_of(int(largest.view(torch.int32)), a.rule)
            assert int(scales[r, b]) == code
            factor = 0.0 if code >= 254 else 2.0 ** (127 - code)
            for c, value in enumerate(block.tolist()):
                expected, seen = nearest(value * factor), float(elements[r, 32 * b + c])
                assert (math.isnan(expected) and math.isnan(seen)) or (
                    (expected, math.copysign(1, expected)) == (seen, math.copysign(1, seen))
                )


def test_the_rules_differ_exactly_where_the_floor_saturates() -> None:
    high, low = drawn("typical", 1), drawn("typical", 0)
    low.x = high.x
    largest = high.x.float().unflatten(-1, (-1, 32)).abs().amax(-1)
    mantissa = torch.frexp(largest).mantissa
    raised = result(high)[1] - result(low)[1]
    assert torch.equal(raised, (mantissa > 0.875).long())
    assert 0 < int(raised.sum()) < raised.numel() / 2


def test_regimes_hold_what_they_promise() -> None:
    blocks = {r: drawn(r).x.float().unflatten(-1, (-1, 32)) for r in ("edges", "tiny", "huge", "nan")}
    mantissa = torch.frexp(blocks["edges"].abs().amax(-1)).mantissa
    assert {0.875, 0.5} <= set(mantissa.unique().tolist())
    assert bool((blocks["tiny"].abs() < 2.0**-126).any())
    assert bool((blocks["tiny"] == 0).any())
    assert bool((torch.signbit(blocks["tiny"]) & (blocks["tiny"] == 0)).any())
    assert bool(blocks["huge"].isinf().any())
    assert float(blocks["huge"][~blocks["huge"].isinf()].max()) > 2.0**120
    assert set(blocks["nan"].isnan().sum(-1).flatten().tolist()) == {0, 1}


def test_infinity_saturates_by_one_rule_and_is_nan_by_the_other() -> None:
    a = drawn("huge")
    infinite = a.x.float().isinf()
    assert bool((result(a)[0][infinite].abs() == 448).all())
    a.rule = "floor"
    elements, scales = result(a)
    assert bool(elements[infinite].isnan().all())
    assert set(scales[infinite.unflatten(-1, (-1, 32)).any(-1)].tolist()) == {254}


def test_both_bytes_of_nan_are_nan() -> None:
    assert decoded(torch.tensor([[0x7F, 0xFF]], dtype=torch.uint8)).isnan().all()
