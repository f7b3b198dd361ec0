"""Rules in use elsewhere, in our own words, to show where they differ from the rule that holds here.

What this catches: a grader of ours that quietly became one of these. What it cannot catch: a variant nobody
listed.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

# --- MRCR ---------------------------------------------------------------------------------------------------


def mrcr_official(reply: str, gold: str, prefix: str) -> float:
    """The dataset card's rule, written a second time: gate, strip, ratio."""
    if reply[: len(prefix)] != prefix:
        return 0.0
    return SequenceMatcher(None, reply[len(prefix) :], gold[len(prefix) :]).ratio()


def mrcr_no_autojunk(reply: str, gold: str, prefix: str) -> float:
    """vLLM's: gold first, reply second, autojunk off."""
    if not reply.startswith(prefix):
        return 0.0
    return SequenceMatcher(a=gold[len(prefix) :], b=reply[len(prefix) :], autojunk=False).ratio()


def mrcr_lstrip(reply: str, gold: str, prefix: str) -> float:
    """evalscope's: white space before the prefix is forgiven."""
    return mrcr_official(reply.lstrip(), gold, prefix)


def mrcr_no_gate(reply: str, gold: str, prefix: str) -> float:
    """openbench's where a row has no prefix: the ratio without the gate."""
    return SequenceMatcher(None, reply, gold).ratio()


def mrcr_with_reasoning(reply: str, gold: str, prefix: str) -> float:
    """Reasoning not removed first: a thinking model never starts with the prefix."""
    return mrcr_official(reply, gold, prefix)


def mrcr_paired_tags(reply: str, gold: str, prefix: str) -> float:
    """Only a whole <think>...</think> is removed; a lost opening tag leaves everything."""
    return mrcr_official(re.sub(r"<think>.*?</think>\s*", "", reply, flags=re.DOTALL), gold, prefix)


def mrcr_user_mark(reply: str, gold: str, prefix: str) -> float:
    """A <|user|> mark and all behind it is cut off first."""
    return mrcr_official(reply.split("<|user|>")[0], gold, prefix)


def bin_half_open(tokens: int, edges: tuple[int, ...]) -> int:
    """openbench's: [left, right) in the middle, and the first bin for everything outside."""
    for i in range(len(edges) - 1):
        if edges[i] <= tokens < edges[i + 1]:
            return i
    return 0


def tokens_by_characters(text: str) -> int:
    """Four characters are taken for one token."""
    return len(text) // 4


# --- AIME ---------------------------------------------------------------------------------------------------


def aime_dollar(reply: str) -> str:
    """lm-eval's aime tasks: between the first and the last dollar sign, overridden by the last box."""
    inner = reply
    if reply.count("$") > 1:
        inner = reply[reply.index("$") + 1 : reply.rindex("$")]
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", reply)
    return boxed[-1] if boxed else inner


def aime_first_answer_line(reply: str) -> int | None:
    """SGLang's: the first "Answer:" line, read as a number."""
    found = re.search(r"(?i)answer\s*:\s*([^\n]+)", reply)
    try:
        return int(float(found.group(1))) if found else None
    except ValueError:
        return None


# --- GPQA ---------------------------------------------------------------------------------------------------


def gpqa_first(reply: str) -> str | None:
    """simple-evals': the first match, a letter may be the start of a word."""
    found = re.search(r"(?i)answer[ \t]*:[ \t]*\$?([A-D])\$?", reply)
    return found.group(1).upper() if found else None


def gpqa_last_bracketed(reply: str) -> str | None:
    """lm-eval's flexible filter: the last capital letter in round brackets."""
    found = re.findall(r"\(([A-Z])\)", reply)
    return found[-1] if found else None


def gpqa_first_character(reply: str) -> str | None:
    """The last resort of gpt_oss.evals: the first character of the text."""
    return reply.removeprefix("**")[:1].upper() or None
