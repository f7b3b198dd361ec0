"""Calibration records: what is stored is used, and a damaged record ends in one line with a remedy."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest

from validation.calibration import LARGEST_FACTOR, SCHEMA, inflation_for, parse
from validation.contracts import contracts
from validation.errors import UserError
from validation.numerics.scores import STATISTICS

RECORD: dict[str, Any] = {
    "schema": SCHEMA,
    "devices": {
        "cpu": {"factors": {"out": {"projection": 1.374, "bias": 1}}, "variants": 1500},
        "cuda": {"factors": {"out": {}}},
    },
}


def changed(*path: str, value: Any = None, drop: bool = False) -> str:
    """The record as text, with one entry changed or dropped."""
    record = copy.deepcopy(RECORD)
    place = record
    for key in path[:-1]:
        place = place[key]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(record)


def test_factors_are_read_by_device_output_and_statistic() -> None:
    found = parse(json.dumps(RECORD), "record")
    assert found == {"cpu": {"out": {"projection": 1.374, "bias": 1.0}}, "cuda": {"out": {}}}
    assert isinstance(found["cpu"]["out"]["bias"], float)


DAMAGED = {
    "no JSON": "{",
    "empty": "",
    "a list": "[]",
    "no schema": changed("schema", drop=True),
    "another schema": changed("schema", value="lockstep.calibration/2"),
    "no devices": changed("devices", drop=True),
    "devices in a list": changed("devices", value=[]),
    "no factors": changed("devices", "cpu", "factors", drop=True),
    "factors of no statistic": changed("devices", "cpu", "factors", "out", value=1.2),
    "a word for a factor": changed("devices", "cpu", "factors", "out", "bias", value="wide"),
    "nothing for a factor": changed("devices", "cpu", "factors", "out", "bias", value=None),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_record_is_named_with_a_remedy(damage: str) -> None:
    with pytest.raises(UserError) as error:
        parse(DAMAGED[damage], "golden/kda.json")
    text = str(error.value)
    assert text.startswith("calibration record golden/kda.json is damaged (")
    assert text.endswith("restore it from the repository or run 'lockstep calibrate' again")
    assert "\n" not in text


@pytest.mark.parametrize("factor", [0.999, 0.0, -1.0, 4.001, 1e9, float("nan"), float("inf")])
def test_a_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(UserError, match=r"factor .* of out/bias is outside \[1, 4\]; restore it"):
        parse(changed("devices", "cuda", "factors", "out", value={"bias": factor}), "record")


@pytest.mark.parametrize("factor", [1.0, LARGEST_FACTOR])
def test_the_ends_of_the_range_are_in_it(factor: float) -> None:
    text = changed("devices", "cuda", "factors", "out", value={"bias": factor})
    assert parse(text, "record")["cuda"]["out"]["bias"] == factor


def test_without_a_record_nothing_is_widened() -> None:
    assert inflation_for("no such operation", "out", "cpu") == {}
    assert inflation_for("kda_decode", "no such output", "cpu") == {}
    assert inflation_for("kda_decode", "state", "no such device") == {}


@pytest.mark.parametrize("op", contracts())
def test_stored_records_name_outputs_and_statistics_that_exist(op: str) -> None:
    record = files("golden").joinpath("calibration", f"{op}.json")
    names = {output.name for output in contracts()[op].outputs}
    by_device = parse(record.read_text(encoding="utf-8"), op) if record.is_file() else {}
    for device, factors in by_device.items():
        assert device in ("cpu", "cuda")
        assert set(factors) <= names
        for output, by_statistic in factors.items():
            assert set(by_statistic) <= set(STATISTICS)
            assert inflation_for(op, output, device) == by_statistic
    assert inflation_for(op, "out", "cpu") == by_device.get("cpu", {}).get("out", {})
