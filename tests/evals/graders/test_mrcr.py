"""MRCR grader: the official rule on golden and tricky replies, and five public variants that differ from
it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.data.bins import EDGES, bin_of, tokens_of
from evals.graders import mrcr
from evals.graders.mrcr import grade_mrcr
from evals.graders.reply import Reply
from tests.evals.graders.variants import (
    bin_half_open,
    mrcr_lstrip,
    mrcr_no_autojunk,
    mrcr_no_gate,
    mrcr_official,
    mrcr_paired_tags,
    mrcr_user_mark,
    mrcr_with_reasoning,
    tokens_by_characters,
)

PREFIX = "aYooSG8CQg"
BODY = "Soft tapirs sleep by the sea."
GOLD = PREFIX + BODY
K3, K3_CLOSE = "<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"
K3_END = "<|close|>response<|sep|><|close|>message<|sep|>"
CASES = [
    ("verbatim", GOLD, "right"),
    ("after reasoning", f"<think>which?</think>\n\n{GOLD}", "right"),
    ("lost opening tag", f"which?</think>{GOLD}", "right"),
    ("reasoning quotes the answer", f"<think>{PREFIX}x</think>{GOLD}", "right"),
    ("after K3's reasoning", f"{K3}which?{K3_CLOSE}{GOLD}{K3_END}", "right"),
    ("K3, lost opening mark", f"which?{K3_CLOSE}{GOLD}{K3_END}", "right"),
    ("other needle", PREFIX + "Old tapirs sing at dawn.", "wrong"),
    ("one letter more", GOLD + "!", "wrong"),
    ("prefix alone", PREFIX, "wrong"),
    ("prefix twice", PREFIX + GOLD, "wrong"),
    ("trailing line break", GOLD + "\n", "wrong"),
    ("space after the prefix", f"{PREFIX} {BODY}", "wrong"),
    ("prefix missing", BODY, "unparsed"),
    ("space before the prefix", " " + GOLD, "unparsed"),
    ("line break before the prefix", "\n" + GOLD, "unparsed"),
    ("preface", "Sure! " + GOLD, "unparsed"),
    ("prefix in quotes", f'"{GOLD}"', "unparsed"),
    ("prefix in lower case", PREFIX.lower() + BODY, "unparsed"),
    ("answer only in the reasoning", f"<think>{GOLD}</think>No.", "unparsed"),
    ("K3, answer only in the reasoning", f"{K3}{GOLD}{K3_CLOSE}No.{K3_END}", "unparsed"),
    ("K3, reasoning without end", f"{K3}{GOLD}", "unparsed"),
    ("reasoning without end", f"<think>{GOLD}", "unparsed"),
    ("empty", "", "unparsed"),
]


@pytest.mark.parametrize(("reply", "outcome"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_reply_is_classed(reply: str, outcome: str) -> None:
    grade = grade_mrcr(reply, GOLD, PREFIX)
    assert grade.outcome == outcome, grade
    if outcome == "wrong":
        assert 0 <= grade.score < 1
    else:
        assert grade.score == (outcome == "right")


def test_unicode_is_compared_by_code_point() -> None:
    gold = PREFIX + "Grüße — 詩"
    assert grade_mrcr(gold, gold, PREFIX).score == 1
    assert grade_mrcr(gold.replace("ü", "u"), gold, PREFIX).score == pytest.approx(2 * 8 / 18)


@given(st.text(max_size=60), st.text(max_size=60))
def test_score_is_the_cards_rule(reply: str, body: str) -> None:
    """Two ways of writing the rule agree wherever there is no reasoning."""
    for text in (reply, PREFIX + reply):
        if "think>" not in text:
            assert grade_mrcr(text, PREFIX + body, PREFIX).score == mrcr_official(text, PREFIX + body, PREFIX)


def test_what_cannot_be_compared_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    long = grade_mrcr(PREFIX + "x" * 200_001, GOLD, PREFIX)
    assert (long.outcome, math.isnan(long.score)) == ("grader", True)
    monkeypatch.setattr(mrcr, "TIME_LIMIT", 0.05)
    drawn = random.Random(0)
    slow = ["".join(drawn.choice("ab") for _ in range(190)) for _ in range(2)]  # below 200 autojunk is off
    many = PREFIX + slow[0] * 200, PREFIX + slow[1]
    assert grade_mrcr(*many, PREFIX).outcome == "grader"
    assert grade_mrcr(Reply("", failure="timeout"), GOLD, PREFIX).outcome == "timeout"


def test_gold_without_its_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix"):
        grade_mrcr(GOLD, BODY, PREFIX)


def words(count: int, seed: int = 0) -> list[str]:
    drawn = random.Random(seed)
    return [
        "".join(drawn.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(drawn.randint(2, 9)))
        for _ in range(count)
    ]


def means(change: object, rule: object) -> float:
    """Mean score over synthetic answers of 159 to 3,000 characters, as in the published measurement."""
    scores = []
    for seed, count in enumerate((25, 60, 120, 240, 460)):
        original = words(count, seed)
        gold = PREFIX + " ".join(original)
        scores.append(rule(PREFIX + change(original, seed), gold, PREFIX))  # type: ignore[operator]
    return sum(scores) / len(scores)


def ours(reply: str, gold: str, prefix: str) -> float:
    return grade_mrcr(reply, gold, prefix).score


def one_word_in_20(original: list[str], seed: int) -> str:
    other = words(len(original), seed + 100)
    return " ".join(o if i % 20 == 19 else w for i, (w, o) in enumerate(zip(original, other, strict=True)))


def every_tenth_character_dropped(original: list[str], seed: int) -> str:
    return "".join(c for i, c in enumerate(" ".join(original)) if i % 10 != 9)


def half(original: list[str], seed: int) -> str:
    text = " ".join(original)
    return text[: len(text) // 2]


def other_needle(original: list[str], seed: int) -> str:
    return " ".join(words(len(original), seed + 200))


@pytest.mark.parametrize(
    ("change", "official", "no_autojunk"),
    [(one_word_in_20, 0.383, 0.958), (every_tenth_character_dropped, 0.206, 0.902), (half, 0.666, 0.666)],
    ids=["word in 20", "tenth character", "half"],
)
def test_autojunk_off_is_another_metric(change: object, official: float, no_autojunk: float) -> None:
    """Measured elsewhere on other random words: 0.383 against 0.958, 0.206 against 0.902, 0.666 both."""
    assert means(change, ours) == means(change, mrcr_official) == pytest.approx(official, abs=0.15)
    assert means(change, mrcr_no_autojunk) == pytest.approx(no_autojunk, abs=0.05)


def test_wrong_needle_scores_higher_without_autojunk() -> None:
    assert means(other_needle, mrcr_official) < 0.15 < means(other_needle, mrcr_no_autojunk) + 0.1
    assert means(other_needle, mrcr_official) < means(other_needle, mrcr_no_autojunk)


def test_swapped_arguments_differ() -> None:
    """SequenceMatcher is not symmetric: the ratio depends on which text comes first."""
    a, b = PREFIX + "tide", PREFIX + "diet"
    assert grade_mrcr(a, b, PREFIX).score == 0.25
    assert mrcr_official(b, a, PREFIX) == 0.5
    assert mrcr_no_autojunk(a, b, PREFIX) == 0.5


def test_lstrip_forgives_what_the_rule_does_not() -> None:
    assert (mrcr_lstrip("\n" + GOLD, GOLD, PREFIX), grade_mrcr("\n" + GOLD, GOLD, PREFIX).score) == (1, 0)


def test_missing_gate_pays_for_a_missing_prefix() -> None:
    assert mrcr_no_gate(BODY, GOLD, PREFIX) > 0.8
    assert grade_mrcr(BODY, GOLD, PREFIX).score == 0


def test_half_open_bins_move_rows() -> None:
    assert (bin_half_open(8192, EDGES), bin_of(8192)) == (1, 0)
    assert (bin_half_open(2_000_000, EDGES), bin_of(2_000_000)) == (0, None)
    assert (bin_half_open(100, EDGES), bin_of(100)) == (0, None)
    assert (bin_half_open(1 << 20, EDGES), bin_of(1 << 20)) == (0, 7)


def test_reasoning_must_be_removed_first_and_without_its_opening_tag() -> None:
    opened, lost = f"<think>hm</think>{GOLD}", f"hm</think>{GOLD}"
    assert mrcr_with_reasoning(opened, GOLD, PREFIX) == 0
    assert (mrcr_paired_tags(opened, GOLD, PREFIX), mrcr_paired_tags(lost, GOLD, PREFIX)) == (1, 0)
    assert grade_mrcr(opened, GOLD, PREFIX).score == grade_mrcr(lost, GOLD, PREFIX).score == 1


def test_four_characters_a_token_puts_rows_into_another_bin() -> None:
    text = "word " * 7000
    assert bin_of(tokens_of([{"content": text}], "")) == 0
    assert bin_of(tokens_by_characters(text)) == 1


def test_cutting_at_a_user_mark_differs() -> None:
    reply = GOLD + "<|user|>Write more"
    assert mrcr_user_mark(reply, GOLD, PREFIX) == 1
    assert grade_mrcr(reply, GOLD, PREFIX).outcome == "wrong"
