"""Small sets made here in the form of the public ones, easy enough for a model of 135 million parameters.

They are for the offline default: they show that a pipeline works and that two backends answer alike. What
this catches: gross damage to a backend, through the same prompts and graders as real data. What it cannot
catch: loss of ability on hard or long questions; a good score here says nothing about AIME, GPQA or MRCR.

A model this small answers in a given form only after it has seen that form, so every question brings a few
solved ones before it (``Solved``), as turns through the same prompt functions. Everything is drawn from the
seed by ``random.Random``; the same seed and number give the same bytes (pinned by a test).

* AIME form: a sum of two digits, written out in the question; chance is about 5 %.
* GPQA form: which letter a note in the question names, in front of four options that have nothing to do with
  it beyond their initials A, B, C and D. A model this small cannot bind a letter to an option by itself, so
  the letter is in the question, the generator keeps questions whose hash permutes every option onto its own
  initial, and the solved question has the letter of the question. Chance is 25 %; a model that only repeats
  the last answer would score 100 %, so this set measures copying, no knowledge.
* MRCR form: the i-th of 2, 4 or 8 identical requests, behind ten random digits; chance is near 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from evals.data.rows import permutation
from validation.errors import UserError

Row = dict[str, Any]

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jonas")
THINGS = ("apples", "books", "coins", "stamps", "pens", "cards", "shells", "keys")
INITIALS = {
    "A": ("apple", "ant", "axe", "arm"),
    "B": ("banana", "bear", "ball", "bread"),
    "C": ("cat", "cherry", "car", "cup"),
    "D": ("dog", "door", "duck", "drum"),
}
SUBJECTS = ("tapirs", "rocks", "rivers", "clouds", "spoons", "candles", "foxes", "hills")
MOODS = ("Soft", "Old", "Grey", "Slow", "Warm", "Bright", "Quiet", "Small", "Wild", "Cold", "Deep", "Tall")
DEEDS = ("sing", "sleep", "wait", "drift", "shine", "turn", "dance", "rest")
PLACES = (
    "by the sea",
    "under the moon",
    "in the rain",
    "near the wall",
    "on the road",
    "at dawn",
    "in the snow",
)
ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th")
PREFIX = 10  # characters, as in the public set
LARGEST = 1_000


def raw(task: str, items: int, seed: int) -> list[Row]:
    """``items`` rows with the columns of the public set that ``task`` names, all different."""
    if not 1 <= items <= LARGEST:
        raise UserError(f"a mirrored set has 1 to {LARGEST} items, not {items}; set 'items'")
    makers: dict[str, Callable[[Random], Row]] = {
        "aime25": aime,
        "gpqa_diamond": gpqa,
        **{f"mrcr_{n}needle": partial(mrcr, needles=n) for n in (2, 4, 8)},
    }
    random = Random(f"{task}/{seed}")
    return list(_different(lambda: makers[task](random), items))


def _different(make: Callable[[], Row], items: int) -> Iterator[Row]:
    """Rows whose question has not occurred before."""
    seen: set[str] = set()
    for _ in range(100 * items):
        row = make()
        question = str(row.get("problem") or row.get("Question") or row.get("prompt"))
        if question not in seen:
            seen.add(question)
            yield row
        if len(seen) == items:
            return
    raise UserError(f"only {len(seen)} different questions can be made; ask for fewer items")


def aime(random: Random) -> Row:
    """One sum with two solved ones before it, none of them the sum itself."""
    first, second, asked = _all_different(lambda: _sum(random), 3)
    return {**asked, "Solved": [first, second]}


def _sum(random: Random) -> Row:
    a, b = random.randrange(1, 10), random.randrange(1, 10)
    name, thing = random.choice(NAMES), random.choice(THINGS)
    problem = f"{name} has {a} + {b} {thing}. How many {thing} is that?"
    return {"problem": problem, "answer": str(a + b), "reply": f"{a} + {b} = {a + b}. \\boxed{{{a + b}}}"}


def gpqa(random: Random) -> Row:
    """One note with a solved one before it, whose answer has the same letter."""
    right = random.randrange(4)
    solved, asked = _all_different(lambda: _note(random, right), 2)
    return {**asked, "Solved": [solved]}


def _note(random: Random, right: int) -> Row:
    while True:
        words = [random.choice(INITIALS[letter]) for letter in "ABCD"]
        question = f"Note {random.randrange(1, 10_000)} says 'Answer: {'ABCD'[right]}'. What does it say?"
        options = [words[right], *words[:right], *words[right + 1 :]]
        if [options[i] for i in permutation(question)] == words:
            break
    wrong = {f"Incorrect Answer {i}": options[i] for i in (1, 2, 3)}
    reply = "It says 'Answer: {letter}'.\nAnswer: {letter}"
    return {"Question": question, "Correct Answer": options[0], **wrong, "reply": reply}


def _all_different(make: Callable[[], Row], number: int) -> list[Row]:
    return list(_different(make, number))


def mrcr(random: Random, needles: int) -> Row:
    """One conversation: ``needles`` identical requests among others, two solved retrievals, and the
    question."""
    subject, other = random.sample(SUBJECTS, 2)
    poems = [row["poem"] for row in _different(lambda: _poem(random, subject), needles)]
    rounds = [(subject, poem) for poem in poems]
    rounds.insert(random.randrange(needles + 1), (other, str(_poem(random, other)["poem"])))
    messages = [m for what, poem in rounds for m in _turn(f"Write a poem about {what}", poem)]
    wanted = random.sample(range(needles), 2)
    for i in wanted:
        prefix = _prefix(random)
        messages += _turn(_retrieve(prefix, i, subject), prefix + poems[i])
    i, prefix = random.choice(wanted), _prefix(random)
    messages.append({"role": "user", "content": _retrieve(prefix, i, subject)})
    return {
        "prompt": json.dumps(messages),
        "answer": prefix + poems[i],
        "random_string_to_prepend": prefix,
        "n_needles": needles,
    }


def _poem(random: Random, subject: str) -> Row:
    poem = f"{random.choice(MOODS)} {subject} {random.choice(DEEDS)} {random.choice(PLACES)}."
    return {"poem": poem, "problem": poem}


def _prefix(random: Random) -> str:
    return "".join(random.choice("0123456789") for _ in range(PREFIX))


def _retrieve(prefix: str, i: int, subject: str) -> str:
    return (
        f"Prepend {prefix} to the {ORDINALS[i]} (1 indexed) poem about {subject}. "
        "Do not include any other text in your response."
    )


def _turn(question: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
