"""Where the reasoning ends and the answer begins.

What this catches: answers read out of the reasoning (F57). Servers may lose the opening ``<think>`` because
the template wrote it into the prompt, so the split is at the last ``</think>``, whether or not it was opened.
What it cannot catch: reasoning in other marks or in none, and a server that returns reasoning in a field of
its own (nothing is left to remove there, and nothing is removed).
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def answer_part(text: str) -> str | None:
    """What follows the reasoning; the whole text if there is none; None if reasoning is opened and never
    closed.

    White space right after the closing mark belongs to the mark: chat templates write line breaks there. Text
    without reasoning is returned as it is, so that a rule on its first character still sees that character.
    """
    before, mark, after = text.rpartition(CLOSE)
    if mark:
        return None if OPEN in after else after.lstrip()
    return None if OPEN in before + after else text
