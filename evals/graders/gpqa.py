"""GPQA: the last ``Answer: $LETTER`` outside the reasoning.

The pattern is that of the prompt, with the ornaments that models put around a letter: dollar signs, brackets,
bold marks, a box. The last match counts, because a reply may weigh ``Answer: A`` before it settles. A word is
no letter: "Answer: Because" names no option.

What this catches: answers in the reasoning, the first match taken for the final one, a letter read out of a
word (F57). What it cannot catch: an answer in another form ("the correct option is B"): class "unparsed".
"""

from __future__ import annotations

import re

from evals.graders.outcome import Grade, grade, unparsed
from evals.graders.reasoning import answer_part

LETTERS = "ABCD"
BEFORE = r"[ \t*_)\]}'\"]*"  # between "Answer" and the colon: "**Answer**:"
AFTER = r"[ \t*_$(\[{`'\"]*"  # between the colon and the letter: "Answer: **(B)"
MACRO = r"(?:\\(?:boxed|text|mathrm|mathbf|textbf)\{[ \t]*)*"
ANSWER = re.compile(rf"(?i)answer{BEFORE}:{AFTER}{MACRO}([A-D])(?![A-Za-z0-9]|['\u2019][A-Za-z])")


def grade_gpqa(reply: str, gold: str) -> Grade:
    """Grade of ``reply`` against the letter ``gold``, one of ABCD."""
    if gold not in tuple(LETTERS):
        raise ValueError(f"gold answer {gold!r} is not one of {LETTERS}")
    return grade(reply, lambda text: _judge(text, gold))


def _judge(text: str, gold: str) -> Grade:
    answer = answer_part(text)
    if answer is None:
        return unparsed("the reasoning never ends")
    found = ANSWER.findall(answer)
    if not found:
        return unparsed("no 'Answer: LETTER' after the reasoning")
    letter = found[-1].upper()
    return Grade(float(letter == gold), "right" if letter == gold else "wrong", letter)
