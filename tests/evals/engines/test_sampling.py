"""Draws follow the model's distribution, depend on nothing but seed, position and token, and respect the
nucleus."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from evals.engines.sampling import Draw, drawn, look, nucleus

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
DRAWS = 4000


def draw(seed: int = 0, **changes: object) -> Draw:
    return replace(Draw(seed, 0, 1.0, 1.0), **changes)


def counts(**changes: object) -> np.ndarray:
    draws = [draw(seed, **changes) for seed in range(DRAWS)]
    return np.bincount(drawn(LOGITS.expand(DRAWS, -1), draws), minlength=len(LOGITS))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_tokens_are_drawn_with_their_probability(temperature: float) -> None:
    wanted = (LOGITS.double() / temperature).softmax(-1).numpy() * DRAWS
    assert stats.chisquare(counts(temperature=temperature), wanted).pvalue > 1e-4


def test_a_wrong_temperature_would_be_seen() -> None:
    wanted = (LOGITS.double() / 1.1).softmax(-1).numpy() * DRAWS
    assert stats.chisquare(counts(temperature=0.8), wanted).pvalue < 1e-4


def test_positions_draw_independently_of_each_other() -> None:
    flat = torch.zeros(DRAWS, 8)
    first, second = (np.array(drawn(flat, [draw(s, position=p) for s in range(DRAWS)])) for p in (0, 1))
    table = np.histogram2d(first, second, bins=8)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_nothing_outside_the_nucleus_is_drawn() -> None:
    probabilities = LOGITS.double().softmax(-1)
    found = counts(top_p=float(probabilities[:2].sum()) - 1e-3)
    assert found[:2].min() > 0
    assert found[2:].sum() == 0


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.1, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (0.96, None)]
)
def test_the_smallest_set_that_holds_top_p(top_p: float, kept: int | None) -> None:
    assert nucleus(np.log([0.5, 0.3, 0.15]), top_p) == kept


def test_a_flat_distribution_needs_more_than_the_first_cut() -> None:
    tokens = drawn(torch.zeros(200, 3000), [draw(seed, top_p=0.95) for seed in range(200)])
    assert len(set(tokens)) > 150
    assert max(tokens) > 256


def test_temperature_zero_is_greedy() -> None:
    assert drawn(LOGITS[None], [draw(temperature=0.0)]) == [0]


def test_the_other_rows_do_not_matter() -> None:
    alone = [drawn(LOGITS[None], [draw(seed)])[0] for seed in range(20)]
    assert drawn(LOGITS.expand(20, -1), [draw(seed) for seed in range(20)]) == alone


def test_a_forced_token_is_taken_and_its_log_probability_told() -> None:
    seen = look(LOGITS.expand(2, -1), [draw(forced=5), draw(3)], top=2)
    assert seen.token[0] == 5
    assert seen.logprob[0] == pytest.approx(float(LOGITS.log_softmax(-1)[5]))
    assert seen.top_ids == [[0, 1], [0, 1]]
