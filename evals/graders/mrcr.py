"""MRCR: the official rule of the dataset card, after the reasoning is removed.

The score is 0 unless the answer starts with the row's random prefix. Otherwise the prefix is removed from the
answer and from the gold answer, and the score is the ratio of ``difflib.SequenceMatcher`` with junk None, the
reply first, the gold second, and autojunk on. Order and autojunk matter: for answers of 200 characters and
more autojunk makes the rule nearly "verbatim or nothing" (one word in 20 changed: 0.38 instead of 0.96).

Classes: right is a ratio of exactly 1, wrong is anything below (its score is the ratio), unparsed is a reply
without the prefix (0, as officially, but counted apart).

What this catches: hash accepted anywhere, other matchers, reasoning before the prefix (F57). What it cannot
catch: a verbatim copy of the wrong needle that happens to be similar; the rule gives it the similarity.

Cost: SequenceMatcher is quadratic in the worst case. A reply longer than ``LONGEST`` characters, or one that
takes longer than ``TIME_LIMIT`` seconds, gets the class "grader" and no score; it is never cut and scored.
"""

from __future__ import annotations

import math
from difflib import SequenceMatcher

from evals.graders.limits import seconds
from evals.graders.outcome import Grade, grade, unparsed
from evals.graders.reasoning import answer_part

LONGEST = 200_000  # characters; gold answers have a few thousand
TIME_LIMIT = 60.0  # seconds for one row


def grade_mrcr(reply: str, gold: str, prefix: str) -> Grade:
    """Grade of ``reply`` against the gold answer, which itself starts with ``prefix``."""
    if not prefix or not gold.startswith(prefix):
        raise ValueError("the gold answer does not start with the row's prefix")
    return grade(reply, lambda text: _judge(text, gold, prefix))


def ratio(answer: str, gold: str, prefix: str) -> float:
    """The official score of an answer without reasoning, in [0, 1]."""
    if not answer.startswith(prefix):
        return 0.0
    response, expected = answer.removeprefix(prefix), gold.removeprefix(prefix)
    return float(SequenceMatcher(None, response, expected).ratio())


def _judge(text: str, gold: str, prefix: str) -> Grade:
    answer = answer_part(text)
    if answer is None:
        return unparsed("the reasoning never ends")
    if not answer.startswith(prefix):
        return unparsed("the answer does not start with the prefix")
    if len(answer) > LONGEST:
        return Grade(
            math.nan, "grader", note=f"{len(answer)} characters, more than {LONGEST} are not compared"
        )
    with seconds(TIME_LIMIT):
        score = ratio(answer, gold, prefix)
    return Grade(score, "right" if score == 1.0 else "wrong", answer[len(prefix) :][:80])
