"""The sets made here: deterministic, different, well formed, and solvable by their own solved replies."""

from __future__ import annotations

import hashlib
import json

import pytest

from evals.data import mirrored
from evals.data.sources import documents
from evals.graders.aime import grade_aime
from evals.graders.gpqa import grade_gpqa
from evals.graders.mrcr import grade_mrcr
from evals.tasks.loading import NAMES
from validation.errors import UserError

CONTENT = {
    "aime25": "3c01db73a1c7a540",
    "gpqa_diamond": "2079a9d486a69516",
    "mrcr_2needle": "2b60cab8f04a86b9",
    "mrcr_4needle": "755c3527d3bc8ec7",
    "mrcr_8needle": "6663a318d435fd5f",
}


@pytest.mark.parametrize("name", NAMES)
def test_content_is_pinned(name: str) -> None:
    """A change of the generator changes what every stored result means; it must be seen here."""
    text = json.dumps(mirrored.raw(name, 40, 0), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == CONTENT[name]
    assert mirrored.raw(name, 40, 1) != mirrored.raw(name, 40, 0)


@pytest.mark.parametrize("name", NAMES)
def test_smaller_sets_are_the_beginning_of_larger_ones(name: str) -> None:
    assert mirrored.raw(name, 50, 3)[:20] == mirrored.raw(name, 20, 3)


@pytest.mark.parametrize("name", NAMES)
def test_solved_replies_are_right_by_the_grader(name: str) -> None:
    for row in mirrored.raw(name, 30, 0):
        if name == "aime25":
            assert all(grade_aime(s["reply"], s["answer"]).outcome == "right" for s in row["Solved"])
            assert row["problem"] not in [s["problem"] for s in row["Solved"]]
        elif name == "gpqa_diamond":
            assert row["Question"] not in [s["Question"] for s in row["Solved"]]
    for doc in documents(name, "mirrored", 30)[0]:
        last = json.loads(doc["turns"])[-1]["content"]
        if name == "gpqa_diamond":
            assert grade_gpqa(last, doc["answer"]).outcome == "right"
            assert all(doc[letter].upper().startswith(letter) for letter in "ABCD")
        elif name.startswith("mrcr"):
            assert grade_mrcr(doc["answer"], doc["answer"], doc["prefix"]).score == 1
            assert grade_mrcr(last, doc["answer"], doc["prefix"]).outcome == "unparsed"


@pytest.mark.parametrize("needles", [2, 4, 8])
def test_the_answer_is_the_ith_of_identical_requests(needles: int) -> None:
    for row in mirrored.raw(f"mrcr_{needles}needle", 20, 0):
        messages = json.loads(row["prompt"])
        asked = messages[-1]["content"].split()
        i, subject = mirrored.ORDINALS.index(asked[4]), asked[9].rstrip(".")
        poems = [
            reply["content"]
            for question, reply in zip(messages[::2], messages[1::2], strict=False)
            if question["content"] == f"Write a poem about {subject}"
        ]
        assert len(poems) == len(set(poems)) == needles
        assert row["answer"] == asked[1] + poems[i]
        assert len(asked[1]) == mirrored.PREFIX


def test_impossible_sizes_are_refused() -> None:
    for items in (0, mirrored.LARGEST + 1):
        with pytest.raises(UserError, match="items"):
            mirrored.raw("aime25", items, 0)
