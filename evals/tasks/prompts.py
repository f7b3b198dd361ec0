r"""The prompts, word for word those of the sources, because format alone moves a score by nine points.

AIME: Moonshot's vendor verifier (two line breaks, one space, boxed answer). GPQA: OpenAI's simple-evals.
MRCR: the messages of the data set as they are. Real data, local data and the sets made here go through the
same functions.

What this catches: nothing by itself; frozen prompts are pinned in the tests (F59). What it cannot catch: a
server whose chat template adds text; the comparability guard compares token ids for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AIME = "{problem}\n\n Please reason step by step, and put your final answer within \\boxed{{}}."
GPQA = (
    "Answer the following multiple choice question. The last line of your response should be of the "
    "following format: 'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. "
    "Think step by step before answering.\n\n{question}\n\nA) {A}\nB) {B}\nC) {C}\nD) {D}"
)


def aime(doc: Mapping[str, Any]) -> str:
    """Prompt of an AIME document."""
    return AIME.format(problem=doc["problem"])


def gpqa(doc: Mapping[str, Any]) -> str:
    """Prompt of a GPQA document; its options are in the order shown."""
    return GPQA.format(question=doc["question"], A=doc["A"], B=doc["B"], C=doc["C"], D=doc["D"])


def mrcr(doc: Mapping[str, Any]) -> str:
    """The last message of an MRCR document; the messages before it are its turns."""
    return str(doc["question"])
