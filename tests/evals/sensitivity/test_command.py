"""The command: its record, its exit status, and bad options in one line."""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path

import pytest

from evals.sensitivity.command import arguments, main, show, wanted
from evals.sensitivity.measure import Rates, Size
from evals.sensitivity.prompts import ADJECTIVES, NOUNS, OPENINGS, prompts
from validation.errors import UserError

FEW = ("--tokens", "100", "--sets", "1", "--groups", "1", "--fault-sets", "1", "--rows", "7")


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args([*FEW, *given])


def test_the_record_says_what_was_measured_where(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    made = options("--model", str(tiny_model), "--layers", "1", "--json", str(path))
    assert main(made, "lockstep sensitivity") == 0
    record = json.loads(path.read_text())
    assert {"command", "date", "commit", "facts", "passed", "with_itself", "faults"} <= set(record)
    assert (record["passed"], record["command"]) == (True, "lockstep sensitivity")
    assert record["facts"]["dtype"] == "bfloat16"
    assert len(record["facts"]["cache_lengths"]) == 1
    assert record["with_itself"]["runs"] == 1
    assert record["with_itself"]["upper_limits"] == {"100": pytest.approx(0.95)}
    assert [each["name"] for each in record["faults"]] == [
        "weight noise of 4-bit size",
        "value cache x 1.01, layer 1",
    ]
    assert record["faults"][0]["found_within"] == 100


def rates(alarms: int, runs: int = 200) -> Rates:
    return Rates("the arm with itself", runs, {100: alarms})


def test_it_passes_up_to_a_rate_that_the_level_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(rates(5), [], Size(100))
    assert "upper limit 5.2% in 200 runs" in capsys.readouterr().out
    assert not show(rates(6), [], Size(100))


def test_a_broken_promise_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = Rates("found", 10, {100: 8}, within=100)
    assert show(rates(0), [found], Size(100))
    assert not show(rates(0), [found, Rates("lost", 10, {100: 7}, within=100)], Size(100))
    assert "not found within 100 tokens: lost" in capsys.readouterr().out


def test_layers_choose_among_the_faults_of_layers_alone() -> None:
    assert [each.layer for each in wanted(12, None)] == [None, *range(12)]
    assert [each.layer for each in wanted(12, [1])] == [None, 1]
    assert [each.layer for each in wanted(12, [])] == [None]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--tokens", "99"), "--tokens must be at least 100"),
        (("--sets", "0"), "at least 1"),
        (("--groups", "0"), "at least 1"),
        (("--fault-sets", "0"), "at least 1"),
        (("--groups", "8"), "--groups must be at most 7"),
        (("--rows", "0"), "--rows must be at least 1"),
        (("--layers", "2"), "layers 0 to 1"),
        (("--sets", "5000"), "lower the tokens"),
        (("--dtype", "float7"), "float7"),
        (("--json", "/no/such/folder/x.json"), "--json"),
    ],
)
def test_bad_options_are_one_line(tiny_model: Path, given: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        main(options("--model", str(tiny_model), *given), "")
    assert "\n" not in str(error.value)


def test_prompts_are_different_and_of_few_lengths() -> None:
    made = prompts(lambda request: [ord(x) for x in request.messages[0]["content"]], 500)
    assert len(set(made)) == len(made) == 500
    lengths = [len(ids) for ids in made]
    assert sum(a != b for a, b in pairwise(lengths)) == len(set(lengths)) - 1 < 8


def test_every_prompt_that_can_be_made_is_another_one() -> None:
    most = len(OPENINGS) * len(ADJECTIVES.split()) * len(NOUNS.split())
    made = prompts(lambda request: list(request.messages[0]["content"].encode()), most)
    assert len(set(made)) == most > 10_862  # what the measurement asks for by default
