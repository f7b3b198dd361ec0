"""The words for a mask name the wrong elements: by example, and by reading the words back."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from validation.report.elements import worst_elements
from validation.report.where import axis_words, describe, plural


def mask_of(shape: tuple[int, ...], *index: slice | int | list[int]) -> torch.Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[index] = True
    return mask


EVERY = slice(None)
TILE = [i for i in range(512) if i % 128 >= 64]
EXAMPLES = [
    (torch.zeros(2, 3, dtype=torch.bool), ("row", "column"), "nowhere"),
    (torch.ones(2, 3, dtype=torch.bool), ("row", "column"), "everywhere"),
    (torch.ones((), dtype=torch.bool), (), "everywhere"),
    (mask_of((4, 8), 2), ("request", "head"), "request 2 only"),
    (
        mask_of((8, 256, 6), 5, slice(120, 128), slice(3, 6)),
        ("head", "row", "token"),
        "head 5, rows 120 to 127, from token 3 on",
    ),
    (mask_of((8, 128), 5, slice(120, 128)), ("head", "row"), "head 5, last 8 of 128 rows"),
    (mask_of((4, 128), EVERY, slice(0, 8)), ("head", "row"), "first 8 of 128 rows"),
    (mask_of((4, 128), EVERY, slice(0, 8)), ("head", "v"), "v 0 to 7"),
    (mask_of((4, 16), EVERY, slice(0, 16, 2)), ("head", "row"), "every other row"),
    (mask_of((4, 16), EVERY, slice(1, 16, 2)), ("head", "row"), "every other row from row 1"),
    (mask_of((4, 16), EVERY, slice(2, 11, 4)), ("head", "row"), "every 4th row from row 2 to row 10"),
    (mask_of((4, 33), EVERY, slice(0, 33, 3)), ("head", "row"), "every 3rd row"),
    (mask_of((12, 16), [i for i in range(12) if i != 5]), ("head", "row"), "all heads but 5"),
    (mask_of((12, 16), [2, 3]), ("head", "row"), "heads 2 and 3"),
    (mask_of((12, 16), [0, 4, 5, 9]), ("head", "row"), "heads 0, 4, 5 and 9"),
    (mask_of((40,), [0, 4, 5, 9, 17, 20, 33]), ("entry",), "7 of 40 entries between 0 and 33"),
    (mask_of((512,), TILE), ("column",), "columns 64 to 127 of every 128"),
    (mask_of((2, 3), 1, 2), ("row", "column"), "row 1, column 2"),
]  # fmt: skip


@pytest.mark.parametrize(("mask", "axes", "words"), EXAMPLES, ids=[e[2] for e in EXAMPLES])
def test_example(mask: torch.Tensor, axes: tuple[str, ...], words: str) -> None:
    assert describe(mask, axes) == words


def test_scattered_elements_are_counted_and_the_worst_named() -> None:
    mask = mask_of((8, 64), [0, 5, 7], [9, 3, 60])
    severity = torch.zeros(8, 64)
    severity[5, 3] = 2.0
    severity[1, 1] = 9.0  # not wrong, so not the worst
    assert describe(mask, ("head", "row"), severity) == "3 of 512 elements scattered, worst at head 5, row 3"
    assert describe(mask, ("head", "row")) == "3 of 512 elements scattered, first at head 0, row 9"


def test_scattered_elements_of_one_head_name_the_head() -> None:
    mask = torch.zeros(8, 32, 32, dtype=torch.bool)
    mask[5] = torch.rand(32, 32, generator=torch.Generator().manual_seed(1)) < 0.4
    words = describe(mask, ("head", "v", "k"))
    assert words.startswith(f"{int(mask.sum())} of 1,024 elements scattered over head 5, first at head 5, ")


def test_a_nan_severity_is_the_worst() -> None:
    mask = mask_of((2, 2), [0, 1], [0, 1])
    severity = torch.tensor([[3.0, 0.0], [0.0, float("nan")]])
    assert describe(mask, ("row", "column"), severity).endswith("worst at row 1, column 1")


def test_axes_must_fit_the_mask() -> None:
    with pytest.raises(ValueError, match="does not have the axes"):
        describe(torch.ones(2, 2, dtype=torch.bool), ("row",))


@pytest.mark.parametrize(
    ("one", "many"),
    [("row", "rows"), ("entry", "entries"), ("batch", "batches"), ("k", "k"), ("key", "keys")],
)
def test_plural(one: str, many: str) -> None:
    assert plural(one) == many


def read_back(words: str, axis: str, size: int) -> set[int]:
    """The indices that the words for one axis name: an independent reading of them."""
    names = plural(axis)
    if m := re.fullmatch(rf"from {axis} (\d+) on", words):
        return set(range(int(m[1]), size))
    if m := re.fullmatch(rf"(first|last) (\d+) of {size} {names}", words):
        n = int(m[2])
        return set(range(n)) if m[1] == "first" else set(range(size - n, size))
    if m := re.fullmatch(rf"all {names} but ([\d and]+)", words):
        return set(range(size)) - {int(i) for i in m[1].split(" and ")}
    if m := re.fullmatch(rf"every (other|\d+)\w* {axis}(?: from {axis} (\d+))?(?: to {axis} (\d+))?", words):
        step = 2 if m[1] == "other" else int(m[1])
        return set(range(int(m[2] or 0), int(m[3] or size - 1) + 1, step))
    if m := re.fullmatch(rf"{names} (\d+) to (\d+) of every (\d+)", words):
        return {i for i in range(size) if int(m[1]) <= i % int(m[3]) <= int(m[2])}
    found: set[int] = set()
    for part in re.split(r", | and ", re.sub(rf"^(?:{names}|{axis}) ", "", words)):
        ends = [int(i) for i in part.removesuffix(" only").split(" to ")]
        found |= set(range(ends[0], ends[-1] + 1))
    return found


@st.composite
def proper_subset(draw: st.DrawFn) -> tuple[list[int], int]:
    """A range, a stride, a tiling or any set of indices, never all of them."""
    size = draw(st.integers(2, 40))
    start = draw(st.integers(0, size - 1))
    kind = draw(st.sampled_from(["range", "stride", "tiles", "any"]))
    if kind == "range":
        indices = list(range(start, draw(st.integers(start + 1, size))))
    elif kind == "stride":
        indices = list(range(start, size, draw(st.integers(2, 9))))
    elif kind == "tiles":
        period = draw(st.integers(2, 12))
        low = draw(st.integers(0, period - 1))
        high = draw(st.integers(low, period - 1))
        indices = [i for i in range(size) if low <= i % period <= high]
    else:
        indices = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
    if not indices or len(indices) == size:
        indices = [start]
    return indices, size


@settings(max_examples=400, deadline=None)
@given(proper_subset(), st.sampled_from(["row", "token", "k", "entry"]))
def test_axis_words_name_exactly_the_indices(subset: tuple[list[int], int], axis: str) -> None:
    indices, size = subset
    words = axis_words(axis, indices, size)
    if " between " in words:
        n, m, low, high = (int(i) for i in re.findall(r"\d+", words))
        assert (n, m, low, high) == (len(indices), size, indices[0], indices[-1])
    else:
        assert read_back(words, axis, size) == set(indices), words


ranges = st.integers(2, 9).flatmap(
    lambda n: st.tuples(st.integers(0, n - 1), st.integers(1, n), st.just(n)).filter(lambda r: r[0] < r[1])
)


@settings(max_examples=200, deadline=None)
@given(st.tuples(ranges, ranges, ranges))
def test_words_of_a_rectangle_name_exactly_that_rectangle(sides: tuple[tuple[int, int, int], ...]) -> None:
    axes = ("head", "row", "token")
    mask = torch.zeros([n for _, _, n in sides], dtype=torch.bool)
    mask[tuple(slice(a, b) for a, b, _ in sides)] = True
    words = describe(mask, axes)
    read = torch.ones_like(mask)
    for part in [] if words == "everywhere" else re.split(r", (?=head|row|from|first|last|token|all)", words):
        axis = next(a for a in axes if a in part)
        along = read_back(part, axis, mask.shape[axes.index(axis)])
        keep = torch.tensor([i in along for i in range(mask.shape[axes.index(axis)])])
        read &= keep.view([-1 if a == axis else 1 for a in axes])
    assert torch.equal(read, mask), words


def test_the_worst_elements_come_first_and_axes_of_one_are_not_named() -> None:
    found, expected = torch.zeros(2, 1, 3), torch.zeros(2, 1, 3)
    found[1, 0, 2], found[0, 0, 1], found[0, 0, 0] = 5.0, float("nan"), 1.0
    worst = worst_elements(found != expected, ("row", "token", "k"), found, expected, most=2)
    assert [element.at for element in worst] == ["row 0, k 1", "row 1, k 2"]
    assert (worst[1].found, worst[1].expected) == (5.0, 0.0)
