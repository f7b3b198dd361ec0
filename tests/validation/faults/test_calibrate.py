"""Calibration finds a model that is too narrow, and leaves one alone that is wide enough."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from validation import cli
from validation.contracts import contract_named
from validation.contracts.contract import Case
from validation.faults.calibrate import Spread, needed_factor, spread
from validation.faults.catalogue import FAULTS
from validation.numerics.scores import Statistic


def statistic(value: float, name: str = "excess", limit: float = 1.0) -> Statistic:
    return Statistic(name, value, limit, level=40.0, share=1e-8)


def test_a_value_where_the_largest_of_many_is_expected_needs_nothing() -> None:
    assert needed_factor(statistic(0.6), 1000) == 1.0


def test_a_value_beyond_the_limit_needs_more_than_its_excess() -> None:
    """At 1,000 variants a value near the limit of level 40 is itself too large."""
    assert needed_factor(statistic(1.5), 1000) > 1.5
    assert needed_factor(statistic(1.0), 1000) > 1.0
    assert needed_factor(statistic(2.0, "mean_square", 1.2), 1000) > (2.0 / 1.2) ** 0.5


def test_more_variants_need_less_for_the_same_value() -> None:
    assert needed_factor(statistic(1.5), 100_000) < needed_factor(statistic(1.5), 100)


def test_a_statistic_without_a_level_needs_nothing() -> None:
    assert needed_factor(Statistic("nonfinite", 0.0, 0.0), 1000) == 1.0


@pytest.mark.parametrize("op", FAULTS)
def test_honest_variants_raise_no_alarm(op: str) -> None:
    result = spread(op, 30, 77, "cpu")
    assert result.alarms == []
    assert result.variants == 30
    for name, value in result.mean_squares().items():
        assert 0.2 < value < 1.5, (name, value)


def test_cases_that_a_provider_does_not_serve_are_left_out_and_counted() -> None:
    cases = contract_named("projection").cases("quick")
    one = next(f for f in FAULTS["projection"]()).implementation()

    def only(*rows: int) -> Spread:
        def supports(case: Case) -> str | None:
            return None if case["rows"] in rows else "not these rows"

        served = replace(one, profile="stock", supports=supports)
        return spread("projection", 2, 77, "cpu", provider=served)

    many = only(3)
    assert many.variants == 2
    assert many.unserved == sum(case["rows"] != 3 for case in cases) > 0
    assert all("rows=3," in alarm for alarm in many.alarms)
    none = only()
    assert (none.variants, none.unserved, none.alarms) == (0, len(cases), [])


def test_a_kernel_that_is_wrong_needs_a_factor_and_raises_alarms() -> None:
    fault = next(f for f in FAULTS["projection"]() if f.name == "rounded_twice")
    result = spread("projection", 8, 77, "cpu", provider=replace(fault.implementation(), profile="stock"))
    assert result.alarms
    assert result.needed["out"]["excess"] > 4


def test_a_stopped_calibration_keeps_the_operations_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(op: str, *more: object) -> Spread:
        if op == "route":
            raise KeyboardInterrupt
        return Spread(op, variants=3)

    monkeypatch.setattr("validation.faults.calibrate.spread", stopped)
    record = tmp_path / "record.json"
    words = ["--op", "projection", "--op", "route", "--op", "logits", "--json", str(record)]
    assert cli.main(["calibrate", "--device", "cpu", *words]) == 130
    assert list(json.loads(record.read_text())["results"]) == ["projection"]
