"""The catalogue is complete, no planted fault is a no-op, and a sample of each operation is caught."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from validation.contracts import contract_named
from validation.contracts.arena import Arena
from validation.contracts.guarded import bits
from validation.faults.catalogue import FAULTS, Fault, honest
from validation.faults.kda_step import DECODE_FAULTS
from validation.faults.orders import LIBRARY, honest_order
from validation.faults.qualify import plant
from validation.judge import judge_case

# The forty of the published mutation study of one KDA decode step.
STUDY = """
dt_bias_dropped A_log_dropped no_decay exp2_for_exp lower_bound_-4.9 gate_bf16 beta_bf16 beta_raw beta_one
decay_wrong_axis delta_uses_undecayed no_delta_correction drop_last_k_tile sign_flip_update no_update
output_before_update k_not_normalised q_not_normalised q_scale_missing l2_eps_1e-3 no_silu conv_tap_shift
conv_drop_oldest_tap conv_state_not_written state_bf16_store state_drift_1e-3 last_row_tile_stale
one_head_stale one_slot_stale state_zeroed state_transposed state_never_written swap_two_slots norm_eps_1e-3
norm_weight_missing output_gate_missing gate_tanh bf16_accumulate one_nan one_element_wrong
""".split()  # noqa: SIM905 (forty names read better than forty strings)


def faults(op: str) -> list[Fault]:
    return list(FAULTS[op]())


def test_the_forty_of_the_study_are_planted_at_both_state_scales() -> None:
    assert len(STUDY) == 40
    assert set(DECODE_FAULTS) == set(STUDY)
    for profile in ("stock", "specialized"):
        for regime in ("small_state", "unit_state"):
            names = [f.name for f in faults("kda_decode") if f.profile == profile and f.case.regime == regime]
            assert sorted(names) == sorted(STUDY)


@pytest.mark.parametrize(("op", "least"), [("attn_res", 20), ("projection", 20), ("kda_verify", 10)])
def test_the_other_operations_have_faults_of_their_own(op: str, least: int) -> None:
    assert len({f.name for f in faults(op)}) >= least


def outcome(fault: Fault, kernel: Any) -> dict[str, torch.Tensor]:
    """What a kernel leaves behind in guarded memory, and how many of its rules it broke."""
    contract = contract_named(fault.case.op)
    arena = Arena(contract, contract.build(fault.case))
    kernel(arena.arguments)
    left = {name: getattr(arena.arguments, name) for name in arena.specs}
    return left | {"violations": torch.tensor(float(len(arena.check())))}


@pytest.mark.stress
@pytest.mark.parametrize("op", FAULTS)
def test_no_planted_fault_is_a_no_op(op: str) -> None:
    for fault in faults(op):
        right = outcome(fault, honest(op, fault.profile, LIBRARY).function)
        wrong = outcome(fault, fault.function)
        same = all(torch.equal(bits(right[n]), bits(wrong[n])) for n in right)
        assert not same, fault.name


SAMPLE = {
    "attn_res": ("eps_1e-6", "score_eps_1e-6", "eps_not_compensated", "block_not_written", "no_maximum"),
    "projection": ("rounded_twice", "fp16_partials", "stale_fragment", "last_k_fragment_lost", "truncated"),
    "kda_decode": ("one_nan", "gate_bf16", "beta_bf16", "l2_eps_1e-3", "state_drift_1e-3"),
    "kda_verify": ("accepted_plus_one", "null_slot_written", "history_not_shifted", "state_bf16_between"),
}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, names in SAMPLE.items() for name in names])
def test_the_closest_calls_are_caught(op: str, name: str) -> None:
    caught = plant(next(f for f in faults(op) if f.name == name), "cpu")
    assert caught.caught
    assert caught.factor > 1 or caught.counted
    assert caught.where


@pytest.mark.parametrize("op", FAULTS)
@pytest.mark.parametrize("profile", ["stock", "specialized"])
def test_the_same_kernels_without_a_fault_pass(op: str, profile: str) -> None:
    for seed, case in enumerate(contract_named(op).cases("quick")[:6]):
        result = judge_case(case, honest(op, profile, honest_order(seed)), "cpu", share=1e-7)
        assert result.verdict == "pass", result.findings
