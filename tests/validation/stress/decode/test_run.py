"""Ranks that decode through their mailboxes, in processes: bit for bit as one process, what is planted is
noticed, hangs and deaths are named, nothing is left behind.

Waits have a patience of minutes where they must not run out: the machine may be busy.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.processes import children, eventually, running
from validation.cli import main
from validation.stress.crew import Crew
from validation.stress.decode import run
from validation.stress.decode.run import Party, Results, decode, hangs, parted
from validation.stress.job import Answer, Decode
from validation.stress.outcome import Death

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[4]
# Layers of every kind but MLA with a dense MLP; four MoE layers (1 modulo 3) run the tail's parities on.
JOB = Decode("torch", 2, 7, layers=5, block=2, renewed=2, chunk=3, patience=300.0)


def test_ranks_leave_the_bits_of_one_process_and_faults_are_noticed() -> None:
    results = Results(JOB, "cpu")
    decode(results)
    assert (results.verdict, results.failures, results.errors, results.doubts) == ("pass", [], [], [])
    assert results.steps == 7
    assert list(results.checkpoints) == [2, 5, 7]
    assert results.exchanges == 7 * (5 + 5 * 4)
    assert "parts from the walk in one process" in results.noticed["never_rearmed"]
    assert results.noticed["stale_parity"].startswith(
        "hang: rank 0, step 0, layer 0, oproj, parity 0: waits for rank 1"
    )
    assert results.noticed["state_flipped"].startswith("step 1, rank 1: state of layer 0")


@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FAULTS", ())
    results = Results(replace(JOB, ranks=ranks, steps=3, layers=4), "cpu")
    decode(results)
    assert (results.verdict, results.steps, results.failures) == ("pass", 3, [])


def test_replayed_batches_count_their_warm_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared batches of several sizes, captured after warm-ups that exchange, too."""
    monkeypatch.setenv("PYTHONPATH", str(HERE / "graphs"))
    monkeypatch.setattr(run, "ENGINE", "graph_engine")
    monkeypatch.setattr(run, "FAULTS", ("state_flipped",))
    results = Results(JOB, "cpu")
    decode(results)
    assert (results.verdict, results.steps, results.failures, results.errors) == ("pass", 7, [], [])
    sizes = 3  # of requests: 2, 3 (padded to 4), 1
    assert results.exchanges == (7 + 2 * sizes) * (5 + 5 * 4)


@pytest.mark.stress
def test_interpreted_kernels_on_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FAULTS", ())
    results = Results(replace(JOB, provider="triton", steps=2, layers=4, counts=(1,), sizes=(1,)), "cpu")
    decode(results)
    assert (results.verdict, results.steps, results.failures) == ("pass", 2, [])


def test_a_fault_that_goes_unnoticed_makes_the_run_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FAULTS", ("nothing",))
    results = Results(replace(JOB, steps=1, layers=3), "cpu")
    decode(results)
    assert (results.verdict, results.failures) == ("undecided", [])
    assert results.doubts == ["planted fault nothing went unnoticed"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_is_named_and_nothing_is_left(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FAULTS", ())
    gone = list[int]()

    def harm(crew: Crew, steps: int) -> None:
        if steps >= 3 and not gone:
            gone.extend(member.process.pid for member in crew.members)
            os.kill(gone[1], number)

    results = Results(replace(JOB, steps=500, layers=3, chunk=500, patience=8.0), "cpu")
    decode(results, harm=harm)
    assert results.verdict in ("error", "fail")
    (said,) = results.errors
    ending = "was killed by SIGKILL" if number == signal.SIGKILL else "does not answer"
    assert said.startswith(f"rank 1 {ending}; last seen in step ")
    if number == signal.SIGSTOP:
        assert "waits for rank 1, whose publication is missing" in results.failures[0]
    assert len(gone) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in gone)
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in gone)]


def test_a_time_that_is_too_short_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FAULTS", ())
    results = Results(replace(JOB, layers=3), "cpu")
    decode(results, seconds=0.001)
    assert (results.verdict, results.steps) == ("undecided", 2)
    assert results.doubts == ["stopped after 2 of 7 steps"]


class Told(Party):
    """A party of which all is known."""

    def __init__(self, left: list[str], named: list[dict[str, str]]) -> None:
        self.left, self.held, self.named, self.crew = left, named, named, type("Crew", (), {"count": 2})()

    def digests(self, step: int) -> list[dict[str, str]]:
        return self.named


