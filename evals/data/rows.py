"""Raw rows of each data set made into documents that the tasks ask.

A document has ``id`` (a hash of the question, the same in every run), what the grader needs, and ``turns``:
the messages before the question, as JSON. The same functions take rows from the hub, from local files and
from the sets made here; a raw row may bring ``Solved``, earlier questions with their replies (only ours do),
which become turns through the same prompt functions.

GPQA options are permuted by a hash of the question: every run, arm and repeat sees the same letters, and the
letters differ between questions. What this catches: letters that depend on a global generator, a cache or a
worker (F59, report ids B223 and B224). What it cannot catch: a hash that puts all gold answers on one letter
by chance; a test looks at the distribution.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from evals.data import bins
from evals.graders.gpqa import LETTERS
from evals.tasks import prompts
from validation.errors import UserError

Document = dict[str, Any]


def digest(*parts: str) -> str:
    """Sixteen hex digits over ``parts``."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:16]


def aime(row: Mapping[str, Any]) -> Document:
    """Columns ``problem`` and ``answer`` (an integer from 0 to 999)."""
    problem, answer = str(row["problem"]), str(row["answer"]).strip()
    if not answer.isdigit() or int(answer) > 999:
        raise UserError(f"answer {answer[:40]!r} of an AIME question is not an integer from 0 to 999")
    turns = [
        turn for earlier in row.get("Solved", ()) for turn in _solved(prompts.aime(aime(earlier)), earlier)
    ]
    return {
        "id": digest("aime", problem),
        "problem": problem,
        "answer": int(answer),
        "turns": json.dumps(turns),
    }


def gpqa(row: Mapping[str, Any]) -> Document:
    """Columns of the original CSV; options stripped and permuted by the hash of the question."""
    question = str(row["Question"]).strip()
    right = str(row["Correct Answer"]).strip()
    options = [right] + [str(row[f"Incorrect Answer {i}"]).strip() for i in (1, 2, 3)]
    order = permutation(question)
    shown = [options[i] for i in order]
    document = {
        "id": digest("gpqa", question),
        "question": question,
        **dict(zip(LETTERS, shown, strict=True)),
        "answer": LETTERS[order.index(0)],
    }
    turns = []
    for earlier in row.get("Solved", ()):
        solved = gpqa(earlier)
        reply = earlier["reply"].format(letter=solved["answer"], option=solved[solved["answer"]])
        turns += _solved(prompts.gpqa(solved), {"reply": reply})
    return {**document, "turns": json.dumps(turns)}


def permutation(question: str) -> list[int]:
    """Order of the four options, drawn by a generator that is seeded with the hash of the question."""
    seed = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big")
    return Random(seed).sample(range(4), 4)


def mrcr(row: Mapping[str, Any]) -> Document:
    """Columns of the original Parquet: ``prompt`` (messages as JSON), ``answer``, prefix and needle count."""
    try:
        messages = [{"role": m["role"], "content": m["content"]} for m in json.loads(row["prompt"])]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError("column 'prompt' of an MRCR row is not a JSON list of messages") from error
    answer, prefix = str(row["answer"]), str(row["random_string_to_prepend"])
    if not messages or messages[-1]["role"] != "user" or not prefix or not answer.startswith(prefix):
        raise UserError("an MRCR row does not end with the user, or its answer not start with its prefix")
    tokens = bins.tokens_of(messages, answer)
    where = bins.bin_of(tokens)
    return {
        "id": digest("mrcr", row["prompt"], answer),
        "question": messages[-1]["content"],
        "answer": answer,
        "prefix": prefix,
        "needles": int(row["n_needles"]),
        "tokens": tokens,
        "bin": -1 if where is None else where,
        "turns": json.dumps(messages[:-1]),
    }


def distinct(documents: Sequence[Document], name: str) -> list[Document]:
    """The documents, refused if two have one id: results could not be paired."""
    if len({document["id"] for document in documents}) != len(documents):
        raise UserError(f"{name}: the same question occurs twice; remove it, questions are paired by content")
    return list(documents)


def _solved(prompt: str, earlier: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": earlier["reply"]}]
