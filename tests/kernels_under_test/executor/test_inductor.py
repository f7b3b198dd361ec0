"""The provider that a compiler can take whole: right operation by operation, plain, verified and padded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from validation.contracts import contract_named
from validation.judge import judge_case
from validation.providers import implementation, implemented_by, load_provider
from validation.step.executor import WHOLE, fastest, provider
from validation.step.walk import Walk, forced
from validation.subjects.kimi_k3.weights import random_weights

sys.path.append(str(Path(__file__).parents[2] / "validation" / "walks"))
from step_case import small


def test_steps_are_right_plain_verified_and_padded() -> None:
    config = small(drafts=2)
    walk = Walk(config, random_weights(config), provider("inductor"), 1e-8)
    walk.admit(), walk.admit()
    for ids in forced(config, 2, 2):
        walk.step(ids)
    for ids in forced(config, 2, 2, 3):
        walk.step(ids, [1, 3], padded=3)
    assert walk.found == []


load_provider("inductor")


@pytest.mark.parametrize("op", sorted(implemented_by("inductor")))
def test_every_regime_of_its_operations(op: str) -> None:
    """One small case of every regime, in guarded memory."""
    cases = {}
    for case in contract_named(op).cases("quick"):
        cases.setdefault(case.regime, case)
    for case in cases.values():
        result = judge_case(case, implementation(op, "inductor"), "cpu", share=1e-7)
        assert result.verdict == "pass", result.findings[:1]


def test_a_compiled_step_is_what_long_walks_run() -> None:
    assert "inductor" in WHOLE
    assert fastest("inductor").name == "inductor, whole"
    assert fastest("torch").name == "torch"
    assert torch.get_num_threads() == 1