def test_the_first_step_rank_and_tensor_that_part_are_named() -> None:
    a, b, wrong = "a" * 32, "b" * 32, "c" * 32
    whole = Told([a + b + a, a + b + a], [{"state": "1", "prefix": "2", "logits": "3"}] * 2)
    right = Told([a + b + a, a + b + a], whole.named)
    assert parted(right, whole) == []
    right.held = [whole.named[0], {"state": "1", "prefix": "9", "logits": "9"}]
    (said,) = parted(right, whole)
    assert said == "checkpoint after step 2, rank 1: prefix (and 1 more) parts from the walk in one process"
    other = Told([a + b + a, a + wrong + a], [whole.named[0], {"state": "1", "prefix": "2", "logits": "4"}])
    assert parted(other, whole) == ["step 1, rank 1: logits parts from the walk in one process"]


def test_the_earliest_wait_that_ran_out_comes_first() -> None:
    def record(step: int, act: int, source: int) -> list[int]:
        return [0, 0, 2, step, act, source, 1, 5, 0, 0, 0, 0, 0]

    answers = [Answer("done", 0, records=[record(4, 9, 2)]), Answer("done", 1, records=[record(4, 3, 2)])]
    first, _ = hangs(answers)
    assert first == (
        "hang: rank 1, step 4, layer 0, latent, parity 1: waits for rank 2, whose publication is missing"
    )


class Played:
    """A crew whose answers are known."""

    count = 1

    def __init__(self, answer: Answer) -> None:
        self.answer, self.stopped = answer, False

    def tell(self, order: object) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def listen(self, patience: float, harm: object) -> tuple[list[Answer], list[Death]]:
        return [self.answer], []


def test_what_goes_wrong_apart_stops_the_one_process_too() -> None:
    hung, well = Played(Answer("done", 0, records=[[0, 0, 2, 4, 9, 1, 1]])), Played(Answer("done", 0))
    ranks, whole = (Party(crew, 1.0) for crew in (hung, well))  # type: ignore[arg-type]
    results = Results(JOB, "cpu")
    assert not run._walked(results, [ranks, whole], 3)
    assert (hung.stopped, well.stopped) == (False, True)
    assert len(results.failures) == 1
    results.failures.clear()
    well.stopped = False
    assert run._walked(results, [whole], 3)
    assert not well.stopped


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "5", "--provider", "triton"], "--ranks 5: 2, 3 or 4 on cpu"),
        (["--ranks", "8", "--exchange", "mailboxes"], "--ranks 8: 2, 3 or 4 on cpu"),
        (
            ["--ranks", "2", "--provider", "torch", "--provider", "triton"],
            "--ranks walks with one provider, not 2",
        ),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", *words]) == 3
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_more_ranks_than_gpus_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCKSTEP_DEVICE", "cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(["step", "--device", "cuda", "--ranks", "2"]) == 3
    assert "--ranks 2: there are 1 GPUs here, and a rank needs its own" in capsys.readouterr().err
    assert main(["step", "--device", "cuda", "--ranks", "2", "--exchange", "gloo"]) == 3
    assert "--exchange gloo: those ranks walk on a CPU" in capsys.readouterr().err


def test_the_command_reports_and_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "validation",
        "step",
        "--ranks",
        "2",
        "--exchange",
        "mailboxes",
        "--layers",
        "3",
    ]
    words += ["--steps", "5000"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    walk = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=env
    )
    assert walk.stderr is not None
    while "step 2 of 5,000" not in (line := walk.stderr.readline()):
        assert line, "it ended early"
    ranks = children(walk.pid)
    assert len(ranks) == 3
    walk.send_signal(signal.SIGINT)
    out, _ = walk.communicate(timeout=120)
    assert walk.returncode == 130
    assert "planted state_flipped: step 1, rank 1: state of layer 0" in out
    assert "UNDECIDED: stopped before the end, 3 of 3 planted faults noticed" in out
    assert eventually(lambda: not any(running(pid) for pid in ranks))


@pytest.mark.device
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_decode_in_graphs(tmp_path: Path) -> None:
    """In a process of its own: the device is chosen before triton is imported."""
    words = [
        sys.executable,
        "-m",
        "validation",
        "step",
        "--device",
        "cuda",
        "--ranks",
        "2",
        "--steps",
        "2000",
    ]
    done = subprocess.run(
        [*words, "--provider", "triton"], capture_output=True, text=True, cwd=tmp_path, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "PASS: 2,000 steps on 2 ranks, 3 of 3 planted faults noticed" in done.stdout
