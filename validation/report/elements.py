"""The worst of the wrong elements, by value: what a replay lists.

What this catches: nothing; it picks, by each element's own limit where it has one, else by distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from validation.report.schema import Element
from validation.report.where import place_words

if TYPE_CHECKING:
    from torch import Tensor

MOST = 8


def worst_elements(
    wrong: Tensor,
    axes: Sequence[str],
    found: Tensor,
    expected: Tensor,
    most: int = MOST,
    scores: Tensor | None = None,
) -> list[Element]:
    """The worst elements of the mask, the worst first: by ``scores``, else by distance, where what is no
    number comes first."""
    places = wrong.nonzero()
    pairs = found[wrong].double(), expected[wrong].double()
    distance = (pairs[0] - pairs[1]).abs() if scores is None else scores[wrong]
    distance = distance.nan_to_num(nan=float("inf"))
    order = distance.argsort(descending=True, stable=True)[:most].tolist()
    where = [place_words(axes, places[i].tolist(), wrong.shape) for i in order]
    return [Element(at, float(pairs[0][i]), float(pairs[1][i])) for at, i in zip(where, order, strict=True)]
