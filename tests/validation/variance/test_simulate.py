"""The simulation: rates, its power search, and that it flags a bad test, a bad MDE and a silent control."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from validation.cli import main
from validation.variance import simulate
from validation.variance.scenarios import SCENARIOS
from validation.variance.simulate import Rate, chunk, levels, many, powers, verdict


class Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(jobs: int) -> Iterator[Executor]:
        yield Here()

    from contextlib import contextmanager

    monkeypatch.setattr(simulate, "workers", contextmanager(here))


def test_a_run_does_not_depend_on_its_chunk() -> None:
    tests = ("paired difference",)
    whole = chunk("aime25 K=8", tests, 0.0, 1, 0, 4)
    assert np.array_equal(whole[2:], chunk("aime25 K=8", tests, 0.0, 1, 2, 4))


def test_the_naive_standard_error_is_flagged_and_honest_tests_are_not() -> None:
    name = "copied repeats K=8"
    null = many(Here(), name, tuple(SCENARIOS[name].tests), 0.0, 0, 60, lambda n: None)
    rates = {r.test: r for r in levels(name, null, 100)}
    assert rates["naive standard error"].failed
    assert rates["naive standard error"].rate > 0.3
    assert not any(r.failed for r in rates.values() if not r.control)


def test_effects_at_the_printed_mde_are_found() -> None:
    name = "forced, shifted"
    null = many(Here(), name, ("bias",), 0.0, 0, 80, lambda n: None)
    (rate,) = powers(Here(), name, null, 0, 80, lambda n: None)
    assert rate.rate > 0.68


def test_an_optimistic_mde_is_flagged() -> None:
    name = "forced, shifted"
    null = many(Here(), name, ("bias",), 0.0, 0, 80, lambda n: None)
    null[:, :, 2] /= 2
    (rate,) = powers(Here(), name, null, 0, 80, lambda n: None)
    assert rate.failed


def test_verdict_names_what_failed() -> None:
    fine = Rate("s", "t", "level", 2000, 100, 0.04, 0.06)
    control = dataclasses.replace(fine, test="naive", control=True, failed=True)
    assert verdict([fine, control]) == []
    assert "not flagged" in verdict([dataclasses.replace(control, failed=False)])[0]
    assert "false alarms" in verdict([dataclasses.replace(fine, failed=True)])[0]
    assert "found in" in verdict([dataclasses.replace(fine, kind="power", failed=True, mde=1.0)])[0]


def test_command_simulate_writes_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rates.json"
    words = ["variance", "simulate", "--runs", "40", "--scenario", "divergences", "--no-power"]
    assert main([*words, "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    assert results["rates"][0]["test"] == "hazard ratio"
    assert results["runs"] == 40
    assert "hazard ratio" in capsys.readouterr().out


def test_command_power_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["variance", "power", "--mix", "gpqa_diamond", "--k", "1", "8"]) == 0
    out = capsys.readouterr().out
    assert "1.82" in out
    assert "+-1: 47 (46.2)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "--runs", "3"], "at least 20"),
        (["simulate", "--scenario", "nope"], "no scenario"),
        (["power", "--mix", "nope"], "no difficulty mix"),
        (["power", "--k", "0"], "at least 1 repeat"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["variance", *words]) == 3
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
