"""The host's hashes of a run's first steps: those of real ranks, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels_under_test import interpreter
from kernels_under_test.exchanges.runner import raw_words
from validation.stress import expected
from validation.stress.campaign import DEPLOYMENTS, KNOWN, Plan, Results, _known
from validation.stress.crew import Crew
from validation.stress.job import Job
from validation.stress.outcome import Outcome
from validation.stress.script import CHUNK, HOLDS, Step

interpreter.prepare()

from kernels_under_test.exchanges.words import publishable_words  # noqa: E402

STEPS = 4


@pytest.fixture(scope="module", params=[2, 3])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Crew(request.param, 2, "cpu") as started:
        yield started


def _job(deployment: tuple[str, int, bool]) -> Job:
    name, plan, dcp = deployment
    batches = (8, 1, 64, 16)
    return Job(
        name, "DKA", plan=plan, dcp=dcp, batches=batches, in_turn=True, steps=STEPS, chunk=2, seed=3,
        patience=60.0,
    )  # fmt: skip


def _known_failures(crew: Crew, outcome: Outcome) -> list[str]:
    results = Results(Plan("cpu", crew.count, 2, "DKA", 1, 60.0, ()))
    _known(results, crew, [outcome])
    return results.failures


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda one: one[0])
def test_ranks_hold_what_the_host_computes(
    crew: Crew, deployment: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a host whose columns, rows or fold are those of the kernels' likely mistakes parts from them."""
    outcome = crew.run(_job(deployment))
    assert outcome.failures(crew.layout) == []
    assert KNOWN["cpu"] == STEPS
    assert _known_failures(crew, outcome) == []
    right = expected._received

    def joined(act: Step, *more: Any) -> Any:
        word = right(act, *more)
        if act.spread == CHUNK:
            word[..., 1] = word[..., 0]
        return word

    def short(act: Step, *more: Any) -> Any:
        word = right(act, *more)
        word[-1] = 0
        return word

    for wrong in (joined, short, lambda act, *more: right(act, *more) * np.uint32(act.spread != CHUNK)):
        monkeypatch.setattr(expected, "_received", wrong)
        (line,) = _known_failures(crew, outcome)
        assert line == f"hashes: all ranks of {deployment[0]} part from what the host computes at step 0"


def test_a_run_of_other_payloads_has_other_hashes(crew: Crew) -> None:
    job = _job(DEPLOYMENTS[0])
    one, other = (expected.hashes(replace(job, seed=n), crew.layout, 1, raw_words) for n in (3, 4))
    assert one != other


@pytest.mark.parametrize("holds", HOLDS.values(), ids=HOLDS)
def test_host_and_kernels_agree_on_what_is_canonical(holds: int) -> None:
    words = raw_words(5, 1, 2, 0, np.arange(1 << 14, dtype=np.uint32), 0x80000000)
    assert np.array_equal(expected.canonical(words, holds), publishable_words(words.copy(), holds))
