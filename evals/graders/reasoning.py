"""Where the reasoning ends and the answer begins.

Two kinds of marks are known: ``<think> ... </think>`` (most models, Kimi K2 among them), and those of Kimi
K3,
``<|open|>think<|sep|> ... <|close|>think<|sep|>``, whose answer stands between marks of its own
(``<|open|>response<|sep|> ... <|close|>response<|sep|><|close|>message<|sep|>``; vLLM 0.33's reasoning parser
``kimi_k3`` knows the same). A server without that parser leaves them in the text; one that returns the
reasoning apart has it put back as ``<think> ... </think>`` in front by our engine.

What this catches: answers read out of the reasoning (F57), and K3's answer marks taken for part of an answer,
which would fail every MRCR row at its prefix. Servers may lose the opening mark because the template wrote it
into the prompt, so the split is at the last closing mark of either kind, whether or not one was opened. What
it cannot catch: reasoning in other marks or in none, and reasoning that was never opened nor closed in the
text (cut at the length limit: that is class "truncated" before this is asked).
"""

from __future__ import annotations

import re

# Spaces inside K3's marks: detokenisers may put them between special tokens.
OPEN = re.compile(r"<think>|<\|open\|>\s*think\s*<\|sep\|>")
CLOSE = re.compile(r"</think>|<\|close\|>\s*think\s*<\|sep\|>")
BEGIN = re.compile(r"\s*<\|open\|>\s*response\s*<\|sep\|>")
END = re.compile(r"<\|close\|>\s*(?:response|message)\s*<\|sep\|>")


def answer_part(text: str) -> str | None:
    """What follows the reasoning; the whole text if there is none; None if reasoning is opened and never
    closed.

    White space right after the closing mark belongs to the mark: chat templates write line breaks there. Text
    without reasoning is returned as it is, so that a rule on its first character still sees that character.
    Kimi K3's marks around the answer are taken off; what stands between them is not touched.
    """
    closings = list(CLOSE.finditer(text))
    after = text[closings[-1].end() :] if closings else text
    if OPEN.search(after):
        return None
    if begin := BEGIN.match(after):
        body = after[begin.end() :]
        end = END.search(body)
        return body[: end.start()] if end else body
    return after.lstrip() if closings else after
