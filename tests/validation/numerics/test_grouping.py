"""Slices against naive loops over indices."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from validation.numerics.grouping import Grouping

NAMES = ("request", "head", "row", "column")


@st.composite
def slicings(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...], int | None]:
    """A shape, its axes, the axes that a grouping keeps, in any order, and the tile of the last if tiled."""
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank)))
    axes = NAMES[:rank]
    kept = draw(st.lists(st.sampled_from(axes), unique=True))
    tile = draw(st.integers(1, 8)) if axes[-1] in kept and draw(st.booleans()) else None
    group = tuple(f"{name}/{tile}" if tile and name == axes[-1] else name for name in kept)
    return shape, axes, group, tile


def naive(shape: tuple[int, ...], axes: tuple[str, ...], group: tuple[str, ...], tile: int | None) -> dict:
    """Slice -> the flat numbers of its elements, slices in the order of the axes."""
    kept = {name.split("/")[0] for name in group}
    members = defaultdict(list)
    for flat, index in enumerate(itertools.product(*map(range, shape))):
        key = [i for i, axis in zip(index, axes, strict=True) if axis in kept]
        if tile:
            key[-1] //= tile
        members[tuple(key)].append(flat)
    return dict(sorted(members.items()))


def numbered(shape: tuple[int, ...]) -> Tensor:
    """Elements 1, 2, 3, ...: 0 is padding."""
    count = int(torch.tensor(shape).prod())
    return torch.arange(1, count + 1, dtype=torch.float64).reshape(shape)


@given(slicings())
def test_rows_of_the_matrix_are_the_slices(slicing: tuple) -> None:
    shape, axes, group, tile = slicing
    matrix = Grouping(torch.Size(shape), axes, group).matrix(numbered(shape))
    found = [sorted(int(v) - 1 for v in row if v) for row in matrix]
    assert found == list(naive(shape, axes, group, tile).values())


@given(slicings(), st.randoms(use_true_random=False))
def test_a_mask_of_slices_marks_their_elements(slicing: tuple, random: object) -> None:
    shape, axes, group, tile = slicing
    members = naive(shape, axes, group, tile)
    chosen = [random.random() < 0.5 for _ in members]
    mask = Grouping(torch.Size(shape), axes, group).spread(torch.tensor(chosen))
    expected = torch.zeros(numbered(shape).numel(), dtype=torch.bool)
    for taken, elements in zip(chosen, members.values(), strict=True):
        expected[elements] = taken
    assert torch.equal(mask, expected.reshape(shape))


def test_no_group_is_the_whole_tensor() -> None:
    whole = Grouping(torch.Size((2, 3)), ("row", "column"), ())
    assert whole.label == "whole tensor"
    assert whole.matrix(numbered((2, 3))).tolist() == [[1, 2, 3, 4, 5, 6]]


def test_the_label_names_the_axes_and_the_tile() -> None:
    grouping = Grouping(torch.Size((2, 130)), ("row", "column"), ("row", "column/64"))
    assert grouping.label == "row x column/64"
    assert grouping.kept == {"row", "column"}
    assert grouping.matrix(torch.ones(2, 130)).sum(1).tolist() == [64, 64, 2, 64, 64, 2]


def test_an_empty_tensor_has_no_slices() -> None:
    grouping = Grouping(torch.Size((0, 3)), ("row", "column"), ("row",))
    assert grouping.matrix(torch.zeros(0, 3)).shape[0] == 0
    nothing = Grouping(torch.Size((2, 0)), ("row", "column"), ("row",))
    assert nothing.matrix(torch.zeros(2, 0)).shape == (2, 0)


def test_only_the_last_axis_can_be_tiled() -> None:
    with pytest.raises(ValueError, match="only the last axis can be tiled"):
        Grouping(torch.Size((4, 4)), ("row", "column"), ("row/2",))
