"""From rows to arrays: which walks count, what is one sequence, and that this keeps the error rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evals.forced import gather as module
from evals.forced.gather import Gathered, gather
from evals.store.row import Row
from validation.variance.forced import crossed

TOKENS = (5, 6, 7, 8)
REPLICATES = ((0, 1), (2, 3))


def row(key: str, replicate: int, logprobs: np.ndarray, prompt: str = "", **changes: Any) -> Row:
    """A walk over TOKENS; its three most likely tokens have the forced one's log-probability less 0, 1, 2."""
    top = logprobs[:, None] - np.arange(3.0)
    ids = np.tile(np.array([1, 2, 3], np.int32), (len(logprobs), 1))
    made = Row("", "arm", "forced", prompt or key, key, 0, prompt_hash=prompt, replicate=replicate)
    tokens = np.array(TOKENS, np.int32)
    return replace(made, token_ids=tokens, logprobs=logprobs, top_ids=ids, top_logprobs=top, **changes)


def gathered(rows: list[Row]) -> Gathered:
    wanted: dict[str, tuple[int, ...]] = {each.key: TOKENS for each in rows}
    arms = [[each for each in rows if each.replicate in numbers] for numbers in REPLICATES]
    return gather(wanted, arms[0], arms[1], REPLICATES)


def steady(key: str, prompt: str = "", **changes: Any) -> list[Row]:
    base = -np.arange(1.0, 5.0)
    return [row(key, r, base - 0.01 * r, prompt, **changes) for r in range(4)]


def test_walks_of_one_prompt_are_one_sequence_in_the_order_of_the_keys() -> None:
    found = gathered(steady("a/0", "p") + steady("b/0", "q") + steady("a/1", "p"))
    assert found.prompts == [["a/0", "a/1"], ["b/0"]]
    assert (found.keys, found.tokens) == (["a/0", "b/0", "a/1"], 9)
    assert found.chosen is not None
    assert found.top is not None
    assert [x.shape for x in found.chosen.a] == [(2, 6), (2, 3)]
    assert [x.shape for x in found.top.b] == [(2, 6, 3), (2, 3, 3)]
    assert found.chosen.b[0][0].tolist() == pytest.approx([-2.02, -3.02, -4.02] * 2)
    assert found.chosen.tokens.tolist() == [6, 3]


def test_an_engine_that_tells_no_prompt_hash_is_joined_by_question() -> None:
    rows = [replace(each, question="q") for key in ("a/0", "a/1") for each in steady(key)]
    assert gathered(rows).prompts == [["a/0", "a/1"]]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda each: replace(each, failure="timeout", message="late"), "timeout in the candidate arm: late"),
        (lambda each: replace(each, token_ids=each.token_ids[::-1]), "other tokens than were forced"),
        (lambda each: replace(each, replicate=9), "not walked in every replicate of the candidate arm"),
    ],
)
def test_a_walk_that_cannot_be_compared_is_left_out_with_its_reason(spoil: object, says: str) -> None:
    rows = steady("a/0", "p") + steady("a/1", "p")
    wanted: dict[str, tuple[int, ...]] = {"a/0": TOKENS, "a/1": TOKENS}
    rows[-1] = spoil(rows[-1])  # type: ignore[operator]
    found = gather(
        wanted, [r for r in rows if r.replicate < 2], [r for r in rows if r.replicate > 1], REPLICATES
    )
    assert found.prompts == [["a/0"]]
    assert says in found.lost["a/1"]


def test_a_token_that_one_replicate_did_not_report_weighs_nothing_and_widths_may_differ() -> None:
    rows = steady("a/0", "p") + steady("b/0", "q")
    cut = rows[3]
    ids = cut.top_ids.copy()
    ids[:, 2] = 99
    rows[3] = replace(cut, top_ids=ids)
    wide = [
        replace(r, top_ids=_more(r.top_ids, -1), top_logprobs=_more(r.top_logprobs, np.nan))
        for r in rows[4:6]
    ]
    top = gathered(rows[:4] + wide + rows[6:]).top
    assert top is not None
    assert top.weights is not None
    assert [bool((top.weights[0][:, k] > 0).all()) for k in range(3)] == [True, True, False]
    assert [bool((top.weights[1][:, k] > 0).all()) for k in range(4)] == [True, True, True, False]
    assert all(np.isfinite(x).all() for x in top.a)


def _more(x: np.ndarray, value: float) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 1)], constant_values=value)


def false_alarms(runs: int, level: float = 0.05) -> float:
    """Share of alarms where an arm meets itself: 8 prompts, 6 walks of each, whose replicates share the noise
    of their prompt's prefill."""
    alarms = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        rows = []
        for prompt in range(8):
            shared = rng.normal(0, 0.05, 4)
            for walk in range(6):
                base = rng.normal(-2, 1, 4)
                rows += [
                    row(f"{prompt}/{walk}", r, base + shared[r] + rng.normal(0, 0.01, 4), f"p{prompt}")
                    for r in range(4)
                ]
        chosen = gathered(rows).chosen
        assert chosen is not None
        alarms += crossed(chosen, level=level, rounds=499, seed=seed).p_value <= level
    return alarms / runs


def test_an_arm_differs_from_itself_at_the_level_only_if_walks_of_a_prompt_are_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert false_alarms(120) <= 0.11  # a rate of 5 % gives more in less than 1 % of such tests
    monkeypatch.setattr(module, "prompt_of", lambda row: row.key)
    assert false_alarms(60) >= 0.2
