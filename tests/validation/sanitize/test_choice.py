"""The tools see every tactic of the dispatch tables, on small cases."""

import pytest

from validation import providers
from validation.contracts import contracts
from validation.sanitize.choice import TOO_LARGE, chosen, tactic


@pytest.fixture(scope="module", autouse=True)
def _triton():
    providers.load(["triton"], [])


@pytest.mark.parametrize("op", list(contracts()))
def test_every_tactic_of_the_tier_is_seen_and_no_kernel_of_the_table_is_left_out(op):
    implementation = providers.implementation(op, "triton")
    seen = {tactic(case, implementation) for case in chosen(implementation)}
    cases = [case for case in contracts()[op].cases("quick") if case.regime not in TOO_LARGE]
    assert seen == {tactic(case, implementation) for case in cases}
    named = {kernel for route in implementation.table for kernel in route.kernels}
    assert named <= {kernel for kernels, _ in seen for kernel in kernels}


@pytest.mark.parametrize("op", list(contracts()))
def test_they_are_few_and_none_needs_gigabytes(op):
    implementation = providers.implementation(op, "triton")
    cases = chosen(implementation)
    assert len(cases) <= 2 * len({tactic(case, implementation) for case in cases})
    assert not any(case.regime in TOO_LARGE for case in cases)


def test_ranges_of_rows_are_told_apart():
    implementation = providers.implementation("projection", "triton")
    ends = {end for _, end in (tactic(case, implementation) for case in chosen(implementation))}
    assert ends >= {1, 2, 16, 32, 64}
