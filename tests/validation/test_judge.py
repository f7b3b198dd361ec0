"""The judge on real operations: honest kernels pass, what a provider does wrong is named with its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import kernels_under_test.torch_stock  # noqa: F401 (registers the provider)
from validation.contracts import contracts
from validation.contracts.contract import Case
from validation.faults.catalogue import honest
from validation.faults.orders import LIBRARY
from validation.judge import judge_case
from validation.providers import Implementation, implementation
from validation.report.schema import CaseResult

SHARE = 1e-7
SMALL = {
    "attn_res": "attn_res:rows=3,width=320,blocks=4,write=3,merge=0,finish=0,aux=1:typical:5",
    "projection": "projection:rows=3,columns=72,k=328:typical:5",
    "kda_decode": "kda_decode:heads=2,dim=64,requests=3:unit_state:5",
    "kda_verify": "kda_verify:heads=2,dim=64,requests=2,tokens=3:unit_state:5",
}


def judged(
    op: str, after: Callable[[Any], Any] | None = None, line: str = "", controls: bool = False
) -> CaseResult:
    """The torch provider's verdict on a small case, with ``after`` run on its arguments when it is done."""
    stock = implementation(op, "torch")

    def spoiled(a: Any) -> Any:
        stock.function(a)
        return after(a) if after else None

    provider = replace(stock, function=spoiled)
    return judge_case(Case.parse(line or SMALL[op]), provider, "cpu", share=SHARE, controls=controls)


def only(result: CaseResult, statistic: str) -> Any:
    """The finding of that statistic; the result must have failed."""
    assert result.verdict == "fail", result
    return next(f for f in result.findings if f.statistic == statistic)


@pytest.mark.parametrize("op", SMALL)
def test_an_honest_provider_passes_and_every_fault_planted_in_its_outputs_is_noticed(op: str) -> None:
    result = judged(op, controls=True)
    assert result.verdict == "pass", result.findings
    assert result.controls_planted >= 2
    assert result.controls_caught == result.controls_planted


@pytest.mark.parametrize("op", SMALL)
def test_the_mean_square_of_an_honest_provider_is_near_one(op: str) -> None:
    squares: dict[str, list[float]] = {}
    for seed in range(8):
        case = replace(Case.parse(SMALL[op]), seed=seed)
        for name, value in judged(op, line=case.line()).mean_squares.items():
            squares.setdefault(name, []).append(value)
    for name, values in squares.items():
        assert 0.5 <= sum(values) / len(values) <= 1.5, (name, values)


def test_one_element_two_spacings_off_is_named() -> None:
    def nudge(a: Any) -> None:
        value = a.out[1, 100].double()
        a.out[1, 100] = (value + 2 * 2.0 ** (torch.frexp(value).exponent - 8)).bfloat16()

    finding = only(judged("attn_res", nudge), "excess")
    assert finding.where == "row 1, column 100"
    assert finding.output == "out"
    assert finding.replay == f"lockstep replay 'torch/{SMALL['attn_res']}'"


def test_the_worst_element_is_the_one_that_gave_the_score_not_the_one_furthest_off() -> None:
    def kernel(a: Any) -> None:
        a.out.copy_(a.x.float() @ a.weight.float().T)
        sizes = a.out.float().abs()
        small, large = int(sizes[0].argmin()), int(sizes[1].argmax())
        a.out[0, small] *= 3  # far beyond its own noise, but near
        a.out[1, large] *= 1.02

    case = Case.of("projection", "typical", 3, rows=2, columns=136, k=512)
    result = judge_case(case, Implementation("projection", "mine", "stock", kernel), "cpu", share=1e-7)
    finding = next(f for f in result.findings if f.statistic == "excess")
    place = finding.worst[0].at
    assert place in finding.where
    assert finding.message.rstrip(")").endswith(place)


def test_a_stale_fragment_of_the_state_is_named_by_request_head_and_rows() -> None:
    line = SMALL["kda_decode"]
    before = contracts()["kda_decode"].build(Case.parse(line)).state

    def stale(a: Any) -> None:
        slot = int(a.slots[1, 0])
        a.state[slot, 1, 56:] = before[slot, 1, 56:]

    finding = only(judged("kda_decode", stale, line), "excess")
    assert finding.where.startswith("request 1, head 1, v 56 to 63")


def test_a_write_to_a_foreign_slot_is_named() -> None:
    def trespass(a: Any) -> None:
        a.state[0, 1, 5] = 1.0

    finding = only(judged("kda_decode", trespass), "untouched_changed")
    assert finding.output == "state"
    assert finding.where == "slot 0, head 1, v 5"


