r"""AIME: the integer in the last ``\boxed{}`` outside the reasoning, compared by math_verify.

The prompt asks for ``\boxed{}``, so only a boxed answer counts. Moonshot's verifier, whose prompt this is,
parses the whole completion, reasoning included, and returns *incorrect* when its grader crashes; here the
reasoning is removed first and a crash is the class "grader". Plain digits are compared as integers without
math_verify, which only has to see what is left: fractions, powers, units (``\boxed{\frac{146}{2}}``). The
answer is one integer from 0 to 999; ``073`` is 73.

What this catches: answers in the reasoning, stale boxes before the last one, grader crashes (F57). What it
cannot catch: a right answer outside of a box (class "unparsed", which is counted apart), a right box for a
wrong reason.
"""

from __future__ import annotations

import re

from evals.graders.limits import seconds
from evals.graders.outcome import Grade, grade, unparsed
from evals.graders.reasoning import answer_part

TIME_LIMIT = 5.0  # seconds for math_verify on one answer
LONGEST = 300  # characters; a box longer than this is no integer
MARKS = ("\\boxed", "\\fbox")
DIGITS = re.compile(r"[+]?\d{1,30}")
DECORATION = re.compile(r"\\(?:text|mathrm|mathbf|textbf|boldsymbol|bf)\s*\{\s*([^{}]*?)\s*\}")
SPACING = ("\\,", "\\;", "\\!", "\\ ", "{,}", "\\$", "$", "~")


def grade_aime(reply: str, gold: int | str) -> Grade:
    """Grade of ``reply`` against the integer ``gold``."""
    expected = int(str(gold).strip())
    return grade(reply, lambda text: _judge(text, expected))


def last_boxed(text: str) -> str | None:
    r"""Content of the last whole ``\boxed{...}`` (braces matched), or None."""
    found = None
    for start in re.finditer(r"\\f?box(?:ed)?\s*\{", text):
        depth, at = 1, start.end()
        while at < len(text) and depth:
            escaped = text[at - 1] == "\\"
            depth += 0 if escaped else {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            found = text[start.end() : at - 1]
    return found


def _judge(text: str, expected: int) -> Grade:
    answer = answer_part(text)
    if answer is None:
        return unparsed("the reasoning never ends")
    box = last_boxed(answer)
    if box is None or not box.strip():
        return unparsed("no \\boxed{} after the reasoning" if box is None else "an empty box")
    if len(box) > LONGEST:
        return Grade(0.0, "wrong", box[:LONGEST], "a box too long for an integer")
    plain = _plain(box)
    if DIGITS.fullmatch(plain):
        return _verdict(int(plain) == expected, box)
    return _by_math_verify(box, expected)


def _plain(box: str) -> str:
    """The box without what decorates a number: spacing, dollar signs, text macros, commas between
    thousands."""
    for mark in SPACING:
        box = box.replace(mark, "")
    box = DECORATION.sub(r"\1", box).strip().rstrip(".").strip()
    return box.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", box) else box


def _by_math_verify(box: str, expected: int) -> Grade:
    from math_verify import parse, verify

    # Its own time limits raise outside of the main thread, so they are off and ours is used.
    with seconds(TIME_LIMIT):
        found = parse(f"\\boxed{{{box}}}", parsing_timeout=None)
        if not found:
            return Grade(0.0, "unparsed", box, "math_verify finds no value in the box")
        gold = parse(f"\\boxed{{{expected}}}", parsing_timeout=None)
        same = verify(gold, found[0], strict=False, timeout_seconds=None, raise_on_error=True)
    return _verdict(bool(same), box)


def _verdict(same: bool, box: str) -> Grade:
    return Grade(1.0, "right", box) if same else Grade(0.0, "wrong", box)
