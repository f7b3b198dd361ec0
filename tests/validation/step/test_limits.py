"""Pairs of honest variants: measured once, kept and found again; limits grow as the share shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest
from step_case import small

from validation.step import limits
from validation.subjects.kimi_k3.weights import random_weights


def _pairs(**changes: object) -> limits.Pairs:
    given = {"profiles": ("specialized", "stock"), "window": 25, "drawn": 0} | changes
    return limits.Pairs(small(), random_weights(small()), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("profiles", [("specialized", "stock"), ("stock", "stock")])
def test_the_kept_pairs_give_a_limit_for_every_distance(profiles: tuple[str, str]) -> None:
    found = limits.squares(_pairs(profiles=profiles))
    assert len(found) == 10
    wide, narrow = limits.limits(found, 1e-9), limits.limits(found, 1e-3)
    for name, squares in found.items():
        assert float(squares.max()) < narrow[name] < wide[name] < float("inf")


def test_what_is_not_kept_is_measured_and_left_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAIRS", 4)
    monkeypatch.setattr(limits, "SEEN", 1)
    said: list[str] = []
    pairs = _pairs(window=3, drawn=None)
    first = limits.squares(pairs, said.append, tmp_path)
    assert said[0].startswith("no measured pairs")
    assert {len(values) for values in first.values()} == {4}
    assert all(bool((values >= 0).all()) for values in first.values())
    monkeypatch.setattr(limits, "measured", lambda *given: pytest.fail("measured again"))
    again = limits.squares(pairs, said.append, tmp_path)
    assert again.keys() == first.keys()


def test_other_weights_have_other_pairs() -> None:
    other = limits.Pairs(small(), random_weights(small(), 1), ("stock", "stock"), 25)
    assert other.key() != _pairs(drawn=None, profiles=("stock", "stock")).key()
