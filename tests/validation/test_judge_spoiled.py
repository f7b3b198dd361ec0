"""Providers that spoil their arguments get findings, not an error: the memory they were given is judged."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import kernels_under_test.torch_stock  # noqa: F401 (registers the provider)
from validation.contracts import contracts
from validation.contracts.contract import Case
from validation.controls import TILE, planted
from validation.judge import judge_case
from validation.providers import implementation
from validation.report.schema import CaseResult

PROJECTION = "projection:rows=3,columns=72,k=328:typical:5"
DECODE = "kda_decode:heads=2,dim=64,requests=3:unit_state:5"


def judged(
    line: str, after: Callable[[Any], object], mode: str = "profile", controls: bool = False
) -> CaseResult:
    """The torch provider's verdict, with ``after`` run on its arguments when it is done."""
    case = Case.parse(line)
    stock = implementation(case.op, "torch")

    def spoiled(a: Any) -> None:
        stock.function(a)
        after(a)

    provider = replace(stock, function=spoiled)
    return judge_case(case, provider, "cpu", share=1e-7, mode=mode, controls=controls)


def replaced(name: str, value: Callable[[Any], object]) -> Callable[[Any], None]:
    return lambda a: setattr(a, name, value(getattr(a, name)))


SPOILS: dict[str, tuple[str, str, Callable[[Any], object]]] = {
    "another tensor": (PROJECTION, "out", replaced("out", torch.clone)),
    "a smaller tensor": (PROJECTION, "out", replaced("out", lambda t: t[:1, :1])),
    "a tensor of another rank": (PROJECTION, "out", replaced("out", lambda t: t[0, 0])),
    "another dtype": (PROJECTION, "out", replaced("out", torch.Tensor.float)),
    "nothing": (PROJECTION, "out", replaced("out", lambda t: None)),
    "resized": (PROJECTION, "out", lambda a: a.out.resize_(1, 2)),
    "pointed elsewhere": (PROJECTION, "out", lambda a: a.out.set_(torch.zeros(2, dtype=torch.bfloat16))),
    "a small cache": (DECODE, "state", replaced("state", lambda t: t[:1])),
    "other slots": (DECODE, "slots", replaced("slots", lambda t: t + 1000)),
    "a number": (DECODE, "tokens", replaced("tokens", lambda n: n + 1)),
}


@pytest.mark.parametrize("what", SPOILS)
def test_a_replaced_argument_is_the_one_finding(what: str) -> None:
    line, field, spoil = SPOILS[what]
    result = judged(line, spoil)
    assert [(f.statistic, f.output) for f in result.findings] == [("replaced", field)]
    assert result.verdict == "fail"
    assert f"{field}: was " in result.findings[0].message


def test_results_are_judged_by_the_slots_that_were_given() -> None:
    result = judged(DECODE, lambda a: a.slots.fill_(10_000))
    assert [(f.statistic, f.output) for f in result.findings] == [("input_changed", "slots")]


def test_a_zero_of_the_wrong_sign_is_found_in_a_bit_exact_output() -> None:
    line = "attn_res:rows=3,width=320,blocks=4,write=-1,merge=0,finish=0,aux=0:zero_row:5"
    (finding,) = judged(line, lambda a: a.prefix[1, 7].fill_(-0.0)).findings
    assert (finding.statistic, finding.output) == ("bits", "prefix")
    assert finding.where == "row 1, column 7"


def test_every_finding_replays_as_the_case_it_came_from() -> None:
    result = judged(PROJECTION, lambda a: a.out.mul_(2))
    assert len(result.findings) >= 2
    for finding in result.findings:
        command, verb, key = shlex.split(finding.replay)
        provider, line = key.split("/", 1)
        assert (command, verb, provider) == ("lockstep", "replay", "torch")
        assert Case.parse(line) == Case.parse(PROJECTION) == Case.parse(finding.case)


def test_findings_come_worst_first() -> None:
    result = judged(PROJECTION, lambda a: a.out.mul_(1.02))
    ratios = [f.ratio for f in result.findings]
    assert ratios == sorted(ratios, reverse=True)
    assert min(ratios) > 1


def test_an_error_without_text_is_named_by_its_type_and_place() -> None:
    def empty(a: Any) -> None:
        raise KeyError

    finding = judged(PROJECTION, empty).findings[0]
    assert finding.statistic == "exception"
    assert finding.message.startswith("raised KeyError")
    assert finding.where.startswith("empty, line ")


def test_limits_widen_as_the_share_shrinks() -> None:
    case, stock = Case.parse(PROJECTION), implementation("projection", "torch")
    limits = []
    for share in (1e-3, 1e-12):
        scores = judge_case(case, stock, "cpu", share=share).scores
        limits.append(next(s.limit for s in scores if s.statistic == "bias"))
    assert limits[0] < limits[1]


def test_accuracy_mode_names_a_wrong_scale_all_the_same() -> None:
    for mode in ("profile", "accuracy"):
        result = judged(DECODE, lambda a: a.out.mul_(1.01), mode)
        assert any(f.statistic == "projection" and f.output == "out" for f in result.findings), mode


def test_a_wrong_provider_is_shown_to_be_wrong_by_the_honest_limits_only() -> None:
    """Where the output is all NaN there is nothing to plant a fault in."""
    result = judged(PROJECTION, lambda a: a.out.fill_(float("nan")), controls=True)
    assert result.controls_planted == 0
    assert result.findings[0].statistic == "nonfinite"


# -- the controls themselves -----------------------------------------------------------------------


def output(op: str, name: str) -> Any:
    return next(o for o in contracts()[op].outputs if o.name == name)


def test_controls_are_one_element_a_stale_fragment_and_for_state_a_drift() -> None:
    seen = torch.randn(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    before = torch.zeros_like(seen)
    element, fragment, drift = planted(output("kda_decode", "state"), seen, before)
    (at,) = (element != seen).nonzero().tolist()
    assert 0 < float(element[tuple(at)] / seen[tuple(at)]) <= 15 / 16
    assert float(seen[tuple(at)].abs()) == float(seen.abs().max())
    assert torch.equal(fragment[..., :-TILE], seen[..., :-TILE])
    assert bool((fragment[..., -TILE:] == 0).all())
    assert torch.equal(drift, seen * 0.999)
    in_bf16 = list(planted(output("projection", "out"), seen.bfloat16(), before.bfloat16()))
    assert len(in_bf16) == 2, "no drift of what is stored in BF16"


def test_a_control_that_changes_nothing_is_not_planted() -> None:
    seen = torch.zeros(2, 16)
    seen[0, 0] = 1.0
    (only,) = planted(output("projection", "out"), seen, seen)
    assert int((only != seen).sum()) == 1, "the stale fragment is what was there anyway"
    assert list(planted(output("projection", "out"), torch.zeros(2, 16), seen)) == []
