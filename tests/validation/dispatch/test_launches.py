"""The record of launches: which Triton kernels ran, and that a fallback is a finding."""

from __future__ import annotations

import dataclasses

import pytest

from validation.contracts.contract import Case
from validation.dispatch.launches import disagreement, recorded
from validation.faults.qualify import SHARE
from validation.judge import _Reporter, judge_case
from validation.providers import implementation, load_provider
from validation.report.schema import CaseResult

CASE = Case.of("projection", "typical", 3, rows=3, columns=136, k=512)


@pytest.fixture(scope="module", autouse=True)
def providers() -> None:
    for name in ("triton", "torch"):
        load_provider(name)


def judged(provider: str, kernels: tuple[str, ...] | None) -> list[str]:
    """Statistics of the findings when ``kernels`` are what the table says."""
    declared = None if kernels is None else (lambda case: kernels)
    found = dataclasses.replace(implementation("projection", provider), kernels=declared)
    result = judge_case(CASE, found, "cpu", share=SHARE)
    return [finding.statistic for finding in result.findings]


def test_the_launched_kernels_are_recorded_in_order() -> None:
    with recorded() as names:
        judge_case(CASE, implementation("projection", "triton"), "cpu", share=SHARE)
    assert names == ["split_k_kernel", "add_splits_kernel"]


def test_what_the_table_says_is_no_finding() -> None:
    assert judged("triton", ("split_k_kernel", "add_splits_kernel")) == []


@pytest.mark.parametrize("kernels", [("skinny_kernel",), ("add_splits_kernel", "split_k_kernel"), ()])
def test_another_kernel_another_order_or_one_too_many_is_a_finding(kernels: tuple[str, ...]) -> None:
    assert judged("triton", kernels) == ["dispatch"]


def test_a_fallback_to_torch_is_a_finding_though_its_result_is_right() -> None:
    assert judged("torch", ("split_k_kernel", "add_splits_kernel")) == ["dispatch"]


def test_a_provider_that_declares_nothing_is_not_compared() -> None:
    assert judged("torch", None) == []


def test_the_result_carries_the_record() -> None:
    result = judge_case(CASE, implementation("projection", "triton"), "cpu", share=SHARE)
    assert result.kernels == ["split_k_kernel", "add_splits_kernel"]


@pytest.mark.parametrize(
    ("seen", "statistics"),
    [(["fill", "split_k_kernel", "add_splits_kernel"], []), (["gemm", "add_splits_kernel"], ["dispatch"])],
)
def test_a_table_kernel_that_the_device_did_not_run_is_a_finding(
    seen: list[str], statistics: list[str]
) -> None:
    found = implementation("projection", "triton")
    result = CaseResult("projection", "triton", CASE.line(), "pass")
    _Reporter(result, CASE, found, "cuda").device([*seen, *seen[:1]], found, CASE)
    assert [finding.statistic for finding in result.findings] == statistics
    assert result.device_kernels == [f"2 times {seen[0]}", *seen[1:]]


def test_nothing_is_recorded_after_the_block() -> None:
    with recorded() as names:
        pass
    judge_case(CASE, implementation("projection", "triton"), "cpu", share=SHARE)
    assert names == []


def test_the_words_name_both_sides() -> None:
    assert disagreement(("a", "b"), ["a", "b"]) == ""
    assert disagreement(("a",), []) == "the dispatch table says a; launched: none (a fallback)"
