"""A case that somebody typed is refused in one line unless it is of its operation's kind: every contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from validation.contracts import contract_named, contracts
from validation.contracts.contract import Case, Contract
from validation.errors import UserError
from validation.execution.shapes import BEYOND, check_case
from validation.judge import judge_case
from validation.providers import Implementation

OPS = tuple(contracts())
Shape = tuple[tuple[str, int], ...]


def own(op: str) -> list[Case]:
    return [*contract_named(op).cases("quick"), *contract_named(op).cases("full")]


def refused(case: Case, words: str) -> None:
    with pytest.raises(UserError) as caught:
        check_case(case, contract_named(case.op))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("op", OPS)
def test_the_contracts_own_cases_are_accepted(op: str) -> None:
    for case in own(op):
        check_case(case, contract_named(op))


@pytest.mark.parametrize("op", OPS)
def test_wrong_keys_and_sizes_are_refused(op: str) -> None:
    case = own(op)[0]
    missing = f"does not have the sizes of {op}, which are "
    every = set.intersection(*({name for name, _ in c.shape} for c in own(op)))
    assert every, "a contract whose cases share no size cannot be checked"
    for i, (name, _) in enumerate(case.shape):
        if name in every:
            refused(replace(case, shape=case.shape[:i] + case.shape[i + 1 :]), missing)
        for size in (-2, 10**9):
            refused(replace(case, shape=changed(case.shape, i, size)), f"{name} of {op} must be from ")
    refused(replace(case, shape=(*case.shape, ("odd", 1))), missing)
    refused(replace(case, shape=(*case.shape, case.shape[0])), missing)
    refused(replace(case, regime="odd"), f"{op} has no regime 'odd'; known: ")


def changed(shape: Shape, at: int, size: int) -> Shape:
    return (*shape[:at], (shape[at][0], size), *shape[at + 1 :])


def test_ranges_follow_the_contracts_own_cases() -> None:
    """AttnRes writes block -1 for none and may have no block; it never has no row, and no block -2."""
    case = next(c for c in own("attn_res") if c["rows"] == 1)
    accepted = dict(case.shape) | {"rows": 64 * BEYOND, "write": -1, "blocks": 0}
    check_case(replace(case, shape=tuple(accepted.items())), contract_named("attn_res"))
    for name, size, low in (
        ("rows", 0, 1),
        ("rows", 64 * BEYOND + 1, 1),
        ("blocks", -1, 0),
        ("write", -2, -1),
    ):
        shape = tuple((dict(case.shape) | {name: size}).items())
        refused(replace(case, shape=shape), f"{name} of attn_res must be from {low} to ")


def test_sizes_of_an_unusual_regime_may_be_left_out_elsewhere() -> None:
    """``spare`` belongs to one regime of kda_decode only."""
    shapes = {tuple(name for name, _ in case.shape) for case in own("kda_decode")}
    assert len(shapes) > 1
    refused(
        Case.of("kda_decode", "unit_state", 1, heads=-1),
        "which are heads=N,dim=N,requests=N (and, where they apply, spare)",
    )


def test_a_case_that_cannot_be_built_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(case: Case) -> object:
        raise KeyError("spare")

    broken: Contract = replace(contract_named("projection"), build=build)
    monkeypatch.setattr("validation.judge.contract_named", lambda name: broken)
    implementation = Implementation("projection", "mine", "stock", lambda a: None)
    case = own("projection")[0]
    with pytest.raises(UserError, match=r"this case cannot be built: KeyError: 'spare' \(build, test_shapes"):
        judge_case(case, implementation, "cpu", share=1e-7)


class Raised(BaseException):
    """As a worker marks an exception of the provider's function."""


def test_a_provider_that_raises_is_not_to_blame_where_the_reference_cannot_be_computed_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def function(arguments: object) -> None:
        raise Raised

    def reference(arithmetic: object, arguments: object) -> dict[str, object]:
        raise RuntimeError("sizes do not go together")

    broken = replace(contract_named("projection"), reference=reference)
    monkeypatch.setattr("validation.judge.contract_named", lambda name: broken)
    implementation = Implementation("projection", "mine", "stock", function)
    with pytest.raises(Raised):
        judge_case(own("projection")[0], implementation, "cpu", share=1e-7)
    typed = Case.of("projection", "typical", 1, rows=1, columns=8, k=16)
    with pytest.raises(UserError, match="this case cannot be built: RuntimeError: sizes do not go together"):
        judge_case(typed, implementation, "cpu", share=1e-7)


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        (lambda case: case["nope"], "mine's kernels() for projection raised KeyError: 'nope' on projection:"),
        (lambda case: "add", "mine's kernels() for projection must return the names of kernels in a tuple"),
    ],
    ids=["raises", "string"],
)
def test_what_kernels_may_answer(kernels: Callable[[Case], object], words: str) -> None:
    def function(a: Any) -> None:
        a.out.copy_(a.x @ a.weight.T)

    typed = Case.of("projection", "typical", 1, rows=1, columns=8, k=16)
    implementation = Implementation("projection", "mine", "stock", function, kernels=kernels)  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        judge_case(typed, implementation, "cpu", share=1e-7)
    assert str(caught.value).startswith(words)
