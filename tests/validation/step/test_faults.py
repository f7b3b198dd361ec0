"""Faults between and inside the operations of a step: each is found and the right place is blamed.

One of each way to be noticed; ``lockstep step --faults`` plants all of them.
"""

from __future__ import annotations

import functools

import pytest
from step_case import small

from validation.step.executor import provider
from validation.step.faults import Planted, step_faults
from validation.step.scenarios import DRAFTS, SCENARIOS, first_divergence
from validation.step.walk import Hooks, Walk
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.weights import Weights, random_weights

SHOWN = (
    "slot_not_reset",
    "null_slot_live",
    "key_at_page_edge",
    "snapshot_without_state",
    "accepted_off_by_one",
    "window_too_short",
    "aux_before_the_sum",
    "stale_fragment_projection",
    "lengths_baked_in",
    "padding_keeps_slots",
    "nan_between_steps",
    "operation_not_executed",
    "prefix_added_not_replaced",
    "drift_in_core",
    "bf16_state",
)
FAULTS = {fault.name: fault for fault in step_faults()}


@functools.cache
def _model(drafts: int) -> tuple[Config, Weights]:
    return small(drafts), random_weights(small(drafts))


def _walk(scenario: str, fault: Planted | None = None) -> Walk:
    right = provider("torch")
    executor = fault.executor(right) if fault else right
    return Walk(*_model(DRAFTS.get(scenario, 0)), executor, 1e-8, fault.hooks() if fault else Hooks())


def test_names_are_unique_and_kinds_cover_what_is_asked() -> None:
    assert len(FAULTS) == len(step_faults())
    asked = {f"F{n}" for n in (*range(22, 32), 33, 43, 44, 45, 51, 52, 53, 54, 55)}
    assert asked <= {fault.kind for fault in step_faults()}


@pytest.mark.parametrize("scenario", ["tenants", "preempt"])
def test_right_executors_pass(scenario: str) -> None:
    assert first_divergence(_walk(scenario), scenario) is None


@pytest.mark.parametrize("name", SHOWN)
def test_fault_is_found_and_the_right_place_is_blamed(name: str) -> None:
    fault = FAULTS[name]
    first = first_divergence(_walk(fault.scenario, fault), fault.scenario)
    assert first is not None
    assert first.op == fault.blamed


def test_faults_are_walked_in_scenarios_that_exist() -> None:
    used = {fault.scenario for fault in step_faults()}
    assert used == {"plain", "pages", "verify", "tenants", "preempt"}
    assert used <= set(SCENARIOS)
