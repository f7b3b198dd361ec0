"""GPQA grader on golden right, golden wrong and tricky replies."""

from __future__ import annotations

import math

import pytest

from evals.graders.gpqa import grade_gpqa
from evals.graders.reply import Reply
from tests.evals.graders.variants import gpqa_first, gpqa_first_character, gpqa_last_bracketed

K3, K3_CLOSE = "<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"
K3_END = "<|close|>response<|sep|><|close|>message<|sep|>"
CASES = [
    ("plain", "Answer: B", "right"),
    ("last line", "Because.\n\nAnswer: B", "right"),
    ("dollar sign", "Answer: $B", "right"),
    ("dollar signs", "Answer: $B$", "right"),
    ("brackets", "Answer: (B)", "right"),
    ("option text", "Answer: B) copper", "right"),
    ("full stop", "Answer: B.", "right"),
    ("lower case", "answer: b", "right"),
    ("upper case", "ANSWER: B", "right"),
    ("bold line", "**Answer: B**", "right"),
    ("bold word", "**Answer:** B", "right"),
    ("bold letter", "Answer: **B**", "right"),
    ("colon outside of bold", "**Answer**: B", "right"),
    ("box", r"Answer: $\boxed{B}$", "right"),
    ("text macro", r"Answer: \text{B}", "right"),
    ("no space", "Answer:B", "right"),
    ("tab", "Answer:\tB", "right"),
    ("quoted", "Answer: 'B'", "right"),
    ("last of two", "Answer: A\nNo.\nAnswer: B", "right"),
    ("after reasoning", "<think>Answer: A</think>\n\nAnswer: B", "right"),
    ("lost opening tag", "Answer: A</think>Answer: B", "right"),
    ("after K3's reasoning", f"{K3}Answer: A{K3_CLOSE}Answer: B{K3_END}", "right"),
    ("K3, lost opening mark", f"Answer: A{K3_CLOSE}Answer: B{K3_END}", "right"),
    ("unicode", "所以 Answer: B。", "right"),
    ("other letter", "Answer: A", "wrong"),
    ("right only first", "Answer: B\nWait.\nAnswer: C", "wrong"),
    ("right only in the reasoning", "<think>Answer: B</think>Answer: C", "wrong"),
    ("only in the reasoning", "<think>Answer: B</think>It is copper.", "unparsed"),
    ("K3, right only in the reasoning", f"{K3}Answer: B{K3_CLOSE}Answer: C{K3_END}", "wrong"),
    ("K3, reasoning without end", f"{K3}Answer: B", "unparsed"),
    ("reasoning without end", "<think>Answer: B", "unparsed"),
    ("word", "Answer: Because it is hot", "unparsed"),
    ("contraction", "Answer: A'right, it is copper", "unparsed"),
    ("quotation mark after the letter", "Answer: B' it is", "right"),
    ("placeholder", "Answer: $LETTER", "unparsed"),
    ("letter out of range", "Answer: E", "unparsed"),
    ("letter alone", "B", "unparsed"),
    ("other form", "The correct option is (B).", "unparsed"),
    ("next line", "Answer:\nB", "unparsed"),
    ("empty", "", "unparsed"),
]


@pytest.mark.parametrize(("reply", "outcome"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_reply_is_classed(reply: str, outcome: str) -> None:
    grade = grade_gpqa(reply, "B")
    assert grade.outcome == outcome, grade
    assert grade.score == (outcome == "right")


def test_failure_and_truncation_have_no_score() -> None:
    for reply in (Reply("Answer: A", finish="length"), Reply("", failure="server")):
        assert math.isnan(grade_gpqa(reply, "B").score)


def test_gold_must_be_a_letter() -> None:
    with pytest.raises(ValueError, match="ABCD"):
        grade_gpqa("Answer: B", "b")


def test_variants_differ() -> None:
    both = "Answer: A? No.\nAnswer: B"
    assert (gpqa_first(both), grade_gpqa(both, "B").outcome) == ("A", "right")
    thought = "<think>Answer: C</think>Answer: B"
    assert (gpqa_first(thought), grade_gpqa(thought, "B").outcome) == ("C", "right")
    word = "Answer: Because"
    assert (gpqa_first(word), grade_gpqa(word, "B").outcome) == ("B", "unparsed")
    bracket = "Answer: B, not (C)"
    assert (gpqa_last_bracketed(bracket), grade_gpqa(bracket, "B").outcome) == ("C", "right")
    talk = "Certainly! Let us see."
    assert (gpqa_first_character(talk), grade_gpqa(talk, "C").outcome) == ("C", "unparsed")
