"""AIME grader on golden right, golden wrong and tricky replies."""

from __future__ import annotations

import math

import pytest

from evals.graders import aime
from evals.graders.aime import grade_aime
from evals.graders.reply import Reply
from tests.evals.graders.variants import aime_dollar, aime_first_answer_line

GOLD = 73
K3, K3_CLOSE = "<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"
K3_END = "<|close|>response<|sep|><|close|>message<|sep|>"
CASES = [
    ("plain", r"So \boxed{73}", "right"),
    ("full stop inside", r"\boxed{73.}", "right"),
    ("leading zero", r"\boxed{073}", "right"),
    ("spaces", r"\boxed{ 73 }", "right"),
    ("space before the brace", r"\boxed {73}", "right"),
    ("dollar signs outside", r"Thus $\boxed{73}$.", "right"),
    ("dollar signs inside", r"\boxed{$73$}", "right"),
    ("display mathematics", r"\[\boxed{73}\]", "right"),
    ("text macro", r"\boxed{\text{73}}", "right"),
    ("bold macro", r"\boxed{\mathbf{73}}", "right"),
    ("thin space", r"\boxed{\,73}", "right"),
    ("fraction", r"\boxed{\frac{146}{2}}", "right"),
    ("sum", r"\boxed{70+3}", "right"),
    ("power", r"\boxed{3^4-8}", "right"),
    ("equation", r"\boxed{m+n=73}", "right"),
    ("decimal", r"\boxed{73.0}", "right"),
    ("last of several", r"First \boxed{12}, no: \boxed{73}", "right"),
    ("nested braces", r"\boxed{{73}}", "right"),
    ("fbox", r"\fbox{73}", "right"),
    ("after reasoning", "<think>\\boxed{12}</think>\n\\boxed{73}", "right"),
    ("lost opening tag", "perhaps \\boxed{12}</think>\\boxed{73}", "right"),
    ("two reasoning blocks", "<think>a</think>\\boxed{1}<think>b</think>\\boxed{73}", "right"),
    ("after K3's reasoning", f"{K3}\\boxed{{12}}{K3_CLOSE}\\boxed{{73}}{K3_END}", "right"),
    ("K3, lost opening mark", f"\\boxed{{12}}{K3_CLOSE}\\boxed{{73}}{K3_END}", "right"),
    ("unicode around", "答案是 \\boxed{73}。", "right"),
    ("other number", r"\boxed{74}", "wrong"),
    ("negative", r"\boxed{-73}", "wrong"),
    ("last of several is wrong", r"\boxed{73} or rather \boxed{37}", "wrong"),
    ("right only in the reasoning", "<think>\\boxed{73}</think>\\boxed{12}", "wrong"),
    ("fraction that is no integer", r"\boxed{\frac{73}{2}}", "wrong"),
    ("gold as part of a number", r"\boxed{173}", "wrong"),
    ("very long box", r"\boxed{" + "7" * 400 + "}", "wrong"),
    ("boxed only in the reasoning", "<think>\\boxed{73}</think>It is 73.", "unparsed"),
    ("K3, right only in the reasoning", f"{K3}\\boxed{{73}}{K3_CLOSE}\\boxed{{12}}{K3_END}", "wrong"),
    ("K3, reasoning without end", f"{K3}\\boxed{{73}}", "unparsed"),
    ("reasoning without end", "<think>\\boxed{73}", "unparsed"),
    ("no box", "The answer is 73.", "unparsed"),
    ("open box", r"\boxed{73", "unparsed"),
    ("empty box", r"\boxed{}", "unparsed"),
    ("empty reply", "", "unparsed"),
]


@pytest.mark.parametrize(("reply", "outcome"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_reply_is_classed(reply: str, outcome: str) -> None:
    grade = grade_aime(reply, GOLD)
    assert grade.outcome == outcome, grade
    assert grade.score == (outcome == "right")


@pytest.mark.parametrize("box", [r"\boxed{1,234}", r"\boxed{1{,}234}"])
def test_comma_between_thousands_is_no_list(box: str) -> None:
    assert grade_aime(box, 1234).outcome == "right"


def test_escaped_brace_does_not_end_the_box() -> None:
    assert aime.last_boxed(r"\boxed{\{7\}} or \boxed{a \} b}") == r"a \} b"


def test_gold_with_leading_zeros_is_an_integer() -> None:
    assert grade_aime(r"\boxed{7}", "007").outcome == "right"


@pytest.mark.parametrize("failure", ["timeout", "transport", "server", "refused", "context", "malformed"])
def test_failure_is_never_a_wrong_answer(failure: str) -> None:
    grade = grade_aime(Reply("\\boxed{12}", failure=failure, message="why"), GOLD)
    assert grade.outcome == failure
    assert math.isnan(grade.score)
    assert math.isnan(grade.zero_if_truncated)


def test_truncated_reply_has_no_score_even_with_an_answer() -> None:
    grade = grade_aime(Reply("\\boxed{73} but", finish="length"), GOLD)
    assert grade.outcome == "truncated"
    assert math.isnan(grade.score)
    assert grade.zero_if_truncated == 0


def test_crash_of_the_grader_is_its_own_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(box: str, expected: int) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(aime, "_by_math_verify", crash)
    grade = grade_aime(r"\boxed{\frac{1}{2}}", GOLD)
    assert grade.outcome == "grader"
    assert "RecursionError" in grade.note


def test_grader_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    import math_verify

    monkeypatch.setattr(aime, "TIME_LIMIT", 0.05)

    def hang(*_: object, **__: object) -> None:
        while True:
            pass

    monkeypatch.setattr(math_verify, "parse", hang)
    grade = grade_aime(r"\boxed{\frac{1}{2}}", GOLD)
    assert grade.outcome == "grader"
    assert "0.05 s" in grade.note


def test_variant_dollar_differs() -> None:
    reply = "We need $a$ and $b$. The answer is 73."
    assert aime_dollar(reply) == "a$ and $b"
    assert grade_aime(reply, GOLD).outcome == "unparsed"
    assert aime_dollar("<think>\\boxed{73}</think>none") == "73"
    assert grade_aime("<think>\\boxed{73}</think>none", GOLD).outcome == "unparsed"


def test_variant_first_answer_line_differs() -> None:
    reply = "<think>Answer: 12 maybe</think>\\boxed{73}\nAnswer: 73"
    assert aime_first_answer_line("<think>Answer: 12\n</think>\\boxed{73}") == 12
    assert grade_aime(reply, GOLD).outcome == "right"


def test_variant_whole_completion_reads_the_reasoning() -> None:
    from math_verify import parse

    reply = "<think>try \\boxed{73}</think>I do not know."
    assert str(parse(reply, parsing_timeout=None)[0]) == "73"
    assert grade_aime(reply, GOLD).outcome == "unparsed"
