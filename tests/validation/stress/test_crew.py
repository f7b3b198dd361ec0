"""Ranks as processes: clean runs, broken protocols, hangs and deaths; and nothing is left behind.

Real ranks are slow in the interpreter, so one crew serves all tests that end without a death.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from validation.errors import UserError
from validation.stress import crew as crews
from validation.stress.campaign import Plan, planted
from validation.stress.crew import Crew
from validation.stress.drills import hang, kill
from validation.stress.faults import FAULTS, controls, fault_named
from validation.stress.job import Job, Order
from validation.stress.skew import MEASURES, MODES, QUIET

CLEAN = Job("clean", "DKA", batches=(1, 8, 33), in_turn=True, steps=3, chunk=2, seed=5)
PLAN = Plan("cpu", 2, 1, "DKA", 100, 60.0, tuple(MODES))
BROKEN = str(Path(__file__).parent / "broken")


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2, 1, "cpu") as started:
        yield started


def test_a_skewed_run_is_bit_equal_to_a_quiet_one_on_all_ranks(crew: Crew) -> None:
    quiet = crew.run(CLEAN)
    skewed = crew.run(replace(CLEAN, skew=replace(MEASURES["cpu"], idle=0.01)))
    launched = crew.run(replace(CLEAN, launched=True))
    other = crew.run(replace(CLEAN, seed=6))
    for found in (quiet, skewed, launched):
        assert found.failures(crew.layout) == []
        assert found.exchanges == 11 + 11 + 14
        assert {answer.hashes for answer in found.answers} == {quiet.answers[0].hashes}
    assert len(quiet.answers[0].hashes) == 3 * 8
    assert other.answers[0].hashes != quiet.answers[0].hashes


def test_sharded_caches_are_exchanged_by_the_kernels_of_tp16(crew: Crew) -> None:
    job = replace(CLEAN, batches=(2, 8, 33), plan=16, dcp=True)
    quiet = crew.run(job)
    skewed = crew.run(replace(job, skew=replace(MEASURES["cpu"], idle=0.01)))
    for found in (quiet, skewed):
        assert found.failures(crew.layout) == []
        assert found.exchanges == 14 + 14 + 19
        assert {answer.hashes for answer in found.answers} == {quiet.answers[0].hashes}


def test_real_tensors_are_exchanged_right_bit_for_bit(crew: Crew) -> None:
    crew.tell(Order("job", CLEAN))
    crew.gather("ready", 30.0)
    crew.tell(Order("compare"))
    for answer in crew.gather("compared", 60.0):
        assert answer.findings == []
        assert answer.exchanges == 16


def test_fused_exchanges_are_right_on_exact_numbers(crew: Crew) -> None:
    crew.tell(Order("job", CLEAN))
    crew.gather("ready", 30.0)
    crew.tell(Order("fused"))
    for answer in crew.gather("fused", 60.0):
        assert answer.findings == []
        assert answer.exchanges == 12


# One of each way to be found: a stale word, an early one, a hang, an overwritten input, a flag taken for
# data, parted hashes, a canary, a baked step, a flag that overtakes its payload, a NaN log sum.
TRIED = (
    "oproj_never_rearmed",
    "gather_not_polled",
    "oproj_not_canonical",
    "input_read_by_peers",
    "flag_before_data",
    "state_of_one_rank_flipped",
    "row_too_many",
    "step_baked_at_capture",
    "partial_trusted_by_its_lse",
    "dcp_lse_not_canonical",
)


@pytest.mark.parametrize("name", TRIED)
def test_a_broken_protocol_is_found(crew: Crew, name: str) -> None:
    control = planted(PLAN, crew, fault_named(name))
    assert control.found
    assert control.after > 0


@pytest.mark.stress
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name not in TRIED], ids=lambda fault: fault.name)
def test_every_other_broken_protocol_is_found(crew: Crew, fault: object) -> None:
    assert planted(PLAN, crew, fault).found  # type: ignore[arg-type]


def test_the_steps_that_show_a_fault_are_safe_without_it(crew: Crew) -> None:
    found = {(fault.layers, fault.batches, fault.dcp) for fault in FAULTS if fault.layers != "DKA"}
    for layers, batches, dcp in found:
        job = Job("twin", layers, batches=batches, in_turn=True, steps=4, chunk=2, skew=QUIET, dcp=dcp)
        assert crew.run(job).failures(crew.layout) == [], (layers, batches)


def test_every_mode_has_a_fault_that_must_be_found() -> None:
    for mode in MODES:
        assert controls([mode], every=False), mode


def test_a_withheld_publication_is_blamed_on_its_rank_step_and_exchange(crew: Crew) -> None:
    drill = hang(crew, replace(CLEAN, batches=(8,), in_turn=False, steps=4, chunk=1, patience=1.0), 3)
    assert drill.right, drill.words
    assert f"waits for rank {drill.victim}, whose publication is missing" in drill.words
    assert drill.seconds < 30


def test_a_killed_rank_is_named_and_nothing_is_left_behind() -> None:
    with Crew(2, 1, "cpu") as started:
        processes = [rank.process.pid for rank in started.members]
        folder = Path(started.folder.name)
        job = replace(CLEAN, batches=(8,), in_turn=False, steps=400, chunk=1, patience=1.0)
        drill = kill(started, job, 0)
    assert drill.right, drill.words
    assert drill.words.startswith(f"rank {drill.victim} was killed by SIGKILL; ")
    assert drill.seconds < 30
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    assert not folder.exists()
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in processes)]


def test_a_stopped_rank_is_missed_by_the_others() -> None:
    """A process that is there and does nothing, as under a debugger."""
    stopped = [False]

    def stop(crew: Crew, steps: int) -> None:
        if steps >= 2 and not stopped[0]:
            os.kill(crew.members[1].process.pid, signal.SIGSTOP)
            stopped[0] = True

    with Crew(2, 1, "cpu") as started:
        began = time.monotonic()
        job = replace(CLEAN, batches=(8,), in_turn=False, steps=400, chunk=1, patience=1.0)
        found = started.run(job, stop)
        assert found.blamed(started.layout) == 1
        assert "rank 1 does not answer; missed first by rank 0" in found.failures(started.layout)[0]
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ("dies_at_start", r"not all ranks started: (rank 0|rank 1).* ended with status 7"),
        ("never_comes", "not all ranks started: rank 0 does not answer; rank 1 does not answer"),
        ("refuses", r"rank \d: no such kernels here; install them"),
    ],
)
def test_ranks_that_do_not_start(kernels: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", BROKEN)
    if kernels == "never_comes":
        monkeypatch.setitem(crews.START, "cpu", 8.0)
    started = Crew(2, 1, "cpu", kernels)
    with pytest.raises(UserError, match=words), started:
        pass
    assert started.members == []
