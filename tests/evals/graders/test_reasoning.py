"""Split between reasoning and answer, and replies that remember how they ended."""

from __future__ import annotations

import copy
import math

import pytest

from evals.engines.api import Response
from evals.graders.outcome import OUTCOMES, Grade, from_row, grade
from evals.graders.reasoning import answer_part
from evals.graders.reply import Reply, finish_of

K3 = "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>"
K3_END = "<|close|>response<|sep|><|close|>message<|sep|>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("plain", "plain"),
        (" plain", " plain"),
        ("<think>a</think>b", "b"),
        ("<think>a</think>\n\n b", "b"),
        ("a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a", None),
        ("<think>a</think>b<think>c", None),
        ("<think>a</think>", ""),
        ("", ""),
        ("<|open|>think<|sep|>a<|close|>think<|sep|>b", "b"),
        ("a<|close|>think<|sep|>b", "b"),
        ("<|open|> think <|sep|>a<|close|> think <|sep|>\nb", "b"),
        ("a<|close|>think<|sep|>b<|close|>think<|sep|>c", "c"),
        ("<|open|>think<|sep|>a", None),
        ("<|open|>think<|sep|>a<|close|>think<|sep|>b<|open|>think<|sep|>c", None),
        ("<think>a</think><|open|>think<|sep|>c", None),
        ("a</think>b<|close|>think<|sep|>c", "c"),
        ("a<|close|>think<|sep|>b</think>c", "c"),
        (K3 + "b" + K3_END, "b"),
        (K3 + " b\n" + K3_END, " b\n"),
        (K3 + "b", "b"),
        ("<|open|>response<|sep|>b<|close|>response<|sep|>", "b"),
        (K3 + "b<|close|>message<|sep|>", "b"),
        ("<think>a</think>b<|sep|>", "b<|sep|>"),
        ("b<|open|>response<|sep|>c", "b<|open|>response<|sep|>c"),
    ],
)
def test_answer_part(text: str, answer: str | None) -> None:
    assert answer_part(text) == answer


def test_reply_keeps_how_it_ended() -> None:
    reply = Reply.of(Response("key", 1, text="x", finish="length"))
    assert reply == "x"
    assert finish_of(copy.deepcopy(reply)) == "length"
    assert finish_of("x") == ""
    failed = Reply.of(Response("key", 1, failure="timeout", message="60 s"))
    assert (failed, failed.failure, failed.message) == ("", "timeout", "60 s")


def test_unknown_failure_is_still_a_failure() -> None:
    assert grade(Reply("", failure="earthquake"), lambda text: Grade(1.0, "right")).outcome == "malformed"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_grade_survives_json(outcome: str) -> None:
    score = math.nan if outcome not in ("right", "wrong", "unparsed") else 0.5
    row = Grade(score, outcome, "7", "why").as_row()  # type: ignore[arg-type]
    again = from_row(row)
    assert again.as_row() == row
    assert math.isnan(again.score) == math.isnan(score)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_only_whole_replies_are_scored(outcome: str) -> None:
    """An unparsed reply is a 0 that counts; a truncated or failed one has no score."""
    assert Grade(0.0, outcome).scored == (outcome in ("right", "wrong", "unparsed"))  # type: ignore[arg-type]
