"""Walks by name."""

from __future__ import annotations

import pytest

from validation.errors import UserError
from validation.step.items import Choice, chosen


@pytest.mark.parametrize("provider", ["torch", "triton"])
def test_all_walks_that_are_named_are_chosen_whatever_their_tier(provider: str) -> None:
    only = ("memory", "long", "eight_ranks", "preempt")
    assert {item.name for item in chosen(provider, Choice(only=only))} == set(only)


def test_an_unknown_walk_is_refused() -> None:
    with pytest.raises(UserError, match="unknown walk 'memry'"):
        chosen("torch", Choice(only=("memory", "memry")))
