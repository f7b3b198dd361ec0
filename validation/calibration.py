"""Calibrated inflation factors: golden/calibration/<operation>.json, one factor per device, output and
statistic.

Where the model's independence fails, a statistic is wider than predicted; the factor widens its deviation. It
was measured on honest variants (``lockstep calibrate``) and is stored with its provenance. A missing record
means 1.

Catches: a damaged or hand-edited record (factor below 1 or above 4: the model must be refined instead).
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from validation.errors import UserError

SCHEMA = "lockstep.calibration/1"
LARGEST_FACTOR = 4.0


Factors = dict[str, dict[str, float]]


@cache
def inflation_for(op: str, output: str, device: str) -> dict[str, float]:
    """Statistic -> factor (at least 1) for one output of one operation on a device kind."""
    record = files("golden").joinpath("calibration", f"{op}.json")
    if not record.is_file():
        return {}
    by_device = parse(record.read_bytes().decode("utf-8", "replace"), str(record))
    return by_device.get(device, {}).get(output, {})


def parse(text: str, name: str) -> dict[str, Factors]:
    """Factors by device, output and statistic. Raises UserError for a record that is not one."""
    remedy = "restore it from the repository or run 'lockstep calibrate' again"
    try:
        record: dict[str, Any] = json.loads(text)
        if record["schema"] != SCHEMA:
            raise ValueError(f"schema {record['schema']!r}")
        by_device = {
            device: {
                output: {statistic: float(f) for statistic, f in by_statistic.items()}
                for output, by_statistic in entry["factors"].items()
            }
            for device, entry in record["devices"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"calibration record {name} is damaged ({what}); {remedy}") from None
    for factors in by_device.values():
        _check(factors, name, remedy)
    return by_device


def _check(factors: Factors, name: str, remedy: str) -> None:
    for output, by_statistic in factors.items():
        for statistic, factor in by_statistic.items():
            if not 1.0 <= factor <= LARGEST_FACTOR:
                what = f"factor {factor:g} of {output}/{statistic} is outside [1, 4]"
                raise UserError(f"calibration record {name}: {what}; {remedy}")
