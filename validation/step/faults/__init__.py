"""Faults of whole steps, planted into a right executor or between its steps, by kind of the catalogue.

Each names the operation or check that must be blamed first. What this catches: a check that would not have
noticed, or that blames another. What it cannot catch: faults nobody planted.
"""

from __future__ import annotations

from validation.step.faults import acceptance, keys, precision, stream, tenancy
from validation.step.faults.planted import Planted

MODULES = (acceptance, keys, precision, stream, tenancy)


def step_faults() -> tuple[Planted, ...]:
    """All faults, in the order of their kinds."""
    every = [fault for module in MODULES for fault in module.FAULTS]
    return tuple(sorted(every, key=lambda fault: fault.kind))


__all__ = ["Planted", "step_faults"]