def test_a_changed_input_is_named() -> None:
    def spoil(a: Any) -> None:
        a.x[2] = 0

    finding = only(judged("projection", spoil), "input_changed")
    assert (finding.output, finding.where) == ("x", "row 2 only")


def test_a_write_beyond_the_end_is_named() -> None:
    def beyond(a: Any) -> None:
        rows, columns = a.out.shape
        end = a.out.storage_offset() + (rows - 1) * a.out.stride(0) + columns
        a.out.as_strided((1,), (1,), end).fill_(1.0)

    finding = only(judged("projection", beyond), "red_zone")
    assert "out: 2 bytes after the tensor" in finding.message


def test_elements_left_unwritten_are_named() -> None:
    poisoned = implementation("projection", "torch")

    def partial(a: Any) -> None:
        kept = a.out[:, 64:].clone()
        poisoned.function(a)
        a.out[:, 64:] = kept

    provider = replace(poisoned, function=partial)
    result = judge_case(Case.parse(SMALL["projection"]), provider, "cpu", share=SHARE)
    assert only(result, "unwritten").where == "last 8 of 72 columns"


def test_a_history_off_by_one_column_is_found_bit_by_bit() -> None:
    def shifted(a: Any) -> None:
        slot = int(a.slots[0, 0])
        a.conv_state[slot] = a.conv_state[slot].roll(1, -1)

    finding = only(judged("kda_decode", shifted), "bits")
    assert finding.output == "conv_state"
    assert finding.where.startswith("request 0") or "request 0" in finding.where


def test_a_kernel_that_differs_from_call_to_call_is_found() -> None:
    calls: list[int] = []

    def unsteady(a: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            grid = a.out[0, 7]
            a.out[0, 7] = -grid

    result = judged("projection", unsteady, controls=True)
    assert only(result, "not_repeatable").where == "row 0, column 7"


@pytest.mark.parametrize(
    ("returned", "statistic", "words"),
    [
        (lambda a: a.out[:1].clone(), "shape", "expected shape (3, 72), found (1, 72)"),
        (lambda a: a.out.float(), "dtype", "expected dtype torch.bfloat16, found torch.float32"),
        (lambda a: (a.out, a.out), "signature", "expected None or"),
        (lambda a: "done", "signature", "found a str"),
    ],
)
def test_a_return_value_that_does_not_fit_is_named(returned: Any, statistic: str, words: str) -> None:
    assert words in only(judged("projection", returned), statistic).message


def test_a_right_return_value_is_taken() -> None:
    stock = implementation("projection", "torch")

    def returns(a: Any) -> Any:
        stock.function(a)
        out = a.out.clone()
        a.out.zero_()
        return out

    provider = replace(stock, function=returns)
    assert judge_case(Case.parse(SMALL["projection"]), provider, "cpu", share=SHARE).verdict == "pass"


def test_an_exception_is_a_finding_with_its_text() -> None:
    def broken(a: Any) -> None:
        raise ZeroDivisionError("no rows\nsecond line")

    finding = only(judged("projection", broken), "exception")
    assert finding.message == "raised ZeroDivisionError: no rows"


def verdict(kernel: Implementation, profile: str, mode: str) -> str:
    case = Case.parse(SMALL["kda_decode"])
    return judge_case(case, replace(kernel, profile=profile), "cpu", share=SHARE, mode=mode).verdict


def test_a_profile_is_held_to_and_accuracy_mode_accepts_either_choice() -> None:
    """Stock rounds the convolution and the core output to BF16, the specialised kernel does not."""
    stock = honest("kda_decode", "stock", LIBRARY)
    fp32 = honest("kda_decode", "specialized", LIBRARY)
    assert verdict(stock, "stock", "profile") == "pass"
    assert verdict(fp32, "specialized", "profile") == "pass"
    assert verdict(stock, "specialized", "profile") == "fail"
    assert verdict(fp32, "stock", "profile") == "fail"
    for kernel in (stock, fp32):
        for profile in ("stock", "specialized"):
            assert verdict(kernel, profile, "accuracy") == "pass"


def test_accuracy_mode_still_sees_a_missing_bias() -> None:
    from validation.faults.catalogue import FAULTS

    fault = next(f for f in FAULTS["kda_decode"]() if f.name == "dt_bias_dropped")
    case = Case.parse(SMALL["kda_decode"])
    assert judge_case(case, fault.implementation(), "cpu", share=SHARE, mode="accuracy").verdict == "fail"
