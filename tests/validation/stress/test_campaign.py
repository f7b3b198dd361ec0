"""The verdict of a stress run from what its stages gave, without ranks."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from validation.commands.stress import _document
from validation.commands.stress_report import cases
from validation.stress import campaign
from validation.stress.campaign import DEPLOYMENTS, Plan, Results, _compare, bound_words
from validation.stress.drills import Drill
from validation.stress.job import Answer, Job
from validation.stress.outcome import Outcome
from validation.stress.repeats import Repeat

RUNS = ("quiet again", "skewed")
RIGHT, OTHER = "0000000100000002", "0000000100000003"


def _outcome(name: str, hashes: str = RIGHT) -> Outcome:
    answers = [Answer("done", rank, 2, 50, 1.0, hashes) for rank in range(2)]
    return Outcome(Job(name, "LL", steps=2), 2, answers, seconds=1.0)


def _results(skewed: str = RIGHT, again: str = RIGHT, kept: int = 2) -> Results:
    """Both deployments, the first with these hashes and so many quiet runs, compared."""
    results = Results(Plan("cpu", 2, 1, "LL", 50, 60.0, ("hashes",), batches=(8, 16), seed=3))
    for number, (name, *_) in enumerate(DEPLOYMENTS):
        first = number == 0
        runs = [_outcome(f"skewed {name}", skewed if first else RIGHT)]
        quiet = [_outcome(f"quiet {name}"), _outcome(f"quiet again {name}", again if first else RIGHT)]
        results.runs += runs
        _compare(results, runs, quiet[: kept if first else 2])
    return results


def test_equal_hashes_pass_and_say_over_how_many_steps() -> None:
    results = _results()
    assert results.verdict == "pass"
    assert results.compared == {f"{what} {name}": 2 for name, *_ in DEPLOYMENTS for what in RUNS}


@pytest.mark.parametrize("what", RUNS)
def test_a_run_that_parts_fails_and_is_not_called_bit_equal(what: str) -> None:
    results = _results(**{"skewed" if what == "skewed" else "again": OTHER})
    name = f"{what} {DEPLOYMENTS[0][0]}"
    assert results.failures == [f"hashes: {name} parts from the quiet run at step 1"]
    assert results.verdict == "fail"
    assert name not in results.compared


@pytest.mark.parametrize("kept", [0, 1])
def test_what_was_not_compared_is_no_pass(kept: int) -> None:
    results = _results(kept=kept)
    assert results.verdict == "undecided"
    (doubt,) = results.doubts
    assert doubt.endswith("quiet again TP8 with a quiet run; more (--seconds) would do")
    assert ("skewed TP8" in doubt) == (not kept)


def test_a_deployment_that_was_not_run_is_no_pass() -> None:
    results = _results()
    results.runs, results.compared = results.runs[:1], {f"{what} TP8": 2 for what in RUNS}
    results.plan = replace(results.plan, exchanges=1)
    assert results.verdict == "undecided"
    assert "skewed TP16 DCP, quiet again TP16 DCP with a quiet run" in results.doubts[0]


def test_a_bound_below_one_step_says_so() -> None:
    results = _results()
    assert bound_words(results).endswith("too few for one of Kimi K3's steps")
    for answer in results.runs[0].answers:
        answer.exchanges = 3 * 461
    assert bound_words(results).endswith("less than one failure in 1")


def test_a_finding_is_repeated_with_the_options_of_its_run() -> None:
    results = _results()
    results.runs[0].answers[1].hashes = OTHER
    (finding,) = cases(results)[0].findings
    assert finding.replay == (
        "lockstep stress --device cpu --ranks 2 --lanes 1 --layers LL --batches 8 16 --seed 3"
    )


def test_a_drill_or_a_flipped_bit_that_goes_unnoticed_is_no_pass() -> None:
    results = _results()
    results.drills = [Drill("kill", 1, 2.0, False, "nothing was found")]
    results.repeats = [Repeat("torch", "cpu", 16, noticed=False)]
    assert results.verdict == "undecided"
    assert results.doubts == [
        "kill of rank 1: not named in time: nothing was found",
        "torch: a flipped bit went unnoticed",
    ]
    results.errors = ["rank 1 was killed by SIGKILL"]
    assert results.verdict == "error"


class _Crew:
    """One that counts how often it was started anew."""

    restarted = 0

    def restart(self) -> None:
        self.restarted += 1


@pytest.mark.parametrize(("given", "made"), [(3600.0, 6), (0.0, 2)])
def test_trials_end_with_the_time_given_and_those_left_out_are_no_pass(
    monkeypatch: pytest.MonkeyPatch, given: float, made: int
) -> None:
    for kind in ("hang", "kill"):
        right = Drill(kind, 0, 0.3, True, "")
        monkeypatch.setattr(campaign.drills, kind, lambda *_, right=right: right)
    results, crew, said = _results(), _Crew(), []
    results.plan = replace(results.plan, modes=("hashes", "watchdog"), trials=3)
    campaign._drills(results.plan, crew, results, time.monotonic() + given, said.append)  # type: ignore[arg-type]
    assert [drill.kind for drill in results.drills] == ["hang", "kill"] * (made // 2)
    assert crew.restarted == made // 2 - 1  # only where another hang follows a death
    assert said[-1] == f"kill {made // 2} of 3: rank 0 named in 0.3 s"
    assert results.doubts == (
        [] if made == 6 else ["2 of 6 trials in the time given; more (--seconds) would do"]
    )
    assert results.verdict == ("pass" if made == 6 else "undecided")


def test_what_is_missing_is_said_with_the_time_that_it_would_take() -> None:
    results = _results()
    results.plan = replace(results.plan, exchanges=400)
    assert results.doubts == ["100 of 400 exchanges in the time given; about 6 s more (--seconds) would do"]
    results.runs = []
    assert results.doubts[-1] == "0 of 400 exchanges in the time given; more (--seconds) would do"


def test_an_interrupted_run_says_so_and_nothing_of_time_given() -> None:
    results = _results()
    results.plan = replace(results.plan, exchanges=400)
    document = _document(results, "lockstep stress", "quick", interrupted=True)
    assert (document.verdict, document.notes) == ("undecided", ["stopped before the end"])
    document = _document(results, "lockstep stress", "quick", interrupted=False)
    assert (document.verdict, document.notes) == ("undecided", results.doubts)


def test_an_interrupted_run_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    clock = iter([100.0, 185.0])
    monkeypatch.setattr(campaign.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(campaign, "_stages", interrupted)
    results = _results()
    with pytest.raises(KeyboardInterrupt):
        campaign.carry_out(results, print)
    assert results.seconds == 85.0
